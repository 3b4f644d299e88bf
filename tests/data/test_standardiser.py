"""Centring and scaling with statistics that are kept."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import notsodeep as nsd
from notsodeep.data import Standardiser, standardiser
from notsodeep.data.standardiser import standardised


def test_statistics_by_hand(monkeypatch):
    x = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 5
    mean = x.mean(0)
    scale = (x - mean).square().sum(1).mean().sqrt()
    for entries in (2**20, 21, 1):  # one block, blocks of 3 rows, of 1 row
        monkeypatch.setattr(standardiser, "_ENTRIES", entries)
        found = Standardiser.of(x)
        assert torch.allclose(found.mean, mean, rtol=1e-13)
        assert found.scale == pytest.approx(float(scale), rel=1e-13)
    other = torch.ones(2, 7, dtype=torch.float64)
    assert torch.allclose(found(other), (other - mean) / scale)
    assert nsd.tau0(standardised(x)) == pytest.approx(1.0)


def test_the_type_stays_and_the_sums_are_exact():
    x = torch.full((100_000, 3), 1000.0)
    x[::2] += 1.0
    found = Standardiser.of(x)
    assert found.mean.tolist() == [1000.5] * 3  # float32 sums would be off by more than a thousandth
    assert found.scale == pytest.approx(0.75**0.5)
    assert found(x).dtype == torch.float32


def test_no_float64_copy_of_all_the_data():
    sizes = []
    x = torch.rand(12_000, 784)
    with _Largest(sizes):
        Standardiser.of(x)
    assert 784 <= max(sizes) <= 2**20 < x.numel()


class _Largest(TorchDispatchMode):
    """Notes the entries of every float64 result."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.sizes.append(result.numel())
        return result


def test_bad_data():
    with pytest.raises(nsd.BadInput, match="All 5 samples are equal"):
        Standardiser.of(torch.full((5, 2), 0.1))
    with pytest.raises(nsd.BadInput, match=r"x has 3 features.*with 2"):
        Standardiser.of(torch.eye(2))(torch.eye(3))
    found = Standardiser.of(torch.tensor([[1e6, 0.0], [1e6, 1e-3]]))  # one feature is constant, and large
    assert found.scale == pytest.approx(5e-4)
