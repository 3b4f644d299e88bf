"""How far out, in deviations of its argument, E[φ²(τξ)] and E[φ'²(τξ)] are made.

Within twelve for most φ. Where φ grows nearly as fast as the Gaussian falls, farther out: those of exp(x) around 2τ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.approximation.quadrature import CUT
from notsodeep.errors import BadInput

_FARTHEST = 37.5  # deviations: beyond, the density of a Gaussian has no digits in float64
_STEP = 0.125  # deviations from one look to the next
_LOST = 50.0  # e^(−50) of the largest φ²·density is lost in its rounding, and the root of it in pairs of inputs of two sizes
_COUNTS = 28.0  # e^(−28) of it counts where farther out nothing can be computed
_NOTHING = 1e-18  # of τ², what E[φ²] may be of a φ that is 0 this near to 0
_FAINT = 15.0  # deviations, as far as one looks for such a φ
_LARGEST = math.log(1e300)
_WIDTH = 3.0  # deviations: cuts are multiples of it, so that inputs of many sizes share a few
_MARGIN = 1.0
_BUCKETS = 4  # for every factor of 2 in τ
_KEPT = 128  # activations whose cuts are kept
_WITNESSES = torch.cat([sign * torch.logspace(-3, 3, 301, dtype=torch.float64) for sign in (-1.0, 1.0)])


def cuts(phi: Activation, tau: Tensor) -> Tensor:
    """The deviations, at least 12, within which all of φ counts, for each τ (n,).

    Args:
        phi: The activation.
        tau: Deviations of its argument.

    Returns:
        How far averages of φ², φ'² and of pairs must reach, (n,).

    Raises:
        BadInput: That is farther out than float64 can follow.
    """
    found = torch.full_like(tau, CUT, requires_grad=False)
    if not phi.is_found_by_looking or not tau.numel():
        return found
    place = (tau.detach().log2() * _BUCKETS).floor()
    buckets = [bucket for bucket in place.unique().tolist() if math.isfinite(bucket)]
    for bucket, cut in zip(buckets, _of_buckets(phi, buckets), strict=True):
        here = place == bucket
        found[here] = cut if math.isfinite(cut) else _of_part(phi, tau.detach()[here])
    return found


def by_cut(phi: Activation, tau: Tensor, function: Callable[[Tensor, float], Tensor]) -> Tensor:
    """`function` ((n,), cut) ↦ (n, …) called once for each cut, its rows in the order of `tau` (n,)."""
    if not phi.is_found_by_looking:
        return function(tau, CUT)
    every = cuts(phi, tau)
    different = every.unique().tolist()
    if len(different) == 1:
        return function(tau, different[0])
    groups = [torch.nonzero(every == cut).flatten() for cut in different]
    parts = [function(tau[group], cut) for group, cut in zip(groups, different, strict=True)]
    return torch.cat(parts)[torch.cat(groups).argsort()]


def _of_buckets(phi: Activation, buckets: list[float]) -> list[float]:
    """The cuts of all τ from 2^(bucket/4) to 2^((bucket + 1)/4)."""
    known = _known(phi, _witness(phi) if phi.may_change else b"")
    new = [bucket for bucket in buckets if bucket not in known]
    if new:
        ends = torch.tensor(new, dtype=torch.float64)[:, None] + torch.tensor([0.0, 1.0], dtype=torch.float64)
        known.update(
            zip(new, _cuts_at(phi, torch.exp2(ends / _BUCKETS).flatten()).reshape(-1, 2).amax(1).tolist(), strict=True)
        )
    return [known[bucket] for bucket in buckets]


@lru_cache(_KEPT)
def _known(_phi: Activation, _witness: bytes) -> dict[float, float]:
    """The cuts that were found, by buckets."""
    return {}


def _witness(phi: Activation) -> bytes:
    """φ of now, which may learn."""
    with torch.no_grad():
        return bytes(phi(_WITNESSES).numpy().tobytes())


def _of_part(phi: Activation, tau: Tensor) -> float:
    """The cut of τ that make a part of a bucket, of which another part has none."""
    ends = torch.stack(tau.aminmax()).to("cpu", torch.float64)
    cut = _cuts_at(phi, ends)
    if not bool(torch.isfinite(cut).all()):
        raise _too_far(phi, float(ends[cut.isinf()][0]))
    return float(cut.max())


def _cuts_at(phi: Activation, tau: Tensor) -> Tensor:
    """The cut of each τ (n,); infinite where float64 cannot follow φ so far."""
    xi = torch.arange(0.5 * _STEP, _FARTHEST, _STEP, dtype=torch.float64)
    u = tau[:, None, None] * torch.stack([-xi, xi])
    with torch.no_grad():
        value = phi(u)
    near = xi < CUT
    density = torch.exp(-0.5 * xi[near].square()) * (_STEP / math.sqrt(2.0 * math.pi))
    power = (value[..., near].square() * density).sum((1, 2))
    needed = torch.maximum(_needed(value, xi), _needed(phi.derivative(u), xi))
    return torch.where(power > _NOTHING * tau.square(), needed, needed.clamp(max=_FAINT))


def _needed(values: Tensor, xi: Tensor) -> Tensor:
    """(n,), of values (n, 2, x) at −ξ and ξ."""
    finite = torch.isfinite(values).cumprod(-1).bool()  # a function that ends somewhere is not known beyond
    size = torch.where(finite, 2.0 * values.abs().log() - 0.5 * xi.square(), -math.inf)
    largest = size.amax((1, 2))[:, None]
    index = torch.arange(len(xi))
    last = torch.where(size > largest[..., None] - _LOST, index, 0).amax(-1)
    end = (finite.sum(-1) - 1).clamp(min=0)
    far = xi[last] > CUT
    blocked = far & (last == end) & (size.gather(-1, end[..., None])[..., 0] > largest - _COUNTS)
    cut = torch.minimum(xi[end], _WIDTH * ((xi[last] + _MARGIN) / _WIDTH).ceil())
    cut = torch.where(far, cut, CUT).masked_fill(blocked | (largest > _LARGEST), math.inf)
    return cut.amax(-1)


def _too_far(phi: Activation, tau: float) -> BadInput:
    return BadInput(
        f"{phi} grows too fast for inputs of this size: E[φ²(τξ)] or E[φ'²(τξ)] at τ = {tau:.4g} is beyond 1e300, or made of "
        f"what φ is more than {_FARTHEST:g} deviations out or where it is too large for float64. Scale the data down, or take "
        "an activation that grows more slowly.",
        tau=tau,
    )
