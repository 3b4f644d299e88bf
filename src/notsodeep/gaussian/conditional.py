"""The dual map by integration, for any |ρ| ≤ 1: the exact path where a Hermite series has not converged.

    E[φ(u)φ(v)] = E_u[φ(u) E[φ(v) | u]],     v | u ~ N(λu/τ_i², τ_j²(1 − ρ²)),

and the same with φ' for the derivative in λ (Price). As |ρ| → 1 the inner Gaussian shrinks to a point and the outer
panels are graded around the places where its mean crosses a kink.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.activations.mesh import Mesh
from notsodeep.approximation.quadrature import PANEL_NODES, normal_rule
from notsodeep.gaussian.moments import panels
from notsodeep.gaussian.smoothing import smoothed
from notsodeep.gaussian.windowed import windowed_dual

_CHUNK = 1 << 22  # values held at once
_GRID = 9  # edges of a rule's own panels
_BLUR = (
    -9.0,
    -3.0,
    -1.0,
    0.0,
    1.0,
    3.0,
    9.0,
)  # deviations of the inner Gaussian at which outer panels end, about a kink


_PLANE = 1 << 21  # values for one pair, from which on blurring φ on a line of its own costs less


def conditional_dual(
    phi: Activation, tau_i: Tensor, tau_j: Tensor, lam: Tensor, means: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """(E[φ(u)φ(v)], E[φ'(u)φ'(v)]) for vectors of pairs, all of one shape (pairs,), every τ > 0. With the `means` of φ(u) and
    φ(v), the first is their covariance."""
    means = (torch.zeros_like(lam), torch.zeros_like(lam)) if means is None else means
    value, slope = torch.empty_like(lam), torch.empty_like(lam)
    if not lam.numel():
        return value, slope
    mesh = panels(phi, torch.maximum(tau_i, tau_j))
    marks, blurred = len(mesh.edges), len(_blurred_places(phi, mesh))
    inner, outer = _GRID + marks, _GRID + 2 * marks + len(_BLUR) * blurred
    plane = inner * outer * PANEL_NODES**2
    if plane > _PLANE and phi.is_found_by_looking:
        numbers = zip(*(each.tolist() for each in (tau_i, tau_j, lam, *means)), strict=True)
        for k, (a, b, both, *two) in enumerate(numbers):
            value[k], slope[k] = windowed_dual(phi, mesh, a, b, both, (two[0], two[1]))
        return value, slope
    size = max(1, _CHUNK // plane)
    for start in range(0, lam.numel(), size):
        part = slice(start, start + size)
        given = (each[part] for each in (tau_i, tau_j, lam, *means))
        value[part], slope[part] = _conditional_chunk(phi, mesh, *given)
    return value, slope


def _blurred_places(phi: Activation, mesh: Mesh) -> tuple[float, ...]:
    """Where φ blurred has a feature as wide as the blur: the kinks, and what is narrow; that of a known φ is graded."""
    return (*mesh.kinks, *mesh.features) if phi.is_found_by_looking else mesh.kinks


def _conditional_chunk(
    phi: Activation, mesh: Mesh, tau_i: Tensor, tau_j: Tensor, lam: Tensor, mean_i: Tensor, mean_j: Tensor
) -> tuple[Tensor, Tensor]:
    product = tau_i * tau_j
    spread = tau_j * ((product - lam).clamp(min=0) * (product + lam).clamp(min=0)).sqrt() / product
    gain = lam / tau_i.square()  # E[v | u] = gain·u
    marks = mesh.edges.to(lam.device).expand(lam.numel(), -1)
    blurred = spread[:, None, None] * torch.tensor(_BLUR, dtype=lam.dtype, device=lam.device)
    places = torch.tensor(_blurred_places(phi, mesh), dtype=lam.dtype, device=lam.device)[None, :, None]
    crossings = torch.cat([marks, (places + blurred).flatten(1)], dim=1) / gain[:, None]
    rule = normal_rule(tau_i, torch.cat([marks, crossings], dim=1))
    inner, inner_slope = smoothed(phi, gain[:, None] * rule.u, spread[:, None])
    value = rule.mean_of((phi(rule.u) - mean_i[:, None]) * (inner - mean_j[:, None]))
    slope = rule.mean_of(phi.derivative(rule.u) * inner_slope)
    for place, size in mesh.jumps:
        _, at_jump = smoothed(phi, gain * place, spread)
        density = torch.exp(-0.5 * (place / tau_i).square()) / (math.sqrt(2.0 * math.pi) * tau_i)
        slope = slope + size * density * at_jump
    return value, slope
