"""The dual map of an activation: k = E[φ(u)φ(v)] and Q = ∂k/∂λ = E[φ'(u)φ'(v)].

(u, v) is centred Gaussian with variances τ_i², τ_j² and covariance λ. By closed form where one exists, else by
Hermite series wherever its truncation error is proven to be below round-off, else by integration.
Ref: docs/theory.md, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.activations.pieces import Pieces
from notsodeep.activations.wrappers import affine_parts
from notsodeep.approximation.tables import Smooth, tabulated
from notsodeep.arguments import instance
from notsodeep.arrays import real
from notsodeep.errors import BadInput
from notsodeep.gaussian.closed_forms import CLOSED_FORMS
from notsodeep.gaussian.hermite import hermite_coefficients, long_series, paired_sums, power_series
from notsodeep.gaussian.integral import conditional_dual
from notsodeep.gaussian.mass import cuts
from notsodeep.gaussian.moments import Moments, deviations, moments_of, tabulated_moments
from notsodeep.gaussian.piecewise import piecewise_dual
from notsodeep.tolerances import SERIES_RTOL, SERIES_TRUNCATION

_FEWEST_TERMS, _MOST_TERMS = 16, 256
_MOST_CANCELLED = 300.0  # squared, it costs five digits of sixteen
_FEW_TERMS = 24  # so few for all pairs cost less than to count how many pairs need them
_ONE_BY_ONE = 5.0  # what a term costs of a pair that is summed by itself, in terms of one among all
_FAR = 15.0  # deviations: a φ that counts from farther out has pairs next to nothing beside others, and all terms count
_ROUNDING = 1e-9  # by which a covariance may exceed what it can be
_SMALLEST_TAU = 1e-150  # stands for 0, so that ρ = λ/(τ_i τ_j) is defined


@dataclass(frozen=True)
class Rows:
    """What the dual map needs to know of each sample, once: any shape, kept by every field."""

    tau: Tensor
    mean: Tensor
    """E[core(τξ)]"""
    coefficients: Tensor | None = None
    """(..., K) Hermite coefficients of the core less its mean, when it has no closed form"""
    tail: Tensor | None = None
    """what the whole series misses at ρ = 1, as a share of the norm: √r, the larger of φ's and φ''s; see `hermite`"""
    decay: Tensor | None = None
    """(K,): the same after 1, 2, … K terms, squared, for the worst of all the samples prepared together"""
    lead: Tensor | None = None
    """(..., d): the Hermite coefficients c_1 … c_d of a piecewise polynomial of degree d; the rest has a closed form"""

    def __getitem__(self, index: Any) -> Rows:
        return self._each(lambda t: t[index], lambda c: c[index])

    def column(self) -> Rows:
        return self._each(lambda t: t.unsqueeze(1), lambda c: c.unsqueeze(1))

    def row(self) -> Rows:
        return self._each(lambda t: t.unsqueeze(0), lambda c: c.unsqueeze(0))

    def expand_as(self, shape: torch.Size) -> Rows:
        return self._each(lambda t: t.expand(shape), lambda c: c.expand(*shape, c.shape[-1]))

    def _each(self, scalar: Callable[[Tensor], Tensor], vector: Callable[[Tensor], Tensor]) -> Rows:
        if self.coefficients is None or self.tail is None:
            return Rows(scalar(self.tau), scalar(self.mean), lead=None if self.lead is None else vector(self.lead))
        return Rows(scalar(self.tau), scalar(self.mean), vector(self.coefficients), scalar(self.tail), self.decay)


def rows(phi: Activation, tau: Tensor, series: bool = False) -> Rows:
    """Prepare the samples of deviations `tau` for `dual`. Rows that meet in one call must come from one call of this,
    so that their series have one length. `series` asks for the coefficients even where there is a closed form."""
    core, _, _ = affine_parts(phi)
    tau = tau.to(torch.float64).clamp(min=_SMALLEST_TAU)
    at = tabulated_moments(core, tau)
    if type(core) in CLOSED_FORMS and not series:
        return Rows(tau, at.mean)
    if core.pieces is not None and not series and _is_sound(core.pieces, at, tau):
        degree = core.pieces.degree
        first = Smooth(("lead", core), True, lambda t: hermite_coefficients(core, t, degree + 1), core.may_change)
        return Rows(tau, at.mean, lead=tabulated(first, tau)[..., 1:])
    terms = _enough_terms(core, tau) if core.degree is None else core.degree + 1
    series_of = Smooth(("hermite", core, terms), True, lambda t: hermite_coefficients(core, t, terms), core.may_change)
    coefficients = tabulated(series_of, tau)
    coefficients[..., 0] = 0.0
    tail, decay = _missing(coefficients, at, tau)
    if core.degree is not None:  # a polynomial is its series
        tail, decay[-1] = torch.zeros_like(tail), 0.0
    elif bool((cuts(core, tau) > _FAR).any()):
        decay[:-1] = math.inf
    return Rows(tau, at.mean, coefficients, tail.sqrt(), decay)


