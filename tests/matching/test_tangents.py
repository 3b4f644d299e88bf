"""The slopes of a network's kernel, forward through its layers, against differences of the kernel itself."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import Polynomial, activation
from notsodeep.kernels.names import Kernel, Match
from notsodeep.matching.layers import LINE, Layers, atoms
from notsodeep.matching.pairs import Pairs
from notsodeep.matching.series import Series

STEP = 1e-5


@pytest.fixture(scope="module")
def pairs():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(30, 12, generator=draw, dtype=torch.float64) / 12**0.5
    return Pairs.of(nsd.Implicit("x*tanh(x)", 0.3), x, 1.0)


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("kinds", [(1,), (2,), (1, 1), (2, 1), (1, 2), (2, 2)])
def test_slopes_are_those_of_differences(pairs, kinds, free):
    parts = atoms((pairs.net.phi, LINE, Polynomial((0.0, 0.0, 1.0)), activation("tanh")), pairs, free)
    layers = Layers(parts, kinds, pairs)
    unknowns = layers.start(np.random.default_rng(0).normal(size=(sum(kinds), len(parts))) * 0.4)
    unknowns += 0.1 * np.random.default_rng(1).normal(size=len(unknowns))
    ahead = [layers.errors(unknowns + step) - layers.errors(unknowns - step) for step in STEP * np.eye(len(unknowns))]
    expected = np.stack(ahead, axis=1) / (2.0 * STEP)
    np.testing.assert_allclose(layers.error_slopes(unknowns), expected, rtol=0.0, atol=1e-8 * np.abs(expected).max())


def test_steps_with_exact_slopes_are_those_with_differences(pairs):
    class Slow(Layers):
        _slopes = "2-point"

    parts = atoms((pairs.net.phi, LINE), pairs)
    fast, slow = (layers(parts, (1, 1), pairs) for layers in (Layers, Slow))
    start = fast.start(np.array([[0.5, 0.5]]), np.array([[0.8, 0.3]]))
    (one, error), (other, expected) = (layers._descended(start, "jac", 6) for layers in (fast, slow))
    assert error == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_differences_are_taken_where_gains_are_fitted(pairs):
    both = Pairs.of(pairs.net, torch.eye(6, dtype=torch.float64), 1.0, Match.BOTH)
    assert Kernel.TANGENT in both.targets
    assert not callable(Layers(atoms((LINE,), both), (1, 1), both)._slopes)


def test_the_slopes_of_a_series_are_those_of_differences():
    series, tau = Series(activation("elu"), 0.1, 3.0, 12), torch.linspace(0.2, 2.5, 9, dtype=torch.float64)
    numbers, slopes = series.with_slopes(tau)
    torch.testing.assert_close(numbers, series(tau), rtol=0.0, atol=1e-14)
    expected = (series(tau * np.exp(STEP)) - series(tau * np.exp(-STEP))) / (2.0 * STEP)
    torch.testing.assert_close(slopes, expected, rtol=0.0, atol=1e-8)
