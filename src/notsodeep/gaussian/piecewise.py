"""The dual map of piecewise polynomials, for any |ρ| ≤ 1, as integrals over an angle of Gaussian densities at the kinks.

Let w_kj be the jump of φ^(j) at the kink t_k, j ≤ d, d the degree. By Price's theorem the (d + 1)-th derivative of
k(λ) = E[φ(u)φ(v)] is E[φ^(d+1)(u) φ^(d+1)(v)], and φ^(d+1) is Σ_kj w_kj δ^(d−j)(x − t_k). So, by Taylor's formula,

    k(λ) = Σ_{r≤d} c_r(τ_i) c_r(τ_j) ρ^r + ∫_0^λ (λ − μ)^d/d! Σ w_ki w_lj ∂^{d−i} ∂^{d−j} p(t_k, t_l; μ) dμ,

p the density of (u, v) with covariance μ, whose derivatives are Hermite polynomials of two variables times p. With
μ = τ_iτ_j sin θ the root of 1 − ρ² in p is gone. Next to |ρ| = 1, where p is narrow in θ, panels halve towards θ = π/2.

Ref: docs/theory.md, section 2; Drezner & Wesolowsky (1990) integrate the normal distribution itself in this way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from notsodeep.activations.pieces import Pieces
from notsodeep.numerics.quadrature import legendre

_NODES = 20
_NEAR = 0.4  # the angle π/2 − θ at which panels begin to halve
_HALVINGS = 48  # then what is left of the angle is below round-off
_FAR, _GONE = 40.0, 700.0  # deviations beyond which a density is 0, and the exponent
_CHUNK = 1 << 20  # values held at once


def piecewise_dual(pieces: Pieces, left: Tensor, right: Tensor, tau_i: Tensor, tau_j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """(Cov[φ(u), φ(v)], E[φ'(u)φ'(v)]); `left`, `right` are the coefficients c_1 … c_d at τ_i and τ_j, (..., d).

    Everything broadcasts against λ.
    """
    product = tau_i * tau_j
    rho = lam / product
    value, slope = torch.zeros_like(rho), torch.zeros_like(rho)
    for r in range(pieces.degree, 0, -1):
        both = left[..., r - 1] * right[..., r - 1]
        slope = slope * rho + r * both
        value = (value + both) * rho
    shape = rho.shape
    flat = [each.expand(shape).reshape(-1) for each in (tau_i, tau_j, lam)]
    parts = [_integrals(pieces, *(each[part] for each in flat)) for part in _chunks(pieces, lam.numel())]
    more, steeper = (torch.cat(each).reshape(shape) for each in zip(*parts, strict=True))
    return value + more, slope / product + steeper


def _chunks(pieces: Pieces, count: int) -> list[slice]:
    size = max(1, _CHUNK // (_NODES * len(pieces.places)))
    return [slice(start, min(start + size, count)) for start in range(0, max(count, 1), size)]


def _integrals(pieces: Pieces, tau_i: Tensor, tau_j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """What Taylor's polynomial of k, and of its derivative, leave, for vectors of pairs."""
    product = tau_i * tau_j
    root = ((product - lam).clamp(min=0.0) * (product + lam).clamp(min=0.0)).sqrt()
    end = torch.atan2(root, lam.abs())  # π/2 − |θ| at λ
    value, slope = _panel(pieces, tau_i, tau_j, lam, end, end.clamp(min=_NEAR), torch.full_like(end, 0.5 * math.pi))
    upper = _NEAR
    for _ in range(_HALVINGS):
        open_ = torch.nonzero(end < upper).flatten()
        if not len(open_):
            break
        lower = end[open_].clamp(min=0.5 * upper)
        some = (each[open_] for each in (tau_i, tau_j, lam, end))
        more, steeper = _panel(pieces, *some, lower, torch.full_like(lower, upper))
        value.index_add_(0, open_, more)
        slope.index_add_(0, open_, steeper)
        upper *= 0.5
    return value, slope


