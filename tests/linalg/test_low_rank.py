"""LowRankPlusDiagonal against its dense twin: one contract, many instances."""

import numpy as np
import pytest
import torch

from notsodeep.errors import BadInput
from notsodeep.linalg.low_rank import LowRankPlusDiagonal


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operator(n=40, r=5, kind="definite", diag="varying", dtype=torch.float64, seed=0):
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


def dense(op):
    """Written out entry by entry, without `to_dense`."""
    return torch.einsum("ia,ab,jb->ij", op.factor, op.core, op.factor) + torch.diag(op.diag)


INSTANCES = {
    "definite, varying": {},
    "definite, constant": {"diag": "constant"},
    "indefinite, varying": {"kind": "indefinite"},
    "indefinite, constant": {"kind": "indefinite", "diag": "constant"},
    "indefinite, signed": {"kind": "indefinite", "diag": "signed"},
    "singular core": {"kind": "singular"},
    "zero core": {"kind": "zero"},
    "rank above n": {"n": 6, "r": 11},
    "rank above n, constant": {"n": 6, "r": 11, "diag": "constant"},
    "rank n, constant": {"n": 6, "r": 6, "diag": "constant"},
    "rank one": {"r": 1},
    "rank zero": {"r": 0},
    "rank zero, constant": {"r": 0, "diag": "constant"},
    "one by one": {"n": 1, "r": 1},
    "two by two": {"n": 2, "r": 1},
    "three by three": {"n": 3, "r": 1},
    "larger": {"n": 200, "r": 12, "kind": "indefinite"},
}


@pytest.fixture(params=INSTANCES.values(), ids=INSTANCES.keys())
def op(request):
    return operator(**request.param)


def close(found, expected, rtol=1e-10):
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0.0, atol=rtol * scale + 1e-300)


def test_to_dense(op):
    close(op.to_dense(), dense(op), 1e-14)


def test_matvec(op):
    v = normal(op.shape[0], seed=9)
    many = normal(op.shape[0], 3, seed=10)
    close(op.matvec(v), dense(op) @ v, 1e-13)
    close(op.matvec(many), dense(op) @ many, 1e-13)
    close(op @ v, op.matvec(v), 0.0)
    assert op.matvec(v).shape == v.shape
    assert op.matvec(many).shape == many.shape


def test_solve(op):
    v = normal(op.shape[0], seed=9)
    many = normal(op.shape[0], 3, seed=10)
    for right in (v, many):
        solution = op.solve(right)
        assert solution.shape == right.shape
        close(dense(op) @ solution, right, 1e-9)
        close(solution, torch.linalg.solve(dense(op), right), 1e-8)


def test_inverse_diagonal(op):
    expected = torch.linalg.inv(dense(op)).diagonal()
    torch.testing.assert_close(op.inverse_diagonal(), expected, rtol=1e-8, atol=1e-9 * float(expected.abs().max()))


def test_logdet(op):
    sign, expected = torch.linalg.slogdet(dense(op))
    found = op.logdet()
    if float(sign) < 0:
        assert torch.isnan(found)
    else:
        assert float(found) == pytest.approx(float(expected), rel=1e-10, abs=1e-10)


def test_trace_and_diagonal(op):
    close(op.diagonal(), dense(op).diagonal(), 1e-13)
    assert float(op.trace()) == pytest.approx(float(dense(op).trace()), rel=1e-12)


def test_all_eigenvalues(op):
    close(op.eigvalsh(), torch.linalg.eigvalsh(dense(op)), 1e-12)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_largest_eigenvalues(op, k):
    """The k largest, ascending; all of them when there are fewer."""
    close(op.eigvalsh(k), torch.linalg.eigvalsh(dense(op))[-k:], 1e-10)


def test_spectral_norm(op):
    assert op.spectral_norm() == pytest.approx(float(torch.linalg.matrix_norm(dense(op), 2)), rel=1e-10)


def test_add_ridge(op):
    close(op.add_ridge(0.3).to_dense(), dense(op) + 0.3 * torch.eye(op.shape[0], dtype=torch.float64), 1e-14)
    ridge = normal(op.shape[0], seed=4).abs()
    close(op.add_ridge(ridge).to_dense(), dense(op) + torch.diag(ridge), 1e-14)


def test_results_are_the_same_every_time(op):
    again = LowRankPlusDiagonal(op.factor.clone(), op.core.clone(), op.diag.clone())
    assert op.spectral_norm() == again.spectral_norm()
    assert torch.equal(op.eigvalsh(2), again.eigvalsh(2))


@pytest.mark.parametrize("k", [8, 20, 37, 38, 39, 40])
def test_eigenvalues_of_high_multiplicity(k):
    """Beyond the rank all eigenvalues are d: Lanczos has to find copies of one number."""
    op = operator(diag="constant")
    close(op.eigvalsh(k), torch.linalg.eigvalsh(dense(op))[-k:], 1e-10)