def _is_sound(pieces: Pieces, at: Moments, tau: Tensor) -> bool:
    """Whether what is summed over pairs of kinks is not so much larger than the sum that its rounding shows: kinks that are
    close together, seen from a deviation far larger than they are apart, nearly cancel."""
    largest = torch.zeros_like(tau)
    for order in range(pieces.degree + 1):
        largest = torch.maximum(largest, sum(abs(jumps[order]) for jumps in pieces.jumps) * tau**order)
    return bool((largest <= _MOST_CANCELLED * at.gamma2.sqrt()).all())


def _missing(coefficients: Tensor, at: Moments, tau: Tensor) -> tuple[Tensor, Tensor]:
    """The share of Var[φ] and of E[φ'²], the larger of the two, beyond the last term, for each sample, and beyond each term,
    for the worst of all samples: (...,) and (K,), never below round-off.

    1 − Σ_{1≤l≤k} c_l²/Var[φ] and 1 − Σ_{l≤k} l c_l²/(τ² E[φ'²]).
    """
    degrees = torch.arange(coefficients.shape[-1], dtype=tau.dtype, device=tau.device)
    floor = torch.finfo(tau.dtype).eps
    least, last = [], []
    for weights, total in ((degrees.clamp(max=1.0), at.variance), (degrees, tau.square() * at.q)):
        reached = (coefficients * (weights / total[..., None]).sqrt_()).square_().cumsum_(-1)
        least.append(reached.reshape(-1, len(degrees)).nan_to_num_(0.0).amin(0))
        last.append(reached[..., -1])
    tail, decay = (1.0 - torch.minimum(*both) for both in (last, least))
    return tail.nan_to_num(1.0).clamp(floor, 1.0), decay.clamp(floor, 1.0)


def _enough_terms(core: Activation, tau: Tensor) -> int:
    """Double the terms until the series converges even at ρ = 1, or is as long as it may be.

    Judged at a few deviations: the length never decides about correctness (the tail bound of each pair does).
    """
    low, high = (float(end.log2()) for end in tau.aminmax())
    return _terms_between(core, math.floor(4.0 * low), math.ceil(4.0 * high))


@lru_cache(maxsize=256)
def _terms_between(core: Activation, low: int, high: int) -> int:
    """For deviations between 2^(low/4) and 2^(high/4)."""
    some = torch.exp2(torch.linspace(low / 4.0, high / 4.0, 5, dtype=torch.float64))
    try:
        at, terms = moments_of(core, some), _FEWEST_TERMS
    except BadInput:  # of a φ that grows, at more than what was asked for
        return _MOST_TERMS
    while terms < _MOST_TERMS:
        tail, _ = _missing(hermite_coefficients(core, some, terms), at, some)
        if float(tail.max()) <= SERIES_RTOL:
            break
        terms *= 2
    return terms


def dual(phi: Activation, left: Rows, right: Rows, lam: Tensor) -> tuple[Tensor, Tensor]:
    """(k, Q) at covariances `lam`, |λ| ≤ τ_i τ_j; `left`, `right` broadcast against it.

    Of φ = f·core − o it is k = f² Cov[core(u), core(v)] + (f m_i − o)(f m_j − o), in which nothing cancels.
    """
    core, factor, offset = affine_parts(phi)
    closed = CLOSED_FORMS.get(type(core))
    if closed is not None:
        value, slope = closed(core, left.tau, right.tau, lam)
    elif left.lead is not None and right.lead is not None and core.pieces is not None:
        value, slope = piecewise_dual(core.pieces, (left.lead, right.lead), left.tau, right.tau, lam)
    else:
        value, slope = _series_or_integral(core, left, right, lam)
    if factor != 1.0:
        value, slope = value * factor**2, slope * factor**2
    return torch.addcmul(value, factor * left.mean - offset, factor * right.mean - offset), slope


def _series_or_integral(core: Activation, left: Rows, right: Rows, lam: Tensor) -> tuple[Tensor, Tensor]:
    """(Cov[core(u), core(v)], Q): of most pairs by a series as short as they allow, of the others one by one."""
    product = left.tau * right.tau
    rho = lam / product
    assert left.coefficients is not None and right.coefficients is not None and left.decay is not None  # noqa: PT018
    assert left.tail is not None and right.tail is not None  # noqa: PT018
    whole = left.coefficients.shape[-1]
    size = rho.abs()
    terms, reach = _terms_for_most(size, left.decay)
    value, slope = power_series(left.coefficients[..., :terms], right.coefficients[..., :terms], rho)
    slope = slope / product
    beyond = size > reach
    if not bool(beyond.any()):
        return value, slope
    short = left.tail * right.tail * size.pow(whole - 1) > SERIES_RTOL
    few = beyond & ~short
    if terms < whole and bool(few.any()):
        one, other = (side.expand_as(lam.shape)[few] for side in (left, right))
        assert one.coefficients is not None and other.coefficients is not None  # noqa: PT018
        value[few], steep = paired_sums(one.coefficients, other.coefficients, rho[few])
        slope[few] = steep / (one.tau * other.tau)
    short &= beyond
    if bool(short.any()):
        value[short], slope[short] = _close_to_one(core, left, right, lam, short)
    return value, slope


