"""The Hermite series of a few pairs, with as many terms as their |ρ| asks for: far cheaper than to integrate them one by one.

What K terms of a series miss is at most |ρ|^K √(r_i r_j), and r, what they miss of E[φ²] or of E[φ'²], never grows with K. So
the r of a shorter series tells beforehand how many terms a pair needs. Ref: docs/theory.md, section 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.approximation.tables import Smooth, tabulated
from notsodeep.gaussian.hermite import hermite_coefficients
from notsodeep.gaussian.moments import tabulated_moments
from notsodeep.tolerances import SERIES_RTOL

_LENGTHS = (512, 1024, 2048)
_CHUNK = 1 << 22  # values held at once
_STEPS = 6  # as often as Newton's method may ask for the same samples
_BESSEL = 1e-11  # by which rounding may take the sum of squares beyond E[φ²]


def long_series(
    core: Activation, tau_i: Tensor, tau_j: Tensor, rho: Tensor, missed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(Cov[φ(u), φ(v)], its derivative in ρ, which of the pairs are known so) for vectors of pairs, (pairs,).

    `missed` bounds what a shorter series misses at ρ = 1, relative to the scale of both. The rest needs more terms than there
    may be, and is left at 0.
    """
    value, slope = torch.zeros_like(rho), torch.zeros_like(rho)
    known = torch.zeros_like(rho, dtype=torch.bool)
    for terms in _LENGTHS:
        enough = missed * rho.abs().pow(terms - 1) <= SERIES_RTOL
        which = torch.nonzero(enough & ~known).flatten()
        for part in which.split(max(1, _CHUNK // terms)) if len(which) else ():
            both, place = torch.stack([tau_i[part], tau_j[part]]).unique(return_inverse=True)
            coefficients, sound = _coefficients(core, both, terms)
            value[part], slope[part] = sums(coefficients[place[0]], coefficients[place[1]], rho[part])
            known[part] = sound[place].all(0)
    return value, slope, known


def _coefficients(core: Activation, tau: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """c_0 = 0, c_1 … at each τ, (n, terms), and whether they are no more than φ is, as Bessel's inequality has it: of waves
    too quick for the quadrature they would be."""
    series = Smooth(("hermite", core, terms), True, lambda t: hermite_coefficients(core, t, terms), core.may_change)
    found = tabulated(series, tau, times=_STEPS)
    found[:, 0] = 0.0
    at = tabulated_moments(core, tau)
    power = found.square()
    degrees = torch.arange(terms, dtype=tau.dtype, device=tau.device)
    sound = power.sum(1) <= (1.0 + _BESSEL) * at.variance
    return found, sound & (power @ degrees <= (1.0 + _BESSEL) * tau.square() * at.q)


def sums(left: Tensor, right: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_k l_k r_k ρ^k and its derivative in ρ, of coefficients (pairs, K), each pair by itself."""
    degrees = torch.arange(1, left.shape[1], dtype=rho.dtype, device=rho.device)
    powers = torch.cat([torch.ones_like(rho)[:, None], rho[:, None].expand(-1, len(degrees) - 1)], dim=1).cumprod(1)
    products = left[:, 1:] * right[:, 1:] * powers
    return rho * products.sum(1), products @ degrees
