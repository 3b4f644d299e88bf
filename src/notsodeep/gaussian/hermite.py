"""Hermite coefficients c_k(τ) = E[φ(τξ) h_k(ξ)], h_k = He_k/√k!, and the dual map as a power series in ρ.

    E[φ(u)φ(v)] = Σ_k c_k(τ_i) c_k(τ_j) ρ^k,     what a sum to K misses ≤ |ρ|^K √(r_i r_j),  r = E[φ²] − Σ_{k<K} c_k².

The bound is Cauchy–Schwarz on the tail; with φ' for φ it holds for the derivative. As r never grows with K, the r of a short
series bounds how many terms a pair needs. Ref: docs/theory.md, section 2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from notsodeep.activations import Activation, HardTanh
from notsodeep.activations.wrappers import affine_parts
from notsodeep.approximation.quadrature import NormalRule
from notsodeep.approximation.tables import Smooth, tabulated
from notsodeep.gaussian.mass import by_cut
from notsodeep.gaussian.moments import expectation_rule, panels, tabulated_moments
from notsodeep.tolerances import SERIES_RTOL, STEEP_RTOL

_FAR = 60.0  # deviations, where the density is zero in float64
_FLAT = 1e-6  # of φ(0), what φ may vary by before its round-off shows in ten digits of that
_CHUNK = 1 << 16  # values held at once: few enough to stay in cache through the recurrence
_LENGTHS = (512, 1024, 2048, 4096)  # of long series
_LONG_CHUNK = 1 << 22  # values of long series held at once
_FAST = 0.5  # of what a series misses, the most that one of twice its length may miss for a longer one to be tried; of kinks .7
_STEPS = 6  # as often as Newton's method may ask for the same samples
_BESSEL = 1e-11  # by which rounding may take the sum of squares beyond E[φ²]


def hermite_coefficients(phi: Activation, tau: Tensor, terms: int) -> Tensor:
    """c_0 … c_{terms−1} at each τ: shape (*τ.shape, terms)."""
    core, factor, offset = affine_parts(phi)
    flat = tau.to(torch.float64).reshape(-1)
    found = _hard_tanh(core, flat, terms) if isinstance(core, HardTanh) else _by_quadrature(core, flat, terms)
    coefficients = factor * found.reshape(*tau.shape, terms)
    coefficients[..., 0] -= offset
    return coefficients


def _hard_tanh(phi: HardTanh, tau: Tensor, terms: int) -> Tensor:
    """c_1 = aτ P(τ|ξ| < c) and c_k = −2aτ p(t) h_{k−2}(t)/√(k(k − 1)) for odd k, t = c/τ, p the density of ξ: by Stein's
    identity c_k = τ² E[φ''(τξ) h_{k−2}(ξ)]/√(k(k − 1)), and φ'' is a point mass of a at −c and one of −a at c."""
    found = tau.new_zeros(terms, len(tau))
    at = (phi.c / tau).clamp(max=_FAR)
    if terms > 1:
        found[1] = phi.a * tau * torch.erf(at / math.sqrt(2.0))
    density = torch.exp(-0.5 * at.square()) / math.sqrt(2.0 * math.pi)
    previous, current = torch.zeros_like(at), -2.0 * phi.a * tau * density
    for k in range(2, terms):
        if k % 2:
            torch.mul(current, 1.0 / math.sqrt(k * (k - 1)), out=found[k])
        # p(t) h_{k−1}(t) from p h_{k−2} and p h_{k−3}
        scale = 1.0 / math.sqrt(k - 1)
        previous, current = current, previous.mul_(-math.sqrt(k - 2) * scale).addcmul_(at, current, value=scale)
    return found.T


def _by_quadrature(core: Activation, tau: Tensor, terms: int) -> Tensor:
    rest = core(tau.new_zeros(())).nan_to_num(0.0, 0.0, 0.0)
    coefficients = _without_noise(by_cut(core, tau, lambda some, cut: _of_cut(core, some, cut, terms, rest)))
    coefficients[..., 0] += rest
    return coefficients


def _of_cut(core: Activation, tau: Tensor, cut: float, terms: int, rest: Tensor) -> Tensor:
    """Those of φ − `rest` at each τ (n,), all of which have this cut: (n, terms)."""
    nodes = expectation_rule(core, tau.max().reshape(1), _degree(core, terms), _spacing(core, terms), cut).u.shape[-1]
    return torch.cat([_coefficients_chunk(core, part, terms, rest, cut) for part in tau.split(max(1, _CHUNK // nodes))])


def _without_noise(coefficients: Tensor) -> Tensor:
    """Exact zeros for the even coefficients of an odd activation, which quadrature leaves at round-off."""
    even = coefficients[..., ::2]
    if bool((even.abs().amax(-1) <= 1e-15 * coefficients.abs().amax(-1)).all()):
        even.zero_()
    return coefficients


def _degree(core: Activation, terms: int) -> int:
    """By how much φ h_k exceeds φ²: of a polynomial φ no more than it must, for nodes farther out overflow."""
    return 2 * terms if core.degree is None else max(terms - core.degree, 0)


def _spacing(core: Activation, terms: int) -> float:
    """Panels narrow enough for h_k, whose wavelength is about π/√k; 16 nodes follow some four waves, and half of them where
    φ itself may be a polynomial of high degree on each."""
    return min(3.0, (6.0 if core.is_found_by_looking else 12.0) / math.ceil(math.sqrt(terms)))


def _coefficients_chunk(core: Activation, tau: Tensor, terms: int, rest: Tensor, cut: float) -> Tensor:
    """Those of φ − φ(0): the round-off of a constant would else drown what is left of φ at a small τ. Where it drowns that all
    the same, by Stein's identity c_k = τ E[φ'(τξ) h_{k−1}(ξ)]/√k, unless φ' has no bound, or φ jumps."""
    rule = expectation_rule(core, tau, _degree(core, terms), _spacing(core, terms), cut)
    values = core(rule.u) - rest
    found = _projected(rule, values, terms)
    flat = rule.mean_of(values.square()) < (_FLAT * rest).square()
    if terms == 1 or not bool(flat.any()):
        return found
    mesh = panels(core, tau, cut)
    if mesh.jumps or mesh.steepness > STEEP_RTOL:
        return found
    roots = torch.arange(1, terms, dtype=tau.dtype, device=tau.device).sqrt()
    by_slope = _projected(rule, core.derivative(rule.u), terms - 1) * tau[:, None] / roots
    return torch.where(flat[:, None], torch.cat([found[:, :1], by_slope], dim=1), found)


