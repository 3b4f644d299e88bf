"""Moments are differentiable in τ, and their derivatives are moments."""

import pytest
import torch
from torch import Tensor

from notsodeep.gaussian import moments
from tests.gaussian.scales import FIELDS, ROUND_OFF, float64
from tests.zoo import JUMPING, OSCILLATING, build, each

SMOOTH_FIELDS = tuple(field for field in FIELDS if field != "q")


@each()
def test_gradients_pass_gradcheck(name):
    phi = build(name)
    finite = SMOOTH_FIELDS if name in JUMPING else FIELDS
    tau = float64(0.3, 1.7).requires_grad_()
    for field in finite:
        assert torch.autograd.gradcheck(lambda t, f=field: getattr(moments(phi, t), f), (tau,), atol=1e-7, rtol=1e-6), field


@each()
def test_gradients_are_moments(name):
    """d/dτ E[φ(τξ)] = τ E[φ''] and d/dτ E[φ²(τξ)] = τ E[(φ²)''], here for τ from 1e-3 to 1e3."""
    phi = build(name)
    tau = float64(1e-3, 0.05, 1.0) if name in OSCILLATING else float64(1e-3, 0.05, 1.0, 30.0, 1e3)
    tau = tau.requires_grad_()
    at = moments(phi, tau)
    # What the expectations under the moved Gaussian are made of: E[φ(ξ² − 1)]/τ and E[φ²(ξ² − 1)]/τ.
    deviation = at.gamma2.detach().sqrt()
    mean_gap = (slope_in(tau, at.mean) - tau * at.e2).abs()
    power_gap = (slope_in(tau, at.gamma2) - tau * at.s2).abs()
    assert (mean_gap <= ROUND_OFF * deviation / tau).all()
    assert (power_gap <= ROUND_OFF * deviation.square() / tau).all()


def slope_in(tau: Tensor, value: Tensor) -> Tensor:
    if not value.requires_grad:  # E[sin] is the constant 0
        return torch.zeros_like(tau)
    (slope,) = torch.autograd.grad(value.sum(), tau, retain_graph=True)
    return slope


@pytest.mark.parametrize("field", FIELDS)
def test_gradients_of_each_sample_are_its_own(field):
    tau = float64(0.5, 1.0, 2.0).requires_grad_()
    value = getattr(moments(build("silu"), tau), field)
    (together,) = torch.autograd.grad(value.sum(), tau)
    alone = float64(1.0).requires_grad_()
    (single,) = torch.autograd.grad(getattr(moments(build("silu"), alone), field), alone)
    assert float(together[1]) == pytest.approx(float(single), rel=1e-12)
