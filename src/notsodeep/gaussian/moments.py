"""The Gaussian moments of an activation that the theorems are written in.

All are expectations over u = τξ, ξ ~ N(0, 1), to round-off for every τ, kinks included, and differentiable in τ.
Ref: THEORY section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from notsodeep.activations import Activation, Cos, Rectifier, Sin
from notsodeep.gaussian.affine import affine_parts
from notsodeep.numerics.quadrature import NormalRule, gauss_hermite_rule, normal_rule

_CHUNK = 1 << 19  # quadrature nodes held at once
_SMALLEST_TAU = 1e-100  # stands for τ = 0, where u is 0 and every moment is its limit


@dataclass(frozen=True)
class Moments:
    """Each field has the shape of τ."""

    mean: Tensor
    """E[φ]"""
    e1: Tensor
    """E[φ']"""
    e2: Tensor
    """E[φ'']"""
    e3: Tensor
    """E[φ''']"""
    gamma2: Tensor
    """E[φ²]"""
    s2: Tensor
    """E[(φ²)'']"""
    q: Tensor
    """E[φ'²]; infinite where φ jumps"""

    def __getitem__(self, index: Any) -> Moments:
        return Moments(*(getattr(self, field.name)[index] for field in fields(self)))


def moments(phi: Activation, tau: Tensor) -> Moments:
    """All the moments of `phi` at each τ ≥ 0 (float64)."""
    core, factor, offset = affine_parts(phi)
    tau = tau.to(torch.float64).clamp(min=_SMALLEST_TAU)
    m = _CLOSED.get(type(core), _by_quadrature)(core, tau)
    return Moments(
        mean=factor * m.mean - offset,
        e1=factor * m.e1,
        e2=factor * m.e2,
        e3=factor * m.e3,
        gamma2=factor**2 * m.gamma2 - 2.0 * factor * offset * m.mean + offset**2,
        s2=factor**2 * m.s2 - 2.0 * factor * offset * m.e2,
        q=factor**2 * m.q,
    )


def moments_at(phi: Activation, tau: float) -> Moments:
    """The moments at one τ, as scalars."""
    return moments(phi, torch.tensor(tau, dtype=torch.float64))


def expectation_rule(phi: Activation, tau: Tensor, extra_degree: int = 4, spacing: float = 3.0) -> NormalRule:
    """A rule for E[g(τξ)], g made of φ², φ'² and a polynomial in ξ of at most `extra_degree`."""
    if phi.degree is not None:
        return gauss_hermite_rule(tau, phi.degree + extra_degree // 2 + 1)
    return normal_rule(tau, phi.marks(tau.device), spacing=spacing)


def _by_quadrature(phi: Activation, tau: Tensor) -> Moments:
    flat = tau.reshape(-1)
    nodes = expectation_rule(phi, flat[:1]).u.shape[-1] if flat.numel() else 1
    parts = [_quadrature_chunk(phi, part) for part in flat.split(max(1, _CHUNK // nodes))]
    return Moments(*(torch.cat([getattr(p, f.name) for p in parts]).reshape(tau.shape) for f in fields(Moments)))


def _quadrature_chunk(phi: Activation, tau: Tensor) -> Moments:
    """e2 = E[ξφ']/τ, e3 = E[(ξ²−1)φ']/τ² and s2 = 2 E[ξφφ']/τ: one derivative of φ rather than Stein's none, because
    dividing the round-off of φ by τ² would cost six digits at τ = 1e-3. A jump of φ is a point mass of φ'."""
    rule = expectation_rule(phi, tau)
    value, slope = phi(rule.u), phi.derivative(rule.u)
    e1 = rule.mean_of(slope)
    e2 = rule.mean_of(rule.u * slope) / tau.square()
    e3 = rule.mean_of((rule.u.square() / tau.square()[..., None] - 1.0) * slope) / tau.square()
    s2 = 2.0 * rule.mean_of(rule.u * value * slope) / tau.square()
    q = rule.mean_of(slope.square())
    for place, size in phi.jumps:
        density = torch.exp(-0.5 * (place / tau).square()) / (math.sqrt(2.0 * math.pi) * tau)
        sides = phi(torch.tensor([place - 1e-9, place + 1e-9], dtype=tau.dtype, device=tau.device))
        e1 = e1 + size * density
        e2 = e2 + size * density * place / tau.square()
        e3 = e3 + size * density * ((place / tau).square() - 1.0) / tau.square()
        s2 = s2 + size * sides.sum() * density * place / tau.square()
        q = torch.full_like(q, math.inf)
    return Moments(rule.mean_of(value), e1, e2, e3, rule.mean_of(value.square()), s2, q)


def _rectifier(phi: Rectifier, tau: Tensor) -> Moments:
    """φ = αx + β|x|, so φ² = (α² + β²)x² + 2αβ x|x|."""
    power = phi.alpha**2 + phi.beta**2
    root = phi.beta * math.sqrt(2.0 / math.pi)
    one, zero = torch.ones_like(tau), torch.zeros_like(tau)
    return Moments(root * tau, phi.alpha * one, root / tau, zero, power * tau.square(), 2.0 * power * one, power * one)


def _sin(phi: Sin, tau: Tensor) -> Moments:
    variance = tau.square()
    zero, decay = torch.zeros_like(tau), torch.exp(-0.5 * variance)
    fast = torch.exp(-2.0 * variance)
    return Moments(zero, decay, zero, -decay, -0.5 * torch.expm1(-2.0 * variance), 2.0 * fast, 0.5 * (1.0 + fast))


def _cos(phi: Cos, tau: Tensor) -> Moments:
    variance = tau.square()
    zero, decay = torch.zeros_like(tau), torch.exp(-0.5 * variance)
    fast = torch.exp(-2.0 * variance)
    return Moments(decay, zero, -decay, zero, 0.5 * (1.0 + fast), -2.0 * fast, -0.5 * torch.expm1(-2.0 * variance))


_CLOSED: dict[type[Activation], Callable[..., Moments]] = {Rectifier: _rectifier, Sin: _sin, Cos: _cos}
