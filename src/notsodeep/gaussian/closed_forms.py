"""Dual maps in closed form: (Cov[φ(u), φ(v)], E[φ'(u)φ'(v)]) from τ_i, τ_j and λ, which broadcast.

Every |λ| ≤ τ_i τ_j is allowed. Differences of squares are factored so that nothing cancels as |ρ| → 1, and the product of the
means is taken off before anything is rounded, so that nothing does as ρ → 0 either.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from notsodeep.activations import Activation, Cos, Erf, Gaussian, Gelu, Rectifier, Sign, Sin

Dual = tuple[Tensor, Tensor]


def _rectifier(phi: Rectifier, tau_i: Tensor, tau_j: Tensor, lam: Tensor) -> Dual:
    """φ = αx + β|x|: α²λ + β²·(2/π)(R − τ_iτ_j + λ arcsin ρ), R = √(τ_i²τ_j² − λ²); the arc-cosine kernel for ReLU.

    R − τ_iτ_j is −λ²/(R + τ_iτ_j). The angle is taken from the same root, whose error then cancels near |ρ| = 1.
    """
    product = tau_i * tau_j
    weight = 2.0 / math.pi * phi.beta**2
    root = (product - lam).mul_(product + lam).sqrt_()
    slope = torch.atan2(lam, root).mul_(weight).add_(phi.alpha**2)
    return (lam / root.add_(product)).mul_(-weight).add_(slope).mul_(lam), slope


def _sign(phi: Sign, tau_i: Tensor, tau_j: Tensor, lam: Tensor) -> Dual:
    product = tau_i * tau_j
    root = ((product - lam) * (product + lam)).sqrt()
    return 2.0 / math.pi * torch.atan2(lam, root), 2.0 / math.pi / root


def _erf(phi: Erf, tau_i: Tensor, tau_j: Tensor, lam: Tensor) -> Dual:
    """(2/π) arcsin(2λ/√((1 + 2τ_i²)(1 + 2τ_j²)))."""
    a, b, product = tau_i.square(), tau_j.square(), tau_i * tau_j
    root = (1.0 + 2.0 * (a + b) + 4.0 * (product - lam) * (product + lam)).sqrt()
    return 2.0 / math.pi * torch.atan2(2.0 * lam, root), 4.0 / math.pi / root


def _gelu(phi: Gelu, tau_i: Tensor, tau_j: Tensor, lam: Tensor) -> Dual:
    """With a = τ_i², b = τ_j², E = (1+a)(1+b), D = E − λ², N = 1/(2π√D), P = 1/4 + arcsin(λ/√E)/2π and c = 1/(1+a) + 1/(1+b):
    k = λP + N(ab − λ² + cλ²) and Q = P + Nλ(2c + (cλ² − 1 − a − b)/D), by Stein's identity. Of Nab the product of the means,
    ab/(2π√E), leaves Nabλ²/(√E(√D + √E))."""
    a, b, product = tau_i.square(), tau_j.square(), tau_i * tau_j
    gap = (product - lam) * (product + lam)
    determinant = 1.0 + a + b + gap
    density = 1.0 / (2.0 * math.pi * determinant.sqrt())
    both = 0.25 + torch.atan2(lam, determinant.sqrt()) / (2.0 * math.pi)
    c = 1.0 / (1.0 + a) + 1.0 / (1.0 + b)
    whole = (1.0 + a).sqrt() * (1.0 + b).sqrt()
    beyond = product.square() / (whole * (determinant.sqrt() + whole))
    value = lam * (both + density * lam * (c - 1.0 + beyond))
    return value, both + density * lam * (2.0 * c + (c * lam.square() - 1.0 - a - b) / determinant)


def _sin(phi: Sin | Cos, tau_i: Tensor, tau_j: Tensor, lam: Tensor) -> Dual:
    """(E[sin u sin v], E[cos u cos v]) = ½(e⁻ ∓ e⁺), e^∓ = exp(−Var(u ∓ v)/2).

    The difference cancels for small λ, where it is exp(−(τ_i² + τ_j²)/2) sinh λ.
    """
    gap, product = (tau_i - tau_j).square(), tau_i * tau_j
    minus = 0.5 * torch.exp(-0.5 * gap - (product - lam))
    plus = 0.5 * torch.exp(-0.5 * gap - (product + lam))
    small = torch.exp(-0.5 * gap - product) * torch.sinh(lam.clamp(-1.0, 1.0))
    return torch.where(lam.abs() < 1.0, small, minus - plus), minus + plus


def _cos(phi: Cos, tau_i: Tensor, tau_j: Tensor, lam: Tensor) -> Dual:
    """E[cos u cos v] less exp(−(τ_i² + τ_j²)/2), which is that times cosh λ − 1 = 2 sinh²(λ/2)."""
    sines, cosines = _sin(phi, tau_i, tau_j, lam)
    means = torch.exp(-0.5 * tau_i.square()) * torch.exp(-0.5 * tau_j.square())
    small = 2.0 * means * torch.sinh(0.5 * lam.clamp(-1.0, 1.0)).square()
    return torch.where(lam.abs() < 1.0, small, cosines - means), sines


def _gaussian(phi: Gaussian, tau_i: Tensor, tau_j: Tensor, lam: Tensor) -> Dual:
    """With E = (1 + τ_i²)(1 + τ_j²) and D = E − λ²: D^(−1/2) less the product of the means, E^(−1/2)."""
    product = tau_i * tau_j
    determinant = 1.0 + tau_i.square() + tau_j.square() + (product - lam) * (product + lam)
    whole, root = (1.0 + tau_i.square()).sqrt() * (1.0 + tau_j.square()).sqrt(), determinant.sqrt()
    return lam.square() / (root * whole * (root + whole)), lam / (root * determinant)


CLOSED_FORMS: dict[type[Activation], Callable[..., Dual]] = {
    Rectifier: _rectifier,
    Sign: _sign,
    Erf: _erf,
    Gelu: _gelu,
    Sin: _sin,
    Cos: _cos,
    Gaussian: _gaussian,
}
