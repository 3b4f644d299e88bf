"""Block Lanczos against the full spectrum, and what it costs in products."""

import pytest
import torch

from notsodeep.errors import BadInput, NotConverged
from notsodeep.linalg.eigen import BlockLanczos, top_eigenpairs


def rotated(values, dtype=torch.float64):
    """A symmetric matrix with these eigenvalues."""
    values = torch.as_tensor(values, dtype=torch.float64)
    n = len(values)
    basis = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(3))).Q
    matrix = (basis * values) @ basis.T
    return (0.5 * (matrix + matrix.T)).to(dtype)


N = 300
SPECTRA = {
    "decaying": 1.0 / torch.arange(1, N + 1).double() ** 2,
    "flat bulk, spikes": torch.cat([torch.tensor([100.0, 30.0, 10.0]), torch.linspace(0.1, 1.0, N - 3)]).double(),
    "no gap": torch.linspace(0.0, 1.0, N).double(),
    "negative too": torch.linspace(-3.0, 1.0, N).double(),
    "all equal": torch.ones(N).double(),
    "copies": torch.tensor([5.0] * 4 + [2.0] * 7 + [1.0] * (N - 11)).double(),
    "low rank": torch.cat([torch.tensor([3.0, 2.0, 1.0]), torch.zeros(N - 3)]).double(),
    "zero": torch.zeros(N).double(),
}


@pytest.mark.parametrize("k", [1, 5, 9])
@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
def test_pairs_are_those_of_the_dense_twin(spectrum, k):
    matrix = rotated(spectrum)
    found = top_eigenpairs(lambda v: matrix @ v, k, matrix)
    expected = spectrum.sort(descending=True).values[:k]
    scale = float(spectrum.abs().max()) or 1.0
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-11 * scale)
    torch.testing.assert_close(found.vectors.T @ found.vectors, torch.eye(k).double(), rtol=0, atol=1e-12)
    residual = torch.linalg.vector_norm(matrix @ found.vectors - found.vectors * found.values, dim=0)
    assert float(residual.max()) <= 1.1e-8 * scale
    torch.testing.assert_close(residual / scale, found.residuals, rtol=0, atol=1e-8)


def test_restarts_do_not_change_the_answer(monkeypatch):
    monkeypatch.setattr("notsodeep.linalg.eigen._MOST_BLOCKS", 5)
    matrix = rotated(SPECTRA["no gap"])
    found = top_eigenpairs(lambda v: matrix @ v, 4, matrix, BlockLanczos(block=6))
    torch.testing.assert_close(found.values, SPECTRA["no gap"].flip(0)[:4], rtol=0, atol=1e-11)
    assert found.products > 5


@pytest.mark.parametrize("name", ["decaying", "flat bulk, spikes"])
def test_float32(name):
    matrix = rotated(SPECTRA[name], torch.float32)
    found = top_eigenpairs(lambda v: matrix @ v, 3, matrix)
    assert found.values.dtype == found.vectors.dtype == torch.float32
    expected = SPECTRA[name].sort(descending=True).values[:3]
    torch.testing.assert_close(found.values.double(), expected, rtol=0, atol=1e-5 * float(expected[0]))


def test_a_wider_block_takes_fewer_products():
    matrix = rotated(torch.linspace(0.0, 1.0, 500).double() ** 3)
    taken = [top_eigenpairs(lambda v: matrix @ v, 2, matrix, BlockLanczos(block=b)).products for b in (4, 8, 16, 32)]
    assert taken == sorted(taken, reverse=True)
    assert taken[-1] <= 0.6 * taken[0]


def test_a_small_matrix_costs_one_product_and_gives_all_pairs():
    matrix = rotated([3.0, -1.0, 2.0, 0.5, 0.1])
    found = top_eigenpairs(lambda v: matrix @ v, 5, matrix)
    assert found.products == 1
    torch.testing.assert_close(found.values, torch.tensor([3.0, 2.0, 0.5, 0.1, -1.0]).double())


def test_the_same_call_gives_the_same_digits():
    matrix = rotated(SPECTRA["no gap"])
    first, second = (top_eigenpairs(lambda v: matrix @ v, 3, matrix) for _ in range(2))
    assert torch.equal(first.vectors, second.vectors)


def test_errors_carry_numbers(monkeypatch):
    matrix = rotated(SPECTRA["no gap"])
    with pytest.raises(BadInput, match="301"):
        top_eigenpairs(lambda v: matrix @ v, 301, matrix)
    with pytest.raises(BadInput, match=r"k = 1\.5"):
        top_eigenpairs(lambda v: matrix @ v, 1.5, matrix)
    with pytest.raises(BadInput, match="tolerance = -1"):
        top_eigenpairs(lambda v: matrix @ v, 1, matrix, BlockLanczos(tolerance=-1))
    with pytest.raises(BadInput, match="block ≥ k"):
        top_eigenpairs(lambda v: matrix @ v, 5, matrix, BlockLanczos(block=4))
    with pytest.raises(BadInput, match="NaN"):
        top_eigenpairs(lambda v: v * float("nan"), 1, matrix)
    monkeypatch.setattr("notsodeep.linalg.eigen._MOST_PRODUCTS", 3)
    with pytest.raises(NotConverged, match="larger block") as raised:
        top_eigenpairs(lambda v: matrix @ v, 2, matrix)
    assert raised.value.steps == 3
    assert raised.value.residual > 1e-8