def _panel(
    pieces: Pieces, tau_i: Tensor, tau_j: Tensor, lam: Tensor, end: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """The integrals over the angles c = π/2 − |θ| between lower and upper, (n,) each.

    Near c = 0 all is written in differences that do not cancel: with b' = ±b, a² − 2ab sin θ + b² is
    (a − b')² + 2ab'(1 − |sin θ|), and |ρ| − |sin θ| is 2 sin((c + c_end)/2) sin((c − c_end)/2).
    """
    points, weights = legendre(_NODES, str(lam.device))
    half = 0.5 * (upper - lower)
    c = (0.5 * (upper + lower))[:, None] + half[:, None] * points  # (n, nodes)
    sign = torch.where(lam < 0.0, -1.0, 1.0).to(lam.dtype)[:, None]
    sine2, cosine2 = torch.sin(c).square(), 2.0 * torch.cos(0.5 * c).square()
    over = 1.0 / sine2, 1.0 / cosine2
    rest = (tau_i * tau_j)[:, None] * sign * 2.0 * torch.sin(0.5 * (c + end[:, None])) * torch.sin(0.5 * (c - end[:, None]))
    total = torch.zeros_like(c)
    for k, l in pieces.pairs:
        a = (pieces.places[k] / tau_i).clamp(-_FAR, _FAR)[:, None]
        b = (pieces.places[l] / tau_j).clamp(-_FAR, _FAR)[:, None] * sign
        exponent = -0.5 * (a - b).square() * over[0] - a * b * over[1]
        weight = _weight(pieces, k, l, a, b, sign, c, over, tau_i[:, None], tau_j[:, None])
        total += torch.where(exponent > -_GONE, torch.exp(exponent) * weight, 0.0)
    measure = half[:, None] * weights * sign / (2.0 * math.pi)
    d = pieces.degree
    kernel = measure * total * rest ** (d - 1) / math.factorial(d - 1)
    return (kernel * rest).sum(1) / d, kernel.sum(1)


def _weight(
    pieces: Pieces, k: int, l: int, a: Tensor, b: Tensor, sign: Tensor, c: Tensor, over: tuple[Tensor, Tensor], tau_i: Tensor, tau_j: Tensor
) -> Tensor | float:
    """Σ_ij w_ki w_lj H_{d−i,d−j}/(τ_i^(d−i) τ_j^(d−j)), where ∂_a^m ∂_b^n p = (−1)^(m+n) H_mn p."""
    d = pieces.degree
    left, right = pieces.jumps[k], pieces.jumps[l]
    m_most, n_most = (max(d - j for j, w in enumerate(jumps) if w) for jumps in (left, right))
    if m_most == n_most == 0:
        return left[d] * right[d]
    first = (a - b) * over[0] + b * over[1]  # (a − ρb)/(1 − ρ²)
    second = sign * ((b - a) * over[0] + a * over[1])
    inverse, mixed = over[0], sign * torch.cos(c) * over[0]  # 1/(1 − ρ²), ρ/(1 − ρ²)
    hermite: dict[tuple[int, int], Tensor | float] = {(0, 0): 1.0}

    def h(m: int, n: int) -> Tensor | float:
        if m < 0 or n < 0:
            return 0.0
        if (m, n) not in hermite:
            if m:
                found = first * h(m - 1, n) - (m - 1) * inverse * h(m - 2, n) + n * mixed * h(m - 1, n - 1)
            else:
                found = second * h(0, n - 1) - (n - 1) * inverse * h(0, n - 2)
            hermite[m, n] = found
        return hermite[m, n]

    total: Tensor | float = 0.0
    for i, w in enumerate(left):
        for j, v in enumerate(right):
            if w and v:
                total = total + w * v * h(d - i, d - j) / (tau_i ** (d - i) * tau_j ** (d - j))
    return total
