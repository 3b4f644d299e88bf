"""The dual map of piecewise polynomials, for any |ρ| ≤ 1: an integral over the covariance of Gaussian densities at the kinks.

Let w_kj be the jump of φ^(j) at the kink t_k, j ≤ d, d the degree. By Price's theorem the (d + 1)-th derivative of
k(λ) = E[φ(u)φ(v)] is E[φ^(d+1)(u) φ^(d+1)(v)], and φ^(d+1) is Σ_kj w_kj δ^(d−j)(x − t_k). So, by Taylor's formula,

    k(λ) = Σ_{r≤d} c_r(τ_i) c_r(τ_j) ρ^r + ∫_0^λ (λ − μ)^d/d! Σ w_ki w_lj ∂^{d−i} ∂^{d−j} p(t_k, t_l; μ) dμ,

p the density of (u, v) with covariance μ, whose derivatives are Hermite polynomials of two variables times p. The integrand is
analytic in |μ| < τ_iτ_j: a few Gauss–Legendre nodes are enough for small ρ. Towards |ρ| = 1 the angle θ, μ = τ_iτ_j sin θ,
takes the root of 1 − ρ² out of p, and panels halve towards θ = π/2, where p may be narrow.

Ref: docs/theory.md, section 2; Drezner & Wesolowsky (1990) integrate the normal distribution itself in this way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.activations.pieces import Pieces
from notsodeep.approximation.quadrature import legendre

_MIDDLE = ((0.25, 8), (0.6, 13))  # |ρ| up to which so many nodes in μ are enough
_NODES = 20  # of a panel in θ
_NEAR = 0.4  # the angle π/2 − θ at which panels begin to halve
_HALVINGS = 48  # then what is left of the angle is below round-off
_FAR, _GONE = 40.0, 700.0  # deviations beyond which a density is 0, and the exponent
_CHUNK = 1 << 15  # values held at once: few enough to stay in cache


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Vectors of pairs, (n,)."""

    tau_i: Tensor
    tau_j: Tensor
    lam: Tensor

    def __getitem__(self, index: Tensor) -> _Pairs:
        return _Pairs(self.tau_i[index], self.tau_j[index], self.lam[index])


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Correlations r between 0 and ρ, (n, nodes), with what must not be computed from them where |r| is close to 1."""

    size: Tensor
    """|r|"""
    inverse: Tensor
    """1/(1 − r²)"""
    rest: Tensor
    """(λ − μ)/τ_iτ_j, ρ − r"""
    weights: Tensor
    """those of p dμ, without the exponential"""


def piecewise_dual(
    pieces: Pieces, coefficients: tuple[Tensor, Tensor], tau_i: Tensor, tau_j: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor]:
    """(Cov[φ(u), φ(v)], E[φ'(u)φ'(v)]); `coefficients` are c_1 … c_d at τ_i and at τ_j, (..., d).

    Everything broadcasts against λ.
    """
    product = tau_i * tau_j
    rho = lam / product
    value, slope = torch.zeros_like(rho), torch.zeros_like(rho)
    for r in range(pieces.degree, 0, -1):
        both = coefficients[0][..., r - 1] * coefficients[1][..., r - 1]
        slope = slope * rho + r * both
        value = (value + both) * rho
    pairs = _Pairs(*(each.expand(rho.shape).reshape(-1) for each in (tau_i, tau_j, lam)))
    more, steeper = _remainders(pieces, pairs, rho.reshape(-1).abs())
    return value + more.reshape(rho.shape), (slope + steeper.reshape(rho.shape)) / product


def _remainders(pieces: Pieces, pairs: _Pairs, rho: Tensor) -> tuple[Tensor, Tensor]:
    """What Taylor's polynomials of k and of its derivative in ρ leave, each pair with as many nodes as it needs."""
    value, slope = torch.zeros_like(rho), torch.zeros_like(rho)
    below = 0.0
    for limit, count in (*_MIDDLE, (math.inf, _NODES)):
        which = torch.nonzero((rho >= below) & (rho < limit)).flatten()
        for part in which.split(max(1, _CHUNK // count)):
            if len(part):
                some = pairs[part]
                found = _integrate(pieces, some, _middle(some, count)) if limit < math.inf else _outer(pieces, some)
                value[part], slope[part] = found
        below = limit
    return value, slope


def _middle(pairs: _Pairs, count: int) -> _Nodes:
    """Nodes in μ between 0 and λ."""
    points, weights = legendre(count, str(pairs.lam.device))
    share = 0.5 * (points + 1.0)
    rho = (pairs.lam / (pairs.tau_i * pairs.tau_j))[:, None]
    r = rho * share
    inverse = 1.0 / (1.0 - r.square())
    measure = (0.5 / (2.0 * math.pi)) * weights * rho
    return _Nodes(r.abs(), inverse, rho * (1.0 - share), measure * inverse.sqrt())


def _outer(pieces: Pieces, pairs: _Pairs) -> tuple[Tensor, Tensor]:
    """The integrals in θ, in one panel up to near π/2 and others that halve from there on."""
    product = pairs.tau_i * pairs.tau_j
    root = ((product - pairs.lam).clamp(min=0.0) * (product + pairs.lam).clamp(min=0.0)).sqrt()
    end = torch.atan2(root, pairs.lam.abs())  # π/2 − |θ| at λ
    begun = torch.full_like(end, 0.5 * math.pi)
    value, slope = _integrate(pieces, pairs, _angles(pairs, end, end.clamp(min=_NEAR), begun))
    upper = _NEAR
    for _ in range(_HALVINGS):
        unfinished = torch.nonzero(end < upper).flatten()
        if not len(unfinished):
            break
        some, last = pairs[unfinished], end[unfinished]
        nodes = _angles(some, last, last.clamp(min=0.5 * upper), torch.full_like(last, upper))
        more, steeper = _integrate(pieces, some, nodes)
        value.index_add_(0, unfinished, more)
        slope.index_add_(0, unfinished, steeper)
        upper *= 0.5
    return value, slope


def _angles(pairs: _Pairs, end: Tensor, lower: Tensor, upper: Tensor) -> _Nodes:
    """Nodes c = π/2 − |θ| between lower and upper; |ρ| − |r| is 2 sin((c + end)/2) sin((c − end)/2)."""
    points, weights = legendre(_NODES, str(end.device))
    half = (0.5 * (upper - lower))[:, None]
    c, last = (0.5 * (upper + lower))[:, None] + half * points, end[:, None]
    sign = torch.where(pairs.lam < 0.0, -1.0, 1.0).to(c.dtype)[:, None]
    rest = 2.0 * sign * torch.sin(0.5 * (c + last)) * torch.sin(0.5 * (c - last))
    return _Nodes(torch.cos(c), torch.sin(c).square().reciprocal(), rest, half * weights * sign / (2.0 * math.pi))


def _integrate(pieces: Pieces, pairs: _Pairs, nodes: _Nodes) -> tuple[Tensor, Tensor]:
    """∫ (λ − μ)^d/d! g dμ, g = E[φ^(d+1)(u) φ^(d+1)(v)], and its derivative in ρ. Of the powers of τ_i and τ_j in both, those
    that are left after they cancel are taken, so that deviations next to 0 do no harm.

    With b' = ±b for the sign of r, the exponent of p is −(a − b')²/(2(1 − r²)) − ab'/(1 + |r|): nothing cancels as |r| → 1.
    """
    sign = torch.where(pairs.lam < 0.0, -1.0, 1.0).to(pairs.lam.dtype)[:, None]
    one_more = 1.0 / (1.0 + nodes.size)
    a = [(place / pairs.tau_i).clamp(-_FAR, _FAR)[:, None] for place in pieces.places]
    b = [(place / pairs.tau_j).clamp(-_FAR, _FAR)[:, None] * sign for place in pieces.places]
    total = torch.zeros_like(nodes.size)
    for k, left in enumerate(pieces.jumps):
        for m, right in enumerate(pieces.jumps):
            exponent = (-0.5 * (a[k] - b[m]).square()) * nodes.inverse - (a[k] * b[m]) * one_more
            weight = _weight(left, right, _Derivatives(a[k], b[m], sign, nodes, one_more), pairs)
            total += torch.where(exponent > -_GONE, exponent.exp() * weight, 0.0)
    d = pieces.degree
    kernel = nodes.weights * total
    if d > 1:
        kernel = kernel * nodes.rest ** (d - 1) / math.factorial(d - 1)
    return (kernel * nodes.rest).sum(1) / d, kernel.sum(1)


def _weight(left: tuple[float, ...], right: tuple[float, ...], at: _Derivatives, pairs: _Pairs) -> Tensor | float:
    """Σ_ij w_ki w_lj H_{d−i,d−j} τ_i^i τ_j^j of two kinks."""
    d = len(left) - 1
    total: Tensor | float = 0.0
    for i, w in enumerate(left):
        for j, v in enumerate(right):
            if w and v:
                total = total + w * v * at(d - i, d - j) * (pairs.tau_i**i * pairs.tau_j**j)[:, None]
    return total


class _Derivatives:
    """H_mn with ∂_a^m ∂_b^n p = (−1)^(m+n) H_mn p, by their recurrence."""

    def __init__(self, a: Tensor, b: Tensor, sign: Tensor, nodes: _Nodes, one_more: Tensor) -> None:
        self.places, self.sign, self.nodes, self.one_more = (a, b), sign, nodes, one_more
        self.known: dict[tuple[int, int], Tensor | float] = {(0, 0): 1.0}

    def __call__(self, m: int, n: int) -> Tensor | float:
        if m < 0 or n < 0:
            return 0.0
        if (m, n) not in self.known:
            a, b = self.places
            inverse = self.nodes.inverse
            if m:
                along = (a - b) * inverse + b * self.one_more  # (a − rb)/(1 − r²)
                mixed = self.sign * self.nodes.size * inverse  # r/(1 − r²)
                found = along * self(m - 1, n) - (m - 1) * inverse * self(m - 2, n) + n * mixed * self(m - 1, n - 1)
            else:
                along = self.sign * ((b - a) * inverse + a * self.one_more)
                found = along * self(0, n - 1) - (n - 1) * inverse * self(0, n - 2)
            self.known[m, n] = found
        return self.known[m, n]
