"""LowRankPlusDiagonal beyond the contract of operators: inverses, extreme spectra and scales, errors."""

import numpy as np
import pytest
import torch

from notsodeep.errors import BadInput
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from tests.linalg.test_operators import INSTANCES, close, low_rank, normal, written_out

LOW_RANK = {name: each for name, each in INSTANCES.items() if isinstance(each.op(), LowRankPlusDiagonal)}


@pytest.mark.parametrize("instance", LOW_RANK.values(), ids=LOW_RANK.keys())
def test_inverse_diagonal(instance):
    op = instance.op()
    expected = torch.linalg.inv(instance.twin()).diagonal()
    torch.testing.assert_close(op.inverse_diagonal(), expected, rtol=1e-8, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("k", [8, 20, 37, 38, 39, 40])
def test_eigenvalues_of_high_multiplicity(k):
    """Beyond the rank all eigenvalues are d: Lanczos has to find copies of one number."""
    op = low_rank(diag="constant")
    close(op.eigvalsh(k), torch.linalg.eigvalsh(written_out(op))[-k:], 1e-10)


@pytest.mark.parametrize("kind", ["definite", "indefinite"])
def test_float32(kind):
    op = low_rank(n=60, kind=kind, dtype=torch.float32)
    twin = written_out(op).double()
    v = normal(60, seed=9, dtype=torch.float32)
    assert op.matvec(v).dtype == op.solve(v).dtype == op.eigvalsh().dtype == op.eigvalsh(3).dtype == torch.float32
    close(op.matvec(v).double(), twin @ v.double(), 1e-5)
    close(op.solve(v).double(), torch.linalg.solve(twin, v.double()), 1e-3)
    close(op.eigvalsh(3).double(), torch.linalg.eigvalsh(twin)[-3:], 1e-5)
    assert op.spectral_norm() == pytest.approx(float(torch.linalg.matrix_norm(twin, 2)), rel=1e-5)
    sign, expected = torch.linalg.slogdet(twin)
    found = float(op.logdet())
    assert np.isnan(found) if float(sign) < 0 else found == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_badly_scaled_diagonals_are_solved(scale):
    """Iterative refinement: the diagonal far below or far above the low-rank part."""
    op = low_rank()
    op = LowRankPlusDiagonal(op.factor, op.core, scale * op.diag)
    v = normal(40, seed=9)
    exact = torch.linalg.solve(written_out(op), v)
    assert float((op.matvec(op.solve(v)) - v).norm() / v.norm()) <= 1e-6
    close(op.solve(v), exact, 1e-5)


def test_negative_determinant_is_not_a_number():
    """As torch.logdet has it."""
    n = 5
    op = LowRankPlusDiagonal(
        torch.zeros(n, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    )
    negative = op.add_ridge(torch.tensor([-2.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    assert torch.isnan(negative.logdet())
    assert torch.isnan(torch.logdet(negative.to_dense()))
    positive = op.add_ridge(torch.tensor([-2.0, -3.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    assert float(positive.logdet()) == pytest.approx(float(torch.logdet(positive.to_dense())))


@pytest.mark.parametrize("method", ["solve", "logdet"])
def test_a_zero_diagonal_is_refused_with_a_remedy(method):
    op = LowRankPlusDiagonal(normal(4, 1), torch.eye(1, dtype=torch.float64), torch.tensor([1.0, 0.0, 2.0, 0.0]).double())
    with pytest.raises(BadInput, match="add_ridge") as raised:
        op.solve(torch.ones(4)) if method == "solve" else op.logdet()
    assert "2" in str(raised.value)


def test_a_zero_operator_has_norm_zero():
    zero = LowRankPlusDiagonal(torch.zeros(5, 1), torch.zeros(1, 1), torch.zeros(5))
    assert zero.spectral_norm() == 0.0
    assert torch.equal(zero.eigvalsh(2), torch.zeros(2))


@pytest.mark.parametrize(
    ("factor", "core", "diag"),
    [((4, 2), (3, 3), (4,)), ((4, 2), (2, 2), (5,)), ((4, 2), (2, 3), (4,)), ((4, 2), (2, 2), (4, 1)), ((4,), (1, 1), (4,))],
)
def test_shapes_that_do_not_fit_are_refused(factor, core, diag):
    with pytest.raises(BadInput, match="expected"):
        LowRankPlusDiagonal(torch.ones(factor), torch.ones(core), torch.ones(diag))


def huge(n=20_000_000):
    """Three numbers in memory, however many rows."""
    one = torch.ones((), dtype=torch.float64)
    return LowRankPlusDiagonal(one.expand(n, 1), one.expand(1, 1), one.expand(n))


def test_a_dense_matrix_that_cannot_fit_is_refused_before_it_is_made():
    with pytest.raises(BadInput, match="GiB") as raised:
        huge().to_dense()
    assert raised.value.needed == 8 * 20_000_000**2


def test_text_and_shape():
    op = low_rank(dtype=torch.float32)
    assert repr(op) == "LowRankPlusDiagonal(n=40, rank=5, float32)"
    assert op.shape == (40, 40)
    assert op.rank == 5
