"""Norms and leading directions of dense matrices."""

import pytest
import torch

from notsodeep.errors import BadInput
from notsodeep.linalg.eigen import Arpack, leading_directions, spectral_norm, top_eigenpairs
from notsodeep.tolerances import DENSE_SPECTRUM

LARGE = DENSE_SPECTRUM + 60


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def symmetric(n, seed=0):
    a = normal(n, n, seed=seed)
    return a + a.T


def orthogonal(n, seed=0):
    return torch.linalg.qr(normal(n, n, seed=seed)).Q


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (30, 30), (20, 50), (50, 20), (1, 9), (LARGE, 30), (LARGE, LARGE)])
def test_any_matrix(shape):
    a = normal(*shape)
    assert spectral_norm(a) == pytest.approx(float(torch.linalg.matrix_norm(a, 2)), rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 30, DENSE_SPECTRUM, LARGE])
def test_symmetric(n):
    a = symmetric(n)
    assert spectral_norm(a) == pytest.approx(float(torch.linalg.eigvalsh(a).abs().max()), rel=1e-10)


@pytest.mark.parametrize("n", [30, LARGE])
def test_the_largest_modulus_may_be_negative(n):
    basis, values = orthogonal(n), torch.linspace(0.0, 1.0, n, dtype=torch.float64)
    values[0] = -1.5
    assert spectral_norm((basis * values) @ basis.T) == pytest.approx(1.5, rel=1e-10)


@pytest.mark.parametrize("n", [30, LARGE])
def test_two_opposite_extremes(n):
    """±2: Lanczos on one vector has to tell them apart."""
    basis, values = orthogonal(n), torch.zeros(n, dtype=torch.float64)
    values[0], values[1] = 2.0, -2.0
    assert spectral_norm((basis * values) @ basis.T) == pytest.approx(2.0, rel=1e-10)


@pytest.mark.parametrize("n", [30, LARGE])
def test_nearly_symmetric_counts_as_symmetric_and_asymmetric_does_not(n):
    a = symmetric(n)
    rounded = a + 1e-13 * normal(n, n, seed=1)
    assert spectral_norm(rounded) == pytest.approx(float(torch.linalg.matrix_norm(a, 2)), rel=1e-9)
    skewed = a + normal(n, n, seed=1)
    assert spectral_norm(skewed) == pytest.approx(float(torch.linalg.matrix_norm(skewed, 2)), rel=1e-9)


@pytest.mark.parametrize("n", [30, LARGE])
def test_a_shift_matrix_is_not_symmetric(n):
    """Its eigenvalues are 0, its norm 1."""
    shift = torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
    assert spectral_norm(shift) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("shape", [(5, 5), (5, 8), (LARGE, LARGE), (LARGE, LARGE + 40)])
def test_zero_has_norm_zero(shape):
    """The gap between two equal kernels."""
    assert spectral_norm(torch.zeros(shape, dtype=torch.float64)) == 0.0


@pytest.mark.parametrize("n", [30, LARGE])
def test_float32(n):
    a = symmetric(n)
    assert spectral_norm(a.float()) == pytest.approx(float(torch.linalg.matrix_norm(a, 2)), rel=1e-5)


@pytest.mark.parametrize("n", [30, LARGE])
def test_the_identity(n):
    assert spectral_norm(torch.eye(n, dtype=torch.float64)) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(("which", "part"), [("LA", slice(-3, None)), ("SA", slice(0, 3))])
def test_extreme_eigenvalues_from_products_alone(which, part):
    a = symmetric(50)
    found = top_eigenpairs(lambda v: a @ v, 3, a, Arpack(which)).values.flip(0)
    torch.testing.assert_close(found, torch.linalg.eigvalsh(a)[part], rtol=1e-10, atol=1e-10)


def low_rank_data(n, p, k, seed=0):
    """Singular values 10, 9, … on top of noise of size 0.1."""
    left = torch.linalg.qr(normal(n, k, seed=seed)).Q
    right = torch.linalg.qr(normal(p, k, seed=seed + 1)).Q
    sizes = 10.0 - torch.arange(k, dtype=torch.float64)
    return (left * sizes) @ right.T + 0.1 / n**0.5 * normal(n, p, seed=seed + 2)


@pytest.mark.parametrize(("n", "p", "k"), [(60, 20, 3), (10, 40, 4), (25, 2100, 3), (60, 5, 5), (7, 1, 1)])
def test_leading_directions_are_right_singular_vectors(n, p, k):
    x = low_rank_data(n, p, min(k, n, p))
    found = leading_directions(x, k)
    assert found.shape == (p, k)
    torch.testing.assert_close(found.T @ found, torch.eye(k, dtype=torch.float64), rtol=0.0, atol=1e-10)
    exact = torch.linalg.svd(x, full_matrices=False).Vh[:k].T
    torch.testing.assert_close((found * exact).sum(0).abs(), torch.ones(k, dtype=torch.float64), rtol=0.0, atol=1e-8)


def test_leading_directions_keep_the_dtype():
    assert leading_directions(low_rank_data(30, 10, 2).float(), 2).dtype == torch.float32


def test_more_directions_than_there_are():
    """Five features have five directions; seven cannot be had, and two is no answer."""
    with pytest.raises(BadInput, match="5"):
        leading_directions(low_rank_data(30, 5, 2), 7)
