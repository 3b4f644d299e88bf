"""Preconditioners against their dense twins: one contract, many instances; always positive definite."""

import pytest
import torch

from notsodeep.errors import BadInput
from notsodeep.linalg.conjugate_gradients import conjugate_gradients
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.linalg.preconditioners import Chained, SpikedDiagonal, identity, made_positive, nystrom, whitened
from tests.linalg.test_lanczos import rotated

N = 60


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def spiked(seed=0, rank=5):
    vectors = torch.linalg.qr(normal(N, rank, seed=seed)).Q if rank else normal(N, 0)
    return SpikedDiagonal(normal(N, seed=seed + 1).abs() + 0.1, vectors, torch.linspace(-0.8, 20.0, rank).double())


def dense(by):
    """Root by root, without `solve`."""
    if isinstance(by, Chained):
        return root(by.first) @ dense(by.second) @ root(by.first).T
    return root(by) @ root(by).T


def root(by):
    inner = (by.vectors * ((1 + by.gains).sqrt() - 1)) @ by.vectors.T + torch.eye(len(by.diag)).double()
    return by.diag.sqrt()[:, None] * inner


MATRIX = rotated(torch.logspace(1.0, -3.0, N).double())
INSTANCES = {
    "spiked": spiked(),
    "diagonal": spiked(rank=0),
    "identity": identity(N, MATRIX),
    "chained": Chained(spiked(), spiked(seed=7)),
    "chained twice": Chained(spiked(), Chained(spiked(seed=7), spiked(seed=9, rank=2))),
    "nystrom": nystrom(lambda v: MATRIX @ v, MATRIX, 12, 1e-3),
    "definite": made_positive(LowRankPlusDiagonal(normal(N, 4), torch.eye(4).double(), torch.ones(N).double()), 1e-3),
}


@pytest.mark.parametrize("by", INSTANCES.values(), ids=INSTANCES.keys())
def test_contract(by):
    twin, v = dense(by), normal(N, 3, seed=5)
    torch.testing.assert_close(by.solve(v), torch.linalg.solve(twin, v), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(by.whiten_back(by.whiten(v)), by.solve(v), rtol=1e-10, atol=1e-10)
    assert by.logdet() == pytest.approx(float(torch.logdet(twin)), rel=1e-9, abs=1e-9)
    inner = whitened(lambda u: twin @ u, by)(torch.eye(N).double())
    torch.testing.assert_close(inner, torch.eye(N).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["definite", "indefinite", "negative diagonal", "zero diagonal", "zero core", "full core"])
def test_any_low_rank_plus_diagonal_is_made_positive(kind):
    core = {"indefinite": [3.0, -2.0, 1.0, -40.0], "zero core": [0.0] * 4}.get(kind, [3.0, 2.0, 1.0, 0.5])
    square = normal(4, 4, seed=3)
    core = square + square.T if kind == "full core" else torch.diag(torch.tensor(core).double())
    diag = {"negative diagonal": normal(N, seed=2), "zero diagonal": torch.zeros(N).double()}.get(kind, torch.ones(N).double())
    operator = LowRankPlusDiagonal(normal(N, 4), core, diag)
    by = made_positive(operator, 1e-3)
    assert float(torch.linalg.eigvalsh(dense(by)).min()) > 0
    if kind == "definite":
        torch.testing.assert_close(dense(by), operator.to_dense(), rtol=0, atol=0.03)
    found = conjugate_gradients(lambda v: MATRIX @ v + 0.1 * v, normal(N, 2), by)
    assert found.converged


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nystrom_of_a_singular_matrix_stays_positive(dtype):
    """Gains of 1/ε and more: P⁻¹ is computed by its root, so that no cancellation turns a small number into a negative one."""
    singular = rotated(torch.cat([torch.logspace(1.0, -1.0, N // 2), torch.zeros(N // 2)]).double()).to(dtype)
    by, inside = nystrom(lambda v: singular @ v, singular, N), singular @ normal(N, 20).to(dtype)
    assert bool(((inside * by.solve(inside)).sum(0) > 0).all())


def test_columns_that_do_not_matter_are_left_out():
    factor = torch.cat([normal(N, 3), 1e-6 * normal(N, 20, seed=1)], dim=1)
    by = made_positive(LowRankPlusDiagonal(factor, torch.eye(23).double(), torch.ones(N).double()), 1e-3)
    assert by.rank == 3


def test_nystrom_of_full_rank_is_the_matrix_up_to_scale():
    by = nystrom(lambda v: MATRIX @ v, MATRIX, N, 1e-3)
    ratio = torch.linalg.eigvalsh(whitened(lambda v: MATRIX @ v + 1e-3 * v, by)(torch.eye(N).double()))
    assert float(ratio.max() / ratio.min()) <= 1.05


def test_iterations_fall_as_the_rank_of_nystrom_grows():
    matrix, right = rotated(torch.logspace(2.0, -4.0, 150).double()), normal(150, 1)
    taken = [
        conjugate_gradients(lambda v: matrix @ v + 1e-3 * v, right, by).iterations
        for by in (None, *(nystrom(lambda v: matrix @ v, matrix, rank, 1e-3) for rank in (10, 30, 75)))
    ]
    assert taken == sorted(taken, reverse=True)
    assert taken[-1] <= 0.2 * taken[0]


def test_float32_and_the_zero_matrix():
    by = nystrom(lambda v: MATRIX.float() @ v, MATRIX.float(), 12, 1e-3)
    assert by.solve(torch.ones(N, 2)).dtype == torch.float32
    nothing = nystrom(torch.zeros_like, MATRIX, 5, 1e-3)
    torch.testing.assert_close(nothing.solve(torch.ones(N, 1).double()), torch.ones(N, 1).double())


@pytest.mark.parametrize("rank", [0, N + 1, 1.5, True])
def test_a_rank_that_is_none_is_refused(rank):
    with pytest.raises(BadInput, match="rank"):
        nystrom(lambda v: MATRIX @ v, MATRIX, rank)
