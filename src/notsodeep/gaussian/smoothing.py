"""E[φ(v)] and E[φ'(v)] for v ~ N(mean, std²): φ blurred by a Gaussian, in closed form where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from notsodeep.activations import Activation, Elu, HardTanh
from notsodeep.approximation.quadrature import CUT, normal_rule

_SMALLEST_STD = 1e-300


def smoothed(phi: Activation, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """(E[φ(mean + std·η)], E[φ'(mean + std·η)]), the jumps of φ counted in the second."""
    std = std.clamp(min=_SMALLEST_STD).expand_as(mean)
    return _CLOSED.get(type(phi), _by_quadrature)(phi, mean, std)


def _by_quadrature(phi: Activation, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    reach = float((mean.abs() + CUT * std).max()) if mean.numel() else CUT
    mesh = phi.mesh(reach).within(reach) if phi.is_found_by_looking else phi.mesh(reach)
    rule = normal_rule(std, mesh.edges.to(mean.device), mean=mean)
    value, slope = rule.mean_of(phi(rule.u)), rule.mean_of(phi.derivative(rule.u))
    for place, size in mesh.jumps:
        slope = slope + size * _density((place - mean) / std) / std
    return value, slope


def _hinge(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """E[max(v, 0)] and P(v > 0)."""
    z = mean / std
    above = torch.special.ndtr(z)
    return mean * above + std * _density(z), above


def _hard_tanh(phi: HardTanh, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """clip(v, −c, c) = −c + max(v + c, 0) − max(v − c, 0)."""
    low, above_low = _hinge(mean + phi.c, std)
    high, above_high = _hinge(mean - phi.c, std)
    return phi.a * (low - high - phi.c), phi.a * (above_low - above_high)


def _elu(phi: Elu, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """max(v, 0) + scale·(E[e^v; v < 0] − P(v < 0)), with E[e^v; v < 0] = e^(m + s²/2) P(ξ < −m/s − s)."""
    hinge, above = _hinge(mean, std)
    z = mean / std
    shifted = z + std
    # Two forms of one number: erfcx where the exponential could overflow, the plain product elsewhere.
    scaled = 0.5 * torch.exp(-0.5 * z.square()) * torch.special.erfcx(shifted.clamp(min=0) / math.sqrt(2.0))
    plain = torch.exp((mean + 0.5 * std.square()).clamp(max=0)) * torch.special.ndtr(-shifted)
    exponential = torch.where(shifted > 0, scaled, plain)
    return hinge + phi.scale * (exponential - torch.special.ndtr(-z)), above + phi.scale * exponential


def _density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)


_CLOSED: dict[type[Activation], Callable[..., tuple[Tensor, Tensor]]] = {HardTanh: _hard_tanh, Elu: _elu}
