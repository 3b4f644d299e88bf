"""φ blurred by a Gaussian: E[φ(mean + std·η)] and E[φ'(mean + std·η)]."""

import math

import pytest
import torch

from notsodeep.gaussian.integral import _by_quadrature, smoothed
from notsodeep.gaussian.moments import moments
from tests.gaussian.scales import ROUND_OFF, float64
from tests.zoo import ACTIVATIONS, CONTINUOUS, OSCILLATING, away_from_kinks, build, each


@each(("hard_tanh", "hard_tanh:0.75,1.2", "elu", "elu:0.5"))
def test_closed_forms_are_the_integral(name):
    phi = build(name)
    mean, std = torch.meshgrid(
        float64(-1e3, -40.0, -3.0, -1.2, -0.5, 0.0, 1e-3, 0.7, 1.2, 5.0, 1e3),
        float64(1e-8, 1e-3, 0.1, 1.0, 7.0, 100.0, 1e3),
        indexing="ij",
    )
    closed, integral = smoothed(phi, mean, std), _by_quadrature(phi, mean, std)
    size = 1.0 + mean.abs() + std
    assert float(((closed[0] - integral[0]).abs() / size).max()) <= ROUND_OFF
    assert float((closed[1] - integral[1]).abs().max()) <= ROUND_OFF


@each(tuple(name for name in ACTIVATIONS if name not in OSCILLATING))
def test_no_mean_gives_the_moments(name):
    phi = build(name)
    std = float64(0.05, 1.0, 30.0)
    value, slope = smoothed(phi, torch.zeros_like(std), std)
    at = moments(phi, std)
    assert ((value - at.mean).abs() <= ROUND_OFF * at.gamma2.sqrt()).all()
    assert ((slope - at.e1).abs() <= ROUND_OFF * torch.minimum(at.q.sqrt(), at.gamma2.sqrt() / std)).all()


@each(CONTINUOUS)
def test_no_width_gives_the_function_itself(name):
    """std = 0: what is left of v | u when two samples are equal."""
    phi = build(name)
    mean = away_from_kinks(phi, reach=5.0, points=23)
    value, slope = smoothed(phi, mean, torch.zeros_like(mean))
    torch.testing.assert_close(value, phi(mean).detach(), rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(slope, phi.derivative(mean), rtol=1e-13, atol=1e-14)


@each(("relu", "softsign", "elu", "hard_tanh", "torch.relu"))
def test_no_width_at_a_kink(name):
    phi = build(name)
    mean = float64(*phi.kinks).reshape(-1)
    value, slope = smoothed(phi, mean, torch.zeros_like(mean))
    torch.testing.assert_close(value, phi(mean), rtol=1e-13, atol=1e-13)
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("mean", [-2.0, 0.0, 0.3])
def test_a_jump_is_a_point_mass_of_the_slope(mean):
    """E[sign(v)] = erf(m/(s√2)), and its derivative in m."""
    std = 0.7
    value, slope = smoothed(build("sign"), float64(mean), float64(std))
    assert float(value) == pytest.approx(math.erf(mean / (std * math.sqrt(2.0))), abs=1e-14)
    assert float(slope) == pytest.approx(2.0 * math.exp(-0.5 * (mean / std) ** 2) / (std * math.sqrt(2 * math.pi)), rel=1e-13)


def test_width_broadcasts():
    value, slope = smoothed(build("elu"), torch.zeros(2, 3, dtype=torch.float64), float64(0.5, 1.0)[:, None])
    assert value.shape == slope.shape == (2, 3)