def _projected(rule: NormalRule, values: Tensor, terms: int) -> Tensor:
    """E[values·h_k(ξ)], k < terms. The recurrence runs on w·values·h_k itself: h_k alone would overflow in the far tail."""
    roots = rule.roots
    weighted = (rule.weights if roots is None else roots) * values
    previous, current = torch.zeros_like(weighted), weighted
    sums = []
    for k in range(terms):
        sums.append((current if roots is None else roots * current).sum(-1))
        scale = 1.0 / math.sqrt(k + 1)
        previous, current = current, previous.mul_(-math.sqrt(k) * scale).addcmul_(rule.xi, current, value=scale)
    return torch.stack(sums, dim=-1)


def power_series(left: Tensor, right: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_k l_k r_k ρ^k and its derivative in ρ, by Horner; `left`, `right` are (..., K), broadcast against ρ.

    An odd activation, whose even coefficients are all zero, is summed in powers of ρ²: half the work.
    """
    if left.shape[-1] > 2 and not bool(left[..., ::2].any()):
        square = rho.square()
        value, slope = power_series(left[..., 1::2], right[..., 1::2], square)
        return rho * value, value + 2.0 * square * slope
    value, slope = torch.zeros_like(rho), torch.zeros_like(rho)
    for k in range(left.shape[-1] - 1, -1, -1):
        slope.mul_(rho).add_(value)
        value.mul_(rho).addcmul_(left[..., k], right[..., k])
    return value, slope


def long_series(core: Activation, tau_i: Tensor, tau_j: Tensor, rho: Tensor, missed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(Cov[φ(u), φ(v)], its derivative in ρ, which pairs were summed) for vectors of pairs, (pairs,).

    `missed` bounds what a shorter series misses at ρ = 1, relative to the scale of both. Where the series
    converges fast, a longer one is judged by what it misses itself. Pairs that need more terms than the longest series has are
    left at 0.
    """
    value, slope = torch.zeros_like(rho), torch.zeros_like(rho)
    known, fast, missed = torch.zeros_like(rho, dtype=torch.bool), torch.ones_like(rho, dtype=torch.bool), missed.clone()
    for terms in _LENGTHS:
        power = rho.abs().pow(terms - 1)
        which = torch.nonzero(~known & (fast | (missed * power <= SERIES_RTOL))).flatten()
        for part in which.split(max(1, _LONG_CHUNK // terms)) if len(which) else ():
            both, place = torch.stack([tau_i[part], tau_j[part]]).unique(return_inverse=True)
            coefficients, tail = _coefficients(core, both, terms)
            bound = tail[place].prod(0)  # NaN of one that is not sound
            known[part] = torch.minimum(bound, missed[part]) * power[part] <= SERIES_RTOL
            fast[part] = bound <= _FAST * missed[part]
            missed[part] = torch.fmin(bound, missed[part])
            some, place = part[known[part]], place[:, known[part]]
            value[some], slope[some] = paired_sums(coefficients[place[0]], coefficients[place[1]], rho[some])
    return value, slope, known


def _coefficients(core: Activation, tau: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """c_0 = 0, c_1 … at each τ, (n, terms), and the root of the share of φ's and φ''s power that they miss, the larger of the
    two: NaN where they have more than φ has, against Bessel's inequality, as of waves too quick for the quadrature."""
    series = Smooth(("hermite", core, terms), True, lambda t: hermite_coefficients(core, t, terms), core.may_change)
    found = tabulated(series, tau, times=_STEPS)
    found[:, 0] = 0.0
    at = tabulated_moments(core, tau)
    power = found.square()
    degrees = torch.arange(terms, dtype=tau.dtype, device=tau.device)
    shares = torch.stack([power.sum(1) / at.variance, power @ degrees / (tau.square() * at.q)])
    sound = (shares <= 1.0 + _BESSEL).all(0)
    tail = (1.0 - shares.amin(0)).clamp(min=torch.finfo(tau.dtype).eps).sqrt()
    return found, torch.where(sound, tail, torch.nan)


def paired_sums(left: Tensor, right: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_k l_k r_k ρ^k and its derivative in ρ, of coefficients (pairs, K), each pair by itself."""
    degrees = torch.arange(1, left.shape[1], dtype=rho.dtype, device=rho.device)
    powers = torch.cat([torch.ones_like(rho)[:, None], rho[:, None].expand(-1, len(degrees) - 1)], dim=1).cumprod(1)
    products = left[:, 1:] * right[:, 1:] * powers
    return rho * products.sum(1), products @ degrees