def _close_to_one(core: Activation, left: Rows, right: Rows, lam: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """(Cov[core(u), core(v)], Q) of `which` pairs need more than the series of all samples: a longer one, or integration."""
    assert left.tail is not None and right.tail is not None  # noqa: PT018
    given = (left.tau, right.tau, left.tail * right.tail, left.mean, right.mean, lam)
    tau_i, tau_j, missed, mean_i, mean_j, some = (each.expand(lam.shape)[which] for each in given)
    product = tau_i * tau_j
    value, slope, known = long_series(core, tau_i, tau_j, some / product, missed)
    slope = slope / product
    rest = ~known
    if bool(rest.any()):
        means = mean_i[rest], mean_j[rest]
        value[rest], slope[rest] = _integral(core, tau_i[rest], tau_j[rest], some[rest], means)
    return value, slope


def _integral(
    core: Activation, tau_i: Tensor, tau_j: Tensor, lam: Tensor, means: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """(Cov[core(u), core(v)], Q) of pairs (pairs,) for which no series is long enough; of u = v they are moments."""
    same = (tau_i == tau_j) & (lam == tau_i * tau_j)
    if not bool(same.any()):
        return conditional_dual(core, tau_i, tau_j, lam, means)
    value, slope, apart = torch.empty_like(lam), torch.empty_like(lam), ~same
    tau, which = tau_i[same].unique(return_inverse=True)
    at = moments_of(core, tau)
    value[same], slope[same] = at.variance[which], at.q[which]
    rest = means[0][apart], means[1][apart]
    value[apart], slope[apart] = conditional_dual(core, tau_i[apart], tau_j[apart], lam[apart], rest)
    return value, slope


def _terms_for_most(rho: Tensor, decay: Tensor) -> tuple[int, float]:
    """(K, the largest |ρ| for which |ρ|^K·(what K terms miss) is negligible), with as many terms K, at most all, as leave so
    few pairs beyond it that to sum those one by one costs less than more terms for all."""
    whole = len(decay)
    degrees = torch.arange(whole, dtype=decay.dtype, device=decay.device)
    reach = (SERIES_TRUNCATION / decay).log().div(degrees.clamp(min=1.0)).exp().clamp(max=1.0)
    reach[0] = 1.0 if float(decay[0]) <= SERIES_TRUNCATION else -1.0  # a slope at ρ = 0 has a term
    reach = reach.cummax(0).values
    enough = int(torch.searchsorted(reach, rho.max())) if rho.numel() else 0
    if enough < min(whole, _FEW_TERMS):
        return enough + 1, float(reach[enough])
    beyond = rho.numel() - torch.bucketize(rho.flatten(), reach).bincount(minlength=whole + 1)[:whole].cumsum(0)
    cost = (degrees + 1.0) * rho.numel() + _ONE_BY_ONE * whole * beyond
    cost[-1] = whole * rho.numel()  # what the whole series does not reach is not summed again
    best = int(cost.argmin())
    return best + 1, float(reach[best])


def dual_map(phi: Activation, tau_i: Tensor | float, tau_j: Tensor | float, lam: Tensor | float) -> tuple[Tensor, Tensor]:
    """(k, Q) for single values or arrays of τ_i, τ_j and λ that broadcast: the plain way to ask.

    Args:
        phi: The activation.
        tau_i: Deviations ≥ 0 of u.
        tau_j: Deviations ≥ 0 of v.
        lam: Covariances, |λ| ≤ τ_i τ_j up to rounding.

    Returns:
        E[φ(u)φ(v)] and E[φ'(u)φ'(v)].

    Raises:
        BadInput: A deviation is negative or not finite, no Gaussian has such a covariance, or φ cannot be followed so far.
    """
    instance(phi, Activation, "phi", "an activation, nsd.activation('tanh')")
    given = (deviations(tau_i, "tau_i"), deviations(tau_j, "tau_j"), real(lam, "lam", dtype=torch.float64))
    try:
        u, v, covariance = torch.broadcast_tensors(*given)
    except RuntimeError:
        shapes = ", ".join(str(tuple(each.shape)) for each in given)
        raise BadInput(f"tau_i, tau_j and lam have shapes {shapes}, which do not broadcast.") from None
    if covariance.numel() == 0:
        return torch.empty_like(covariance), torch.empty_like(covariance)
    limit = u * v
    beyond = covariance.abs() - limit > _ROUNDING * limit
    if bool(beyond.any()):
        worst = float((covariance.abs() - limit)[beyond].max())
        raise BadInput(
            f"|lam| exceeds tau_i·tau_j by up to {worst:.3g}: no two numbers of these deviations have such a covariance. Give "
            "lam = rho·tau_i·tau_j with |rho| ≤ 1."
        )
    both = rows(phi, torch.stack([u, v]))
    return dual(phi, both[0], both[1], torch.maximum(torch.minimum(covariance, limit), -limit))
