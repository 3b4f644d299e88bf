"""Targets: their values, their shapes, and where they are sampled."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep import separation as sep


@pytest.mark.parametrize("m", [1, 3, 7])
def test_the_sawtooth_goes_up_and_down(m):
    knots = torch.arange(2**m + 1, dtype=torch.float64) / 2**m
    assert torch.equal(sep.Sawtooth(m)(knots), torch.arange(2**m + 1, dtype=torch.float64) % 2)
    halves = (knots[1:] + knots[:-1]) / 2
    assert torch.equal(sep.Sawtooth(m)(halves), torch.full((2**m,), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("target", [sep.Sawtooth(3), sep.Steep(5), sep.Chirps()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_kinds_and_domain(target, dtype):
    x = target.sample(40, torch.Generator().manual_seed(0), dtype)
    assert x.shape == (40, target.dimension)
    assert x.dtype == dtype
    assert bool(((x >= 0) & (x <= 1)).all())
    y = target(x)
    assert y.shape == (40, 1)
    assert y.dtype == dtype
    assert torch.equal(target(x[:, 0]), y[:, 0])
    assert isinstance(target(x.numpy()), np.ndarray)
    assert torch.equal(x, target.sample(40, torch.Generator().manual_seed(0), dtype))
    with pytest.raises(nsd.BadInput, match="real numbers"):
        target(torch.ones(3, 1, dtype=torch.long))


@pytest.mark.parametrize("d", [3, 10, 20])
def test_the_steep_function_rises_at_the_end(d):
    target = sep.Steep(d)
    delta = 2.0**-d
    x = torch.tensor([0.0, 0.5, 1.0 - delta, 1.0], dtype=torch.float64)
    expected = [0.0, delta * 0.5 / (2 * (0.5 + delta)), (1 - delta) / 4, 0.5]
    torch.testing.assert_close(target(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0.0)
    first = target.sample(1000, torch.Generator().manual_seed(0))[:, 0]
    assert int((first >= 1.0 - delta).sum()) == 500


def test_chirps_are_a_mean_of_rising_tones():
    x = torch.linspace(0, 1, 7, dtype=torch.float64)
    one = sep.Chirps((2.0,), (3.0,))
    torch.testing.assert_close(one(x), torch.sin(2 * torch.pi * (2 * x + 1.5 * x**2)))
    both = sep.Chirps((2.0, 5.0), (3.0, 1.0))
    torch.testing.assert_close(both(x), (one(x) + sep.Chirps((5.0,), (1.0,))(x)) / 2)
    with pytest.raises(nsd.BadInput, match="1 starts and 2 rises"):
        sep.Chirps((1.0,), (1.0, 2.0))


@pytest.mark.parametrize(("name", "seen"), [("f1", 512), ("f2", 512), ("f4", 8)])
def test_the_seen_and_the_unseen_part_are_the_cube(name, seen):
    target = sep.BOOLEAN_TARGETS[name]
    known, hidden = target.seen_and_unseen()
    assert len(known) == len(hidden) == seen
    assert not bool(target.unseen(known).any())
    assert bool(target.unseen(hidden).all())
    assert len(torch.cat([known, hidden]).unique(dim=0)) == 2 * seen
    assert target(known).shape == (seen, 1)


def test_boolean_values():
    ones = torch.ones(1, 10, dtype=torch.float64)
    assert float(sep.BOOLEAN_TARGETS["f1"](ones)) == 12.5
    assert float(sep.BOOLEAN_TARGETS["f2"](ones)) == pytest.approx(sum(np.sin(np.pi * n / 10) for n in range(10)))
    assert float(sep.BOOLEAN_TARGETS["f3"](torch.ones(1, 21))) == 26.25
    x = torch.tensor([[1.0, -1.0, 1.0, 1.0], [1.0, 1.0, 1.0, -1.0]])
    assert sep.BOOLEAN_TARGETS["f4"](x).flatten().tolist() == [1.0, 2.0]
    with pytest.raises(nsd.BadInput, match="shape"):
        sep.BOOLEAN_TARGETS["f4"](torch.ones(2, 5))


def test_samples_of_a_boolean_target_are_seen():
    target = sep.BOOLEAN_TARGETS["f3"]
    x = target.sample(300, torch.Generator().manual_seed(0))
    assert x.shape == (300, 21)
    assert not bool(target.unseen(x).any())
    assert set(x.unique().tolist()) == {-1.0, 1.0}