@pytest.mark.parametrize("kind", ["definite", "indefinite"])
def test_float32(kind):
    op = operator(n=60, kind=kind, dtype=torch.float32)
    twin = dense(op).double()
    v = normal(60, seed=9, dtype=torch.float32)
    assert op.matvec(v).dtype == op.solve(v).dtype == op.eigvalsh().dtype == op.eigvalsh(3).dtype == torch.float32
    close(op.matvec(v).double(), twin @ v.double(), 1e-5)
    close(op.solve(v).double(), torch.linalg.solve(twin, v.double()), 1e-3)
    close(op.eigvalsh(3).double(), torch.linalg.eigvalsh(twin)[-3:], 1e-5)
    assert op.spectral_norm() == pytest.approx(float(torch.linalg.matrix_norm(twin, 2)), rel=1e-5)
    sign, expected = torch.linalg.slogdet(twin)
    found = float(op.logdet())
    assert np.isnan(found) if float(sign) < 0 else found == pytest.approx(float(expected), rel=1e-4)


def test_other_dtypes_are_cast_to_its_own():
    op = operator()
    assert op.matvec(torch.ones(40)).dtype == torch.float64
    assert op.matvec(torch.ones(40, dtype=torch.int64)).dtype == torch.float64


def test_numpy_is_answered_with_numpy():
    op, v = operator(), np.linspace(-1.0, 1.0, 40)
    for found, expected in (
        (op.matvec(v), dense(op).numpy() @ v),
        (op.solve(v), np.linalg.solve(dense(op).numpy(), v)),
    ):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert isinstance(op @ v, np.ndarray)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_badly_scaled_diagonals_are_solved(scale):
    """Iterative refinement: the diagonal far below or far above the low-rank part."""
    op = operator()
    op = LowRankPlusDiagonal(op.factor, op.core, scale * op.diag)
    v = normal(40, seed=9)
    exact = torch.linalg.solve(dense(op), v)
    assert float((op.matvec(op.solve(v)) - v).norm() / v.norm()) <= 1e-6
    close(op.solve(v), exact, 1e-5)


def test_negative_determinant_is_not_a_number():
    """As torch.logdet has it."""
    n = 5
    op = LowRankPlusDiagonal(
        torch.zeros(n, 1, dtype=torch.float64),
        torch.zeros(1, 1, dtype=torch.float64),
        torch.ones(n, dtype=torch.float64),
    )
    negative = op.add_ridge(torch.tensor([-2.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    assert torch.isnan(negative.logdet())
    assert torch.isnan(torch.logdet(negative.to_dense()))
    positive = op.add_ridge(torch.tensor([-2.0, -3.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    assert float(positive.logdet()) == pytest.approx(float(torch.logdet(positive.to_dense())))


@pytest.mark.parametrize("method", ["solve", "logdet"])
def test_a_zero_diagonal_is_refused_with_a_remedy(method):
    op = LowRankPlusDiagonal(
        normal(4, 1), torch.eye(1, dtype=torch.float64), torch.tensor([1.0, 0.0, 2.0, 0.0]).double()
    )
    with pytest.raises(BadInput, match="add_ridge") as raised:
        op.solve(torch.ones(4)) if method == "solve" else op.logdet()
    assert "2" in str(raised.value)


def test_a_zero_operator_has_norm_zero():
    zero = LowRankPlusDiagonal(torch.zeros(5, 1), torch.zeros(1, 1), torch.zeros(5))
    assert zero.spectral_norm() == 0.0
    assert torch.equal(zero.eigvalsh(2), torch.zeros(2))


@pytest.mark.parametrize(
    ("factor", "core", "diag"),
    [
        ((4, 2), (3, 3), (4,)),
        ((4, 2), (2, 2), (5,)),
        ((4, 2), (2, 3), (4,)),
        ((4, 2), (2, 2), (4, 1)),
        ((4,), (1, 1), (4,)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(factor, core, diag):
    with pytest.raises(BadInput, match="expected"):
        LowRankPlusDiagonal(torch.ones(factor), torch.ones(core), torch.ones(diag))


@pytest.mark.parametrize("shape", [(39,), (41, 2), (2, 40), (), (40, 1, 1)])
@pytest.mark.parametrize("method", ["matvec", "solve"])
def test_vectors_that_do_not_fit_are_refused(method, shape):
    with pytest.raises(BadInput, match="40"):
        getattr(operator(), method)(torch.ones(shape))


@pytest.mark.parametrize("k", [0, -1])
def test_a_number_of_eigenvalues_must_be_positive(k):
    with pytest.raises(BadInput):
        operator().eigvalsh(k)


def huge(n=20_000_000):
    """Three numbers in memory, however many rows."""
    one = torch.ones((), dtype=torch.float64)
    return LowRankPlusDiagonal(one.expand(n, 1), one.expand(1, 1), one.expand(n))


@pytest.mark.parametrize("method", ["to_dense"])
def test_a_dense_matrix_that_cannot_fit_is_refused_before_it_is_made(method):
    with pytest.raises(BadInput, match="GiB") as raised:
        getattr(huge(), method)()
    assert raised.value.needed == 8 * 20_000_000**2


def test_text_and_shape():
    op = operator(dtype=torch.float32)
    assert repr(op) == "LowRankPlusDiagonal(n=40, rank=5, float32)"
    assert op.shape == (40, 40)
    assert op.rank == 5
