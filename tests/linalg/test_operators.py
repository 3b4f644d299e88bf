"""Every symmetric operator against its dense twin: one contract, many instances."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.kernels.exact.operator import TiledKernel
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.linalg.operators import SymmetricOperator


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def low_rank(n=40, r=5, kind="definite", diag="varying", dtype=torch.float64, seed=0):
    factor = normal(n, r, seed=seed, dtype=dtype)
    square = normal(r, r, seed=seed + 1, dtype=dtype)
    core = {
        "definite": square @ square.T + torch.eye(r, dtype=dtype),
        "indefinite": square + square.T,
        "singular": square[:, :1] @ square[:, :1].T,
        "zero": torch.zeros(r, r, dtype=dtype),
    }[kind]
    entries = {
        "varying": normal(n, seed=seed + 2, dtype=dtype).abs() + 0.5,
        "constant": torch.full((n,), 0.7, dtype=dtype),
        "signed": normal(n, seed=seed + 3, dtype=dtype),
    }[diag]
    return LowRankPlusDiagonal(factor, core, entries)


def written_out(op):
    """A low rank + diagonal matrix entry by entry, without `to_dense`."""
    return torch.einsum("ia,ab,jb->ij", op.factor, op.core, op.factor) + torch.diag(op.diag)


def data(n=90, p=12, seed=0, dtype=torch.float64):
    return normal(n, p, seed=seed, dtype=dtype) / p**0.5


def exact(net, x, kernel, tau0=None):
    if kernel == "conjugate":
        return nsd.conjugate_kernel(net, x, tau0=tau0)
    return nsd.tangent_kernel(net, x, tau0=tau0, readout="features" if kernel == "tangent" else kernel)


@dataclass(frozen=True)
class Instance:
    op: Callable[[], Any]
    twin: Callable[[], Tensor]
    solved: float
    """Relative residual that `solve` may leave."""


def _low_rank(**options):
    return Instance(lambda: low_rank(**options), lambda: written_out(low_rank(**options)), 1e-9)


def _tiled(net, kernel, **options):
    def twin():
        ridge = torch.as_tensor(options.get("ridge", 0.0), dtype=torch.float64).expand(90)
        return exact(net, data(), kernel, options.get("tau0")) + torch.diag(ridge)

    return Instance(lambda: TiledKernel(net, data(), kernel, **options), twin, 1e-6)


RELU, TANH = nsd.Implicit("relu", 0.2), nsd.Implicit("tanh", 0.2)
INSTANCES = {
    "definite, varying": _low_rank(),
    "definite, constant": _low_rank(diag="constant"),
    "indefinite, varying": _low_rank(kind="indefinite"),
    "indefinite, constant": _low_rank(kind="indefinite", diag="constant"),
    "indefinite, signed": _low_rank(kind="indefinite", diag="signed"),
    "singular core": _low_rank(kind="singular"),
    "zero core": _low_rank(kind="zero"),
    "rank above n": _low_rank(n=6, r=11),
    "rank above n, constant": _low_rank(n=6, r=11, diag="constant"),
    "rank n, constant": _low_rank(n=6, r=6, diag="constant"),
    "rank one": _low_rank(r=1),
    "rank zero": _low_rank(r=0),
    "rank zero, constant": _low_rank(r=0, diag="constant"),
    "one by one": _low_rank(n=1, r=1),
    "two by two": _low_rank(n=2, r=1),
    "three by three": _low_rank(n=3, r=1),
    "larger": _low_rank(n=200, r=12, kind="indefinite"),
    "relu, conjugate": _tiled(RELU, "conjugate"),
    "relu, tangent, ridge": _tiled(RELU, "tangent", ridge=0.1),
    "relu, tiles of 23": _tiled(RELU, "conjugate", tile=23),
    "relu, one tile, not kept": _tiled(RELU, "conjugate", tile=500, keep=False),
    "relu, tiles of 50, not kept": _tiled(RELU, "tangent", tile=50, keep=False, ridge=0.01),
    "tanh, preactivation": _tiled(TANH, nsd.kernels.Kernel.PREACTIVATION, tile=32),
    "tanh, given tau0": _tiled(TANH, "conjugate", tau0=1.4, tile=(40, 40)),
    "elu, ridges": _tiled(nsd.Implicit("elu", 0.2), "conjugate", tile=32, ridge=normal(90, seed=8).abs()),
    "explicit": _tiled(nsd.Explicit(["relu", "tanh"]), "tangent", tile=25),
}


@pytest.fixture(params=INSTANCES.values(), ids=INSTANCES.keys())
def instance(request):
    return request.param


@pytest.fixture
def op(instance):
    return instance.op()


@pytest.fixture
def twin(instance):
    return instance.twin()


def close(found, expected, rtol=1e-10):
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0.0, atol=rtol * scale + 1e-300)


def right_hand_sides(op):
    return normal(op.shape[0], seed=9), normal(op.shape[0], 3, seed=10)


def test_it_is_an_operator(op, twin):
    assert isinstance(op, SymmetricOperator)
    assert op.shape == tuple(twin.shape)
    assert op.dtype == torch.float64


def test_products(op, twin):
    for v in right_hand_sides(op):
        close(op.matvec(v), twin @ v, 1e-13)
        close(op @ v, op.matvec(v), 0.0)
        assert op.matvec(v).shape == v.shape
    assert op.matvec(torch.ones(op.shape[0])).dtype == torch.float64
    assert op.matvec(torch.ones(op.shape[0], dtype=torch.int64)).dtype == torch.float64


def test_dense(op, twin):
    close(op.to_dense(), twin, 1e-13 if isinstance(op, TiledKernel) else 1e-14)


def test_trace_and_diagonal(op, twin):
    close(op.diagonal(), twin.diagonal(), 1e-13)
    assert float(op.trace()) == pytest.approx(float(twin.trace()), rel=1e-12)


def test_add_ridge(op, twin):
    ridge, rtol = normal(op.shape[0], seed=4).abs(), 1e-13 if isinstance(op, TiledKernel) else 1e-14
    close(op.add_ridge(0.3).to_dense(), twin + 0.3 * torch.eye(len(twin), dtype=torch.float64), rtol)
    close(op.add_ridge(ridge).to_dense(), twin + torch.diag(ridge), rtol)
    close(op.to_dense(), twin, rtol)


def test_solve(op, twin, instance):
    for right in right_hand_sides(op):
        solution = op.solve(right)
        assert solution.shape == right.shape
        close(twin @ solution, right, instance.solved)
        if isinstance(op, LowRankPlusDiagonal):
            close(solution, torch.linalg.solve(twin, right), 1e-8)


def test_logdet(op, twin):
    """Exact, or within four standard errors; NaN where the determinant is negative, as torch.logdet has it."""
    tiled = isinstance(op, TiledKernel)
    (sign, expected), found = torch.linalg.slogdet(twin), op.logdet(probes=20, steps=60) if tiled else op.logdet()
    if float(sign) < 0:
        assert np.isnan(float(found))
    elif tiled:
        assert abs(float(found) - float(expected)) <= 4 * found.error + 1e-6
    else:
        assert float(found) == pytest.approx(float(expected), rel=1e-10, abs=1e-10)


def test_all_eigenvalues(op, twin):
    close(op.eigvalsh(), torch.linalg.eigvalsh(twin), 1e-11 if isinstance(op, TiledKernel) else 1e-12)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_largest_eigenvalues(op, twin, k):
    """The k largest, ascending; all of them when there are fewer."""
    close(op.eigvalsh(k), torch.linalg.eigvalsh(twin)[-k:], 1e-11 if isinstance(op, TiledKernel) else 1e-10)


def test_top_eigenpairs(op, twin):
    k = min(4, len(twin))
    values, vectors = op.eigsh(k)
    close(values, torch.linalg.eigvalsh(twin).flip(0)[:k], 1e-11 if isinstance(op, TiledKernel) else 1e-10)
    assert vectors.shape == (len(twin), k)
    close(vectors.T @ vectors, torch.eye(k, dtype=torch.float64))
    close(twin @ vectors, vectors * values, 1e-7)


def test_spectral_norm(op, twin):
    assert op.spectral_norm() == pytest.approx(float(torch.linalg.matrix_norm(twin, 2)), rel=1e-10)


def test_numpy_is_answered_with_numpy(op, twin, instance):
    v = np.linspace(-1.0, 1.0, len(twin)) + 2.0
    for found, expected in ((op.matvec(v), twin.numpy() @ v), (twin.numpy() @ op.solve(v), v)):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=10 * instance.solved * abs(expected).max())
    assert isinstance(op @ v, np.ndarray)
    assert isinstance(op.solve(v), np.ndarray)


def test_results_are_the_same_every_time(op, instance):
    again = instance.op()
    assert op.spectral_norm() == again.spectral_norm()
    assert torch.equal(op.eigvalsh(2), again.eigvalsh(2))


def test_vectors_that_do_not_fit(op):
    n = op.shape[0]
    for shape in [(n + 1,), (n + 1, 2), (n + 2, n), (), (n, 1, 1)]:
        for method in (op.matvec, op.solve):
            with pytest.raises(nsd.BadInput, match=f"{n} × {n}"):
                method(torch.ones(shape))


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_a_number_of_eigenvalues_is_a_whole_number_from_one(op, k):
    with pytest.raises(nsd.BadInput, match=f"k must be a whole number ≥ 1, got {k}"):
        op.eigvalsh(k)
    with pytest.raises(nsd.BadInput, match=r"k = |k must be"):
        op.eigsh(k)


def test_a_dense_matrix_that_cannot_fit(op, monkeypatch):
    monkeypatch.setattr("notsodeep.arrays.available_bytes", lambda _: 1)
    with pytest.raises(nsd.BadInput, match="GiB"):
        op.to_dense()
