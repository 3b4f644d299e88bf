"""The Gaussian moments of an activation that the theorems are written in.

All are expectations over u = τξ, ξ ~ N(0, 1), to round-off for every τ, kinks included, and differentiable in τ.
Ref: docs/theory.md, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from notsodeep.activations import Activation, Cos, Gaussian, Rectifier, Sin
from notsodeep.activations.mesh import Mesh
from notsodeep.activations.wrappers import affine_parts
from notsodeep.approximation.quadrature import CUT, NormalRule, gauss_hermite_rule, normal_rule
from notsodeep.approximation.tables import Smooth, tabulated
from notsodeep.arguments import LARGEST_NORM, instance
from notsodeep.arrays import real
from notsodeep.errors import BadInput
from notsodeep.gaussian.mass import by_cut
from notsodeep.tolerances import STEEP_RTOL

_CHUNK = 1 << 19  # quadrature nodes held at once
_SMALLEST_TAU = 1e-100  # stands for τ = 0, where u is 0 and every moment is its limit


@dataclass(frozen=True)
class Moments:
    """Each field has the shape of τ. Second moments are kept about the mean: E[φ²] of a centred activation at a small τ
    would otherwise be the difference of two nearly equal numbers."""

    mean: Tensor
    """E[φ]"""
    e1: Tensor
    """E[φ']"""
    e2: Tensor
    """E[φ'']"""
    e3: Tensor
    """E[φ''']"""
    variance: Tensor
    """E[φ²] − E[φ]²"""
    v2: Tensor
    """E[((φ − E[φ])²)''], twice the slope of the variance in τ²"""
    q: Tensor
    """E[φ'²]; infinite where φ jumps"""

    @property
    def gamma2(self) -> Tensor:
        """E[φ²]"""
        return self.variance + self.mean.square()

    @property
    def s2(self) -> Tensor:
        """E[(φ²)'']"""
        return self.v2 + 2.0 * self.mean * self.e2

    def scaled(self, factor: float, offset: float) -> Moments:
        """Of factor·φ − offset."""
        first = (factor * field for field in (self.e1, self.e2, self.e3))
        second = (factor**2 * field for field in (self.variance, self.v2, self.q))
        return Moments(factor * self.mean - offset, *first, *second)

    def __getitem__(self, index: Any) -> Moments:
        return Moments(*(getattr(self, field.name)[index] for field in fields(self)))


def moments(phi: Activation, tau: Tensor | float) -> Moments:
    """All the moments of `phi` at each τ (float64).

    Args:
        phi: The activation.
        tau: Deviations ≥ 0: a number, or a tensor of any shape.

    Returns:
        The moments, each of the shape of `tau`.

    Raises:
        BadInput: A deviation is negative or not finite, or φ cannot be followed so far out.
    """
    instance(phi, Activation, "phi", "an activation, nsd.activation('tanh')")
    return moments_of(phi, deviations(tau, "tau"))


def moments_of(phi: Activation, tau: Tensor) -> Moments:
    """`moments` of what is known to be right, infinite deviations included."""
    core, factor, offset = affine_parts(phi)
    tau = tau.to(torch.float64).clamp(min=_SMALLEST_TAU)
    return _CLOSED.get(type(core), _by_quadrature)(core, tau).scaled(factor, offset)


def tabulated_moments(phi: Activation, tau: Tensor) -> Moments:
    """The same, to round-off, at very many τ: what is tabulated are pure numbers, none of them a difference of larger ones."""
    core, factor, offset = affine_parts(phi)
    if type(core) in _CLOSED:
        return moments_of(phi, tau)

    def pure(some: Tensor) -> Tensor:
        m = moments_of(core, some)
        sigma, root = m.variance.sqrt(), m.q.sqrt()
        bent = (m.e1 / root, m.e2 * some / root, m.e3 * some.square() / root)
        return torch.stack([m.mean / sigma, *bent, m.variance.log(), m.v2 / m.q, m.q.log()], dim=-1)

    mean, e1, e2, e3, variance, v2, q = tabulated(Smooth(("moments", core), True, pure, core.may_change), tau).unbind(-1)
    variance, q = variance.exp(), q.exp()
    root = q.sqrt()
    found = Moments(mean * variance.sqrt(), e1 * root, e2 * root / tau, e3 * root / tau.square(), variance, v2 * q, q)
    if not bool(torch.isfinite(found.mean + found.e3 + found.variance + found.v2).all()):
        return moments_of(phi, tau)  # a φ that is constant where it is looked at, or jumps: its pure numbers are none
    return found.scaled(factor, offset)


def deviations(tau: Any, name: str) -> Tensor:
    """`tau` as numbers ≥ 0 of a size that kernels are computed with, in float64, or `BadInput`."""
    checked = real(tau, name, dtype=torch.float64)
    found = tau.to(torch.float64) if isinstance(tau, Tensor) else checked  # not detached: moments are differentiable in τ
    if found.numel() and not (float(found.min()) >= 0.0 and float(found.max()) <= LARGEST_NORM):
        raise BadInput(
            f"{name} must be deviations from 0 to {LARGEST_NORM:.0e}, got values from {float(found.min()):.4g} to "
            f"{float(found.max()):.4g}."
        )
    return found


def moments_at(phi: Activation, tau: float) -> Moments:
    """The moments at one τ, as scalars."""
    return moments_of(phi, torch.tensor(tau, dtype=torch.float64))


def expectation_rule(phi: Activation, tau: Tensor, extra_degree: int = 4, spacing: float = 3.0, cut: float = CUT) -> NormalRule:
    """A rule for E[g(τξ)], g made of φ², φ'² and a polynomial in ξ of at most `extra_degree`, all of which counts within `cut`
    deviations."""
    if phi.degree is not None:
        return gauss_hermite_rule(tau, phi.degree + extra_degree // 2 + 1)
    return normal_rule(tau, panels(phi, tau, cut).edges.to(tau.device), spacing=spacing, cut=cut)


def panels(phi: Activation, tau: Tensor, cut: float = CUT) -> Mesh:
    """The mesh of φ as far out as `cut` of the largest of the deviations `tau`, without what lies beyond."""
    reach = cut * float(tau.max()) if tau.numel() else cut
    mesh = phi.mesh(reach)
    return mesh if not phi.is_found_by_looking else mesh.within(reach)


def _by_quadrature(phi: Activation, tau: Tensor) -> Moments:
    flat = tau.reshape(-1)
    if not flat.numel():
        return Moments(*(torch.empty_like(tau) for _ in fields(Moments)))
    found = by_cut(phi, flat, lambda some, cut: _of_cut(phi, some, cut))
    return Moments(*(column.reshape(tau.shape) for column in found.unbind(-1)))


def _of_cut(phi: Activation, tau: Tensor, cut: float) -> Tensor:
    """The moments at each τ (n,), all of the same cut, as columns."""
    nodes = expectation_rule(phi, tau.max().reshape(1), cut=cut).u.shape[-1]
    parts = [_quadrature_chunk(phi, part, cut) for part in tau.split(max(1, _CHUNK // nodes))]
    return torch.stack([torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Moments)], dim=-1)


def _quadrature_chunk(phi: Activation, tau: Tensor, cut: float) -> Moments:
    """e2 = E[ξφ']/τ, e3 = E[(ξ²−1)φ']/τ² and v2 = 2 E[ξ(φ−E[φ])φ']/τ: one derivative of φ rather than Stein's none,
    because dividing the round-off of φ by τ² would cost six digits at τ = 1e-3. A jump of φ is a point mass of φ'."""
    rule = expectation_rule(phi, tau, cut=cut)
    value, slope = phi(rule.u), phi.derivative(rule.u)
    mean = rule.mean_of(value)
    central = value - mean[..., None]
    mesh = panels(phi, tau, cut)
    xi = rule.u / tau[..., None]
    e1 = rule.mean_of(slope)
    e2 = rule.mean_of(xi * slope) / tau
    e3 = rule.mean_of((xi.square() - 1.0) * slope) / tau.square()
    variance = rule.mean_of_product(central, central)
    v2 = 2.0 * rule.mean_of_product(xi * central, slope) / tau
    q = rule.mean_of_product(slope, slope)
    for place, size in mesh.jumps:
        at = place / tau
        density = torch.exp(-0.5 * at.square()) / (math.sqrt(2.0 * math.pi) * tau)
        e1 = e1 + size * density
        e2 = e2 + size * density * at / tau
        e3 = e3 + size * density * (at.square() - 1.0) / tau.square()
        v2 = v2 + size * (sum(_sides(phi, place)) - 2.0 * mean) * density * at / tau
        q = torch.full_like(q, math.inf)
    if mesh.steepness > STEEP_RTOL:
        q = torch.full_like(q, math.inf)
    return _at_rest(phi, tau, Moments(mean, e1, e2, e3, variance, v2, q))


def _sides(phi: Activation, place: float) -> tuple[float, float]:
    """φ just below and just above a jump, extrapolated from a little way off: the place itself is known to round-off."""
    h = 1e-6
    below2, below, above, above2 = phi(torch.tensor([-2 * h, -h, h, 2 * h], dtype=torch.float64) + place).tolist()
    return 2.0 * below - below2, 2.0 * above - above2


def _at_rest(phi: Activation, tau: Tensor, m: Moments) -> Moments:
    """At τ = 0 the curvatures are derivatives at 0, or 0 at a kink; quadrature has only round-off to divide by τ there."""
    resting = tau <= _SMALLEST_TAU
    if not bool(resting.any()):
        return m
    second, third = (0.0, 0.0) if 0.0 in phi.kinks else _curvatures_at_zero(phi)
    return replace(
        m,
        e2=torch.where(resting, second, m.e2),
        e3=torch.where(resting, third, m.e3),
        v2=torch.where(resting, 2.0 * m.e1.square(), m.v2),
    )


def _curvatures_at_zero(phi: Activation) -> tuple[float, float]:
    """φ''(0) and φ'''(0), by automatic differentiation."""
    with torch.enable_grad():
        x = torch.zeros((), dtype=torch.float64, requires_grad=True)
        value, found = phi(x), [0.0, 0.0, 0.0]
        for order in range(3):
            if not value.requires_grad:  # a constant: its derivatives are zero
                break
            (value,) = torch.autograd.grad(value, x, create_graph=True)
            found[order] = float(value.detach())
    return found[1], found[2]


def _rectifier(phi: Rectifier, tau: Tensor) -> Moments:
    """φ = αx + β|x|, so φ² = (α² + β²)x² + 2αβ x|x|."""
    power = phi.alpha**2 + phi.beta**2
    root = phi.beta * math.sqrt(2.0 / math.pi)
    share = power - root**2
    one, zero = torch.ones_like(tau), torch.zeros_like(tau)
    return Moments(root * tau, phi.alpha * one, root / tau, zero, share * tau.square(), 2.0 * share * one, power * one)


def _sin(phi: Sin, tau: Tensor) -> Moments:
    v = tau.square()
    zero, decay, fast = torch.zeros_like(tau), torch.exp(-0.5 * v), torch.exp(-2.0 * v)
    return Moments(zero, decay, zero, -decay, -0.5 * torch.expm1(-2.0 * v), 2.0 * fast, 0.5 * (1.0 + fast))


def _cos(phi: Cos, tau: Tensor) -> Moments:
    v = tau.square()
    zero, decay, gone = torch.zeros_like(tau), torch.exp(-0.5 * v), -torch.expm1(-v)
    return Moments(decay, zero, -decay, zero, 0.5 * gone.square(), 2.0 * torch.exp(-v) * gone, -0.5 * torch.expm1(-2.0 * v))


def _gaussian(phi: Gaussian, tau: Tensor) -> Moments:
    """With v = τ², a = 1 + v and b = 1 + 2v: E[φ] = a^(−1/2), E[φ²] = b^(−1/2), E[(φ²)''] = −2b^(−3/2); differences of roots
    are rationalised, so that nothing cancels at a small τ."""
    v = tau.square()
    a, b, zero = 1.0 + v, 1.0 + 2.0 * v, torch.zeros_like(tau)
    root_b = b.sqrt()
    numerator = v * (2.0 + v * (6.0 + v * (4.0 - v)))  # b³ − a⁴
    return Moments(
        mean=a.rsqrt(),
        e1=zero,
        e2=-a.rsqrt() / a,
        e3=zero,
        variance=v.square() / (a * root_b * (a + root_b)),
        v2=2.0 * numerator / (a.square() * b * root_b * (b * root_b + a.square())),
        q=v / (b * root_b),
    )


_CLOSED: dict[type[Activation], Callable[..., Moments]] = {Rectifier: _rectifier, Sin: _sin, Cos: _cos, Gaussian: _gaussian}
