"""Smooth functions from their values at a few points: tables in log x, and sums of products of two variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from notsodeep.errors import BadInput, NotContractive
from notsodeep.tolerances import SEPARABLE_RTOL, TABLE_RTOL

_WIDTH = 0.6  # of a panel, in log x: a Gaussian average is analytic for |arg x| < π/4 at least, far from its half width
_NODES = (24, 48, 96)
_WORTH_IT = 2  # points for each node
_CHECKS = (-0.97, -0.51, 0.07, 0.62, 0.99)
_KEPT = 256  # panels
_PIVOTS = 24


@dataclass(frozen=True)
class Smooth:
    """A function (n,) ↦ (n, q) in float64, on the CPU, with a name that no other function has."""

    name: Hashable
    together: bool
    """Whether columns are accurate relative to the largest of them, as is enough where they are summed."""
    call: Callable[[Tensor], Tensor]
    may_change: bool = True
    """Whether the function may change under its name; a cached panel is then checked at one point before it is used."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Smooth) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def tabulated(function: Smooth, x: Tensor, times: int = 1) -> Tensor:
    """function(x), (n, q), for x (n,) ≥ 0 in float64: Chebyshev interpolation in log x, panel by panel, to round-off.

    Each panel is checked against the function between its nodes, relative to the largest entry of a column. A panel that misses
    `TABLE_RTOL` is refined; where that does not help, or for few points, the function is called at every point. Zeros have no
    logarithm and are always computed directly. Panels lie on a fixed grid and are cached, so later samples of similar size
    reuse them: where such points will be asked for several `times`, fewer of them are worth a table.
    """
    if x.ndim != 1 or times * x.numel() < _WORTH_IT * _NODES[0]:
        return _directly(function, x)
    positive = x > 0
    if not bool(positive.any()):
        return _directly(function, x)
    if not bool(positive.all()):
        at_zero = _directly(function, x[~positive])
        found = at_zero.new_empty(len(x), at_zero.shape[1])
        found[~positive], found[positive] = at_zero, tabulated(function, x[positive], times)
        return found
    t = x.log() / _WIDTH
    place = t.floor()
    used = place.unique().tolist()
    for nodes in _NODES:
        if times * x.numel() < _WORTH_IT * nodes * len(used):
            break
        panels = [_panel(function, int(index), nodes, _witness(function, int(index))) for index in used]
        if all(panel is not None for panel in panels):
            return _read(panels, used, t, place, nodes)
    return _directly(function, x)


def _directly(function: Smooth, x: Tensor) -> Tensor:
    return function.call(x.cpu()).to(x.device)


def _read(panels: list[Tensor | None], used: list[float], t: Tensor, place: Tensor, nodes: int) -> Tensor:
    basis = _chebyshev(2.0 * (t - place) - 1.0, nodes)
    known = [panel.to(t.device) for panel in panels if panel is not None]
    if len(known) == 1:
        return basis @ known[0]
    found = basis.new_empty(len(t), known[0].shape[1])
    for panel, index in zip(known, used, strict=True):
        here = place == index
        found[here] = basis[here] @ panel
    return found


def _witness(function: Smooth, index: int) -> bytes | None:
    """The function in the middle of a panel, bit by bit: a module may have been trained under the same name."""
    if not function.may_change:
        return None
    try:
        return bytes(function.call(torch.tensor([(index + 0.5) * _WIDTH], dtype=torch.float64).exp()).numpy().tobytes())
    except (NotContractive, BadInput):
        return None


@lru_cache(maxsize=_KEPT)
def _panel(function: Smooth, index: int, nodes: int, _witness: bytes | None) -> Tensor | None:
    """Chebyshev coefficients (nodes, q) on [index, index + 1] in log x over the width of a panel, cached for each witness.

    None if they miss too much, or the function does not exist on all of the panel.
    """
    angles = (torch.arange(nodes, dtype=torch.float64) + 0.5) * (math.pi / nodes)
    checks = torch.tensor(_CHECKS, dtype=torch.float64)
    points = 0.5 * (torch.cat([angles.cos(), checks]) + 1.0) + index
    try:
        values = function.call((points * _WIDTH).exp())
    except (NotContractive, BadInput):
        return None
    # T_l at the nodes: a discrete cosine transform, as a product with a small matrix.
    transform = torch.cos(torch.outer(torch.arange(nodes, dtype=torch.float64), angles)) * (2.0 / nodes)
    transform[0] *= 0.5
    coefficients = transform @ values[:nodes]
    missed = (_chebyshev(checks, nodes) @ coefficients - values[nodes:]).abs().amax(0)
    scale = values.abs().amax(0)
    scale = scale.max() if function.together else scale
    share = missed / scale.clamp(min=torch.finfo(scale.dtype).tiny)
    return coefficients if float(share.nan_to_num(math.inf).max()) <= TABLE_RTOL else None


def _chebyshev(u: Tensor, terms: int) -> Tensor:
    """T_0 … T_{terms−1} at u, (n, terms)."""
    angle = u.clamp(-1.0, 1.0).arccos()
    return torch.cos(angle[:, None] * torch.arange(terms, dtype=u.dtype, device=u.device))


def separate(core: Tensor) -> tuple[Tensor, Tensor]:
    """Basis (k, r) and weights ±1 (r,) from the values M (k, k) of a smooth symmetric function at its pivots (Nyström).

    function(s, t) ≈ Σ_r w_r f_r(s) f_r(t) with f(s) = function(s, pivots) @ basis, to SEPARABLE_RTOL.
    """
    values, vectors = torch.linalg.eigh(0.5 * (core + core.T))
    kept = values.abs() > SEPARABLE_RTOL * values.abs().max()
    values = values[kept]
    return vectors[:, kept] * (values.abs().sqrt() / values), values.sign()


def chebyshev_subset(places: Tensor) -> Tensor:
    """Indices of at most 24 distinct places (n,), those nearest to Chebyshev points of their range."""
    low, high = places.min(), places.max()
    angles = torch.linspace(0.0, torch.pi, _PIVOTS, dtype=places.dtype, device=places.device)
    wanted = 0.5 * (low + high) - 0.5 * (high - low) * torch.cos(angles)
    order = places.argsort()
    ordered = places[order]
    above = torch.searchsorted(ordered, wanted).clamp(max=len(places) - 1)
    below = (above - 1).clamp(min=0)
    chosen = order[torch.where(wanted - ordered[below] < ordered[above] - wanted, below, above)]
    # One index per value: equal places would make the sampled matrix singular.
    distinct = torch.unique_consecutive(places[chosen], return_inverse=True)[1]
    first = torch.ones_like(distinct, dtype=torch.bool)
    first[1:] = distinct[1:] != distinct[:-1]
    return chosen[first]
