"""A smooth function of one positive variable at very many points, from its values at a few."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from notsodeep.errors import NotContractive
from notsodeep.tolerances import SEPARABLE_RTOL, TABLE_RTOL

_WIDTH = 0.6  # of a panel, in log x: a Gaussian average is analytic for |arg x| < π/4 at least, far from its half width
_NODES = (24, 48, 96)
_WORTH_IT = 2  # points for each node
_CHECKS = (-0.97, -0.51, 0.07, 0.62, 0.99)
_KEPT = 256  # panels
_SMALLEST, _LARGEST = 32, 512  # terms
_TAIL, _NOISE = 1e-13, 1e-9  # of the largest coefficient: settled; settled as far as a noisy function allows
_PIVOTS = 24


@dataclass(frozen=True)
class Smooth:
    """A function (n,) ↦ (n, q) in float64, on the CPU, with a name that tells it from every other one.

    Columns that are summed `together` need be known only relative to the largest of them. What `may_change` under its name
    is looked at again before anything kept of it is used.
    """

    name: Hashable
    together: bool
    call: Callable[[Tensor], Tensor]
    may_change: bool = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Smooth) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def tabulated(function: Smooth, x: Tensor, times: int = 1) -> Tensor:
    """function(x), (n, q), for x (n,) ≥ 0 in float64: Chebyshev interpolation in log x, panel by panel, to round-off.

    Between nodes a panel is held against the function itself, relative to the largest entry that a column has on it. Where it
    misses `TABLE_RTOL` it is made finer; where that does not help, or points are few, the function is called for all of them.
    Panels lie on a fixed grid and are kept, so that the next samples of like size find them made: where the same points will
    be asked for several `times`, fewer of them are worth a table.
    """
    if x.ndim != 1 or times * x.numel() < _WORTH_IT * _NODES[0] or not bool((x > 0).all()):
        return _directly(function, x)
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
    """The function in the middle of a panel, bit by bit: a module has the name it had, but may have learnt since."""
    if not function.may_change:
        return None
    try:
        return bytes(function.call(torch.tensor([(index + 0.5) * _WIDTH], dtype=torch.float64).exp()).numpy().tobytes())
    except NotContractive:
        return None


@lru_cache(maxsize=_KEPT)
def _panel(function: Smooth, index: int, nodes: int, _witness: bytes | None) -> Tensor | None:
    """Chebyshev coefficients (nodes, q) on [index, index + 1] in log x over the width of a panel; None if they miss too much,
    or the function does not exist on all of the panel. They are kept for as long as the witness is the same."""
    angles = (torch.arange(nodes, dtype=torch.float64) + 0.5) * (math.pi / nodes)
    checks = torch.tensor(_CHECKS, dtype=torch.float64)
    points = 0.5 * (torch.cat([angles.cos(), checks]) + 1.0) + index
    try:
        values = function.call((points * _WIDTH).exp())
    except NotContractive:
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


@dataclass(frozen=True, eq=False)
class ChebyshevSeries:
    """Σ_k c_k T_k(t), t = (2 log s − log ab)/log(b/a) ∈ [−1, 1], on a ≤ s ≤ b; c is (terms, columns)."""

    coefficients: Tensor
    low: float
    high: float

    @classmethod
    def of(cls, function: Callable[[Tensor], Tensor], low: float, high: float) -> ChebyshevSeries | None:
        """`function`, (m,) → (m, columns), to round-off on 0 < low ≤ s ≤ high; None where 512 terms are not enough.

        Round-off of the largest column: columns are meant to be of one scale.
        """
        terms = _SMALLEST
        before: tuple[ChebyshevSeries | None, float] = (None, math.inf)
        while terms <= _LARGEST:
            angles = (torch.arange(terms, dtype=torch.float64) + 0.5) * (math.pi / terms)
            places = _places(torch.cos(angles), low, high)
            waves = torch.cos(torch.arange(terms, dtype=torch.float64)[:, None] * angles[None, :])
            coefficients = (2.0 / terms) * (waves @ function(places))
            coefficients[0] *= 0.5
            # The last quarter, because a series that has not settled may have a few small terms by chance.
            tail = float(coefficients[-terms // 4 :].abs().max() / coefficients.abs().max())
            series = cls(coefficients, low, high)
            if tail <= _TAIL:
                return series
            if before[1] <= _NOISE and tail > 0.5 * before[1]:
                return before[0]
            terms, before = 2 * terms, (series, tail)
        return None

    def covers(self, s: Tensor) -> Tensor:
        return (s >= self.low) & (s <= self.high)

    def __call__(self, s: Tensor) -> Tensor:
        """(m, columns) at s (m,), by Clenshaw's recurrence."""
        t = (2.0 * s.log() - math.log(self.low * self.high)) / math.log(self.high / self.low)
        t = t[:, None]
        ahead = further = self.coefficients.new_zeros(())
        for row in self.coefficients[1:].flip(0):
            ahead, further = torch.addcmul(row - further, t, 2.0 * ahead), ahead
        return t * ahead - further + self.coefficients[0]


def _places(t: Tensor, low: float, high: float) -> Tensor:
    return torch.exp(0.5 * (t * math.log(high / low) + math.log(low * high))).clamp(low, high)


def separate(function: Callable[[Any, Any], Tensor], places: Tensor) -> tuple[Tensor, Tensor]:
    """Features (n, r) and weights (r,) with function(i, j) ≈ Σ_r w_r f_ir f_jr, to SEPARABLE_RTOL.

    `function(rows, columns)` gives entries for indices into `places` (n,), on which it depends smoothly. It is sampled
    at a few places spread like Chebyshev points (Nyström), whose eigenvectors make the features.
    """
    pivots = chebyshev_subset(places)
    core = function(pivots, pivots)
    values, vectors = torch.linalg.eigh(0.5 * (core + core.T))
    kept = values.abs() > SEPARABLE_RTOL * values.abs().max()
    if not bool(kept.any()):
        return places.new_zeros(len(places), 0), places.new_zeros(0)
    features = function(slice(None), pivots) @ (vectors[:, kept] / values[kept])
    return features, values[kept]


def chebyshev_subset(places: Tensor) -> Tensor:
    low, high = places.min(), places.max()
    angles = torch.linspace(0.0, torch.pi, _PIVOTS, dtype=places.dtype, device=places.device)
    wanted = 0.5 * (low + high) - 0.5 * (high - low) * torch.cos(angles)
    order = places.argsort()
    ordered = places[order]
    above = torch.searchsorted(ordered, wanted).clamp(max=len(places) - 1)
    below = (above - 1).clamp(min=0)
    chosen = order[torch.where(wanted - ordered[below] < ordered[above] - wanted, below, above)]
    # One index a value: equal places would make the sampled matrix singular for nothing.
    distinct = torch.unique_consecutive(places[chosen], return_inverse=True)[1]
    first = torch.ones_like(distinct, dtype=torch.bool)
    first[1:] = distinct[1:] != distinct[:-1]
    return chosen[first]
