"""Panels on which a function is a polynomial to round-off, found by looking: what is integrated over them is exact.

Each panel is halved until the Legendre coefficients of the function and of its slope at its nodes have died out; where they
never do, there is a kink or a jump, which is pinned down and becomes an edge. Then the polynomial of every panel is held
against the function between the nodes, and neighbours that one polynomial serves are joined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from notsodeep.activations.kinks import find_jumps, pinned_down, rounded
from notsodeep.activations.places import around
from notsodeep.activations.slopes import Function, derivative
from notsodeep.approximation.quadrature import CUT, PANEL_NODES, legendre
from notsodeep.errors import BadInput
from notsodeep.tolerances import MESH_RTOL

_WIDEST, _EVEN = 0.5, 2048.0  # panels to begin with, and how far out they are so narrow; farther out they grow
_GROWING = 2000  # of them on either side. What is narrower than a sixteenth of one, and stands alone, may be overlooked
_MOST = 1 << 16  # panels in the end
_HIGH = 12  # from this degree on a polynomial of a panel must have no part: products of two, and a Gaussian, are then exact
_SUSPECT = (9, 20)  # halvings after which a panel that is still not good enough may have a kink in it
_INSIDE = 1e-3  # of a panel: a kink nearer to its end is that of a neighbour, or of none
_FLOOR, _BEYOND = 0.1, 8.0  # of what φ is that many times farther out, the round-off may reach here
_LEAST_TAU, _SLACK, _NOTHING = 0.05, 1e2, 1e-9  # see `_counting`
_NARROWEST = 2.0**-46
_UNBOUNDED = 30.0  # times the largest slope at the first nodes, from which on one may have no bound
_AT_END = (1e-9, 2e-12)  # of a panel, and of x, how far inside its ends it is looked at: places of kinks are known to less
_STRETCH, _TINY = (1e-5, 1e-2), 1e-13  # of a panel, where φ shows its rounding; of φ, how large its steps may be
_SCATTER = 8.0  # how much larger than seen rounding may be
_GOLDEN = 0.381966
_ROUNDS = 6


@dataclass(frozen=True, eq=False)
class Mesh:
    """The panels of a function on a line that begins and ends at −reach and reach, or beyond."""

    edges: Tensor
    """(P + 1,), ascending, float64"""
    kinks: tuple[float, ...]
    jumps: tuple[tuple[float, float], ...]
    """(place, height)"""
    steepness: float = 0.0
    """what φ'² may integrate to, next to a place where φ' has no bound, on what no panel covers"""

    @cached_property
    def features(self) -> tuple[float, ...]:
        """The ends of every run of panels narrower than those beside it: what φ does there is a step, seen from afar."""
        width = self.edges.diff()
        if len(width) < 3:
            return ()
        run = torch.cat([torch.zeros(1, dtype=torch.long), (width.diff() != 0).cumsum(0)])
        first = torch.cat([torch.ones(1, dtype=torch.bool), run.diff() != 0])
        of_run = width[first]
        beside = torch.nn.functional.pad(of_run, (1, 1), value=torch.inf)
        lowest = (of_run < beside[:-2]) & (of_run < beside[2:])
        start = torch.nonzero(first).flatten()
        stop = torch.cat([start[1:], start.new_tensor([len(width)])])
        ends = torch.cat([self.edges[start[lowest]], self.edges[stop[lowest]]])
        return tuple(ends.unique().tolist())

    def within(self, reach: float) -> Mesh:
        """Without the edges, kinks and jumps beyond [−reach, reach]."""
        inside = self.edges[self.edges.abs() < reach]
        kinks = tuple(place for place in self.kinks if abs(place) < reach)
        jumps = tuple(jump for jump in self.jumps if abs(jump[0]) < reach)
        return Mesh(inside, kinks, jumps, self.steepness)


def mesh_of(function: Function, label: str, kinks: tuple[float, ...], reach: float, narrow: tuple[float, ...] = ()) -> Mesh:
    """The mesh of `function` on [−reach, reach], the known `kinks` among its edges; what may be too narrow to be seen is looked
    for at the places `narrow`.

    Raises:
        BadInput: The function is not finite there, or varies too fast to be followed.
    """
    return _Builder(function, label, reach).build(kinks, narrow)


@dataclass
class _Panels:
    """Intervals with the values and slopes of the function at their nodes, (P, nodes) each, and just inside of their ends."""

    lower: Tensor
    upper: Tensor
    values: Tensor
    slopes: Tensor
    ends: Tensor
    """(P, 2, 2): values and slopes at both"""

    def __len__(self) -> int:
        return len(self.lower)

    def __getitem__(self, index: Tensor) -> _Panels:
        return _Panels(*(each[index] for each in self._parts))

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        return self.lower, self.upper, self.values, self.slopes, self.ends

    @staticmethod
    def joined(parts: list[_Panels]) -> _Panels:
        found = _Panels(*(torch.cat(columns) for columns in zip(*(p._parts for p in parts), strict=True)))
        return found[found.lower.argsort()]


class _Builder:
    def __init__(self, function: Function, label: str, reach: float) -> None:
        self.function, self.label, self.reach = function, label, reach
        self.nodes, _ = legendre(PANEL_NODES, "cpu")
        self.to_series = legendre_transform()
        self.found: list[float] = []
        self.steepness = 0.0

    def build(self, kinks: tuple[float, ...], narrow: tuple[float, ...]) -> Mesh:
        known = [k for k in kinks if abs(k) < self.reach]
        near = min(self.reach, _EVEN)
        # Beside round numbers: a kink on an edge would look like none.
        even = _WIDEST * (np.arange(-math.floor(near / _WIDEST), math.floor(near / _WIDEST)) + 1.0 / math.pi)
        far = np.geomspace(near, self.reach, _GROWING + 1) if self.reach > near else np.array([near])
        edges = torch.tensor(np.unique(np.concatenate([-far, even, known, far])), dtype=torch.float64)
        begun = self._evaluated(edges[:-1], edges[1:])
        narrow = tuple(place for place in narrow if abs(place) < self.reach)
        self._set_scales(begun, narrow)
        panels = self._refined(begun)
        if narrow:
            panels = self._with_narrow(panels, narrow)
        for _ in range(_ROUNDS):
            wrong = self._misses(panels)
            if not bool(wrong.any()):
                break
            halves = self._halves(panels[wrong])
            panels = _Panels.joined([panels[~wrong], self._refined(halves)])
        else:
            raise self._too_fast(len(panels))
        kinks = tuple(sorted({*known, *self.found}))
        panels = self._coarsened(panels, kinks)
        edges = torch.cat([panels.lower, panels.upper[-1:]])
        return Mesh(edges, kinks, find_jumps(self.function, kinks), self.steepness)

    def _evaluated(self, lower: Tensor, upper: Tensor) -> _Panels:
        at = torch.cat([self.nodes.expand(len(lower), -1), _near_ends(lower, upper)], dim=1)
        x = 0.5 * (lower + upper)[:, None] + 0.5 * (upper - lower)[:, None] * at
        with torch.no_grad():
            values = self.function(x)
        slopes = derivative(self.function, x)
        bad = ~(torch.isfinite(values) & torch.isfinite(slopes))
        if bool(bad.any()):
            place = float(x[bad][x[bad].abs().argmin()])
            raise BadInput(
                f"{self.label} or its slope is not finite at x = {place:.6g} in float64, and inputs of this size bring it "
                "there: averages of it cannot be taken. Scale the data down, or take an activation that grows more slowly.",
                place=place,
            )
        count = len(self.nodes)
        at_ends = torch.stack([values[:, count:], slopes[:, count:]], dim=1)
        return _Panels(lower, upper, values[:, :count], slopes[:, :count], at_ends)

    def _set_scales(self, begun: _Panels, narrow: tuple[float, ...]) -> None:
        """The largest |φ| and |φ'| up to each distance from 0: round-off is measured by them."""
        radius = torch.maximum(begun.lower.abs(), begun.upper.abs())
        self.radius, order = radius.sort()
        sizes = torch.stack([begun.values.abs().amax(1), begun.slopes.abs().amax(1)])[:, order]
        self.sizes = sizes.cummax(1).values.clamp(min=torch.finfo(torch.float64).tiny)
        if narrow:
            self._add_narrow(sizes, narrow)
        self.counts = self._counting(sizes, 0.5 * (begun.lower + begun.upper).abs()[order])
        self.starts, self.noise = begun.lower, self._rounding(begun)

    def _add_narrow(self, sizes: Tensor, narrow: tuple[float, ...]) -> None:
        """To `sizes`, what φ and φ' are next to each place where that is much more than was seen so far out, unless φ' has no
        bound there."""
        at = torch.tensor(narrow, dtype=torch.float64)
        near, nearest = (derivative(self.function, at + torch.tensor([[-d], [d]])).abs().amax(0) for d in (1e-6, 1e-9))
        probes = around(at[nearest <= 3.0 * near].tolist(), _WIDEST)
        with torch.no_grad():
            both = torch.stack([self.function(probes), derivative(self.function, probes)]).abs()
        place = torch.searchsorted(self.radius, probes.abs()).clamp(max=len(self.radius) - 1)
        new = torch.where(both > 2.0 * self.sizes[:, place], both, 0.0).nan_to_num(0.0, 0.0)
        sizes.scatter_reduce_(1, place.expand_as(new), new, "amax")
        self.sizes = torch.maximum(self.sizes, sizes.cummax(1).values)

    def _with_narrow(self, panels: _Panels, narrow: tuple[float, ...]) -> _Panels:
        """The panels, cut ever shorter towards those places next to which a polynomial is not the function."""
        probes = around(narrow, _WIDEST)
        on = (torch.searchsorted(panels.lower, probes, right=True) - 1).clamp(min=0)
        lower, upper = panels.lower[on], panels.upper[on]
        margin = torch.maximum(_AT_END[0] * (upper - lower), _AT_END[1] * probes.abs().clamp(min=1.0))
        inside = (probes > lower + margin) & (probes < upper - margin) & ~_narrow(panels)[on]
        probes, on = probes[inside], on[inside]
        if not len(probes):
            return panels
        held = panels[on]
        t = (2.0 * probes - held.lower - held.upper) / (held.upper - held.lower)
        with torch.no_grad():
            both = self.function(probes), derivative(self.function, probes)
        missed = torch.zeros_like(probes, dtype=torch.bool)
        for own, seen, scale in zip((held.values, held.slopes), both, self._scales(held), strict=True):
            missed |= (legendre_sum(own @ self.to_series.T, t[:, None])[:, 0] - seen).abs() > 1e2 * MESH_RTOL * scale
        if not bool(missed.any()):
            return panels
        wrong = torch.zeros(len(panels), dtype=torch.bool)
        wrong[on[missed]] = True
        edges = torch.cat([panels.lower, panels.upper[-1:], probes[wrong[on]]]).unique()
        new = wrong[torch.searchsorted(panels.lower, 0.5 * (edges[:-1] + edges[1:]), right=True) - 1]
        return _Panels.joined([panels[~wrong], self._refined(self._evaluated(edges[:-1][new], edges[1:][new]))])

    def _counting(self, sizes: Tensor, radius: Tensor) -> Tensor:
        """(2, P): how large what φ and φ' are off by may be at each radius r, if it is to be no more than they are under any
        Gaussian: min over τ of max over x of φ(x) e^(−(x² − r²)/4τ²). Of a φ that grows, what it is far out does not count."""
        most, least = self.reach / CUT, min(_LEAST_TAU, self.reach / CUT)
        tau = torch.logspace(math.log2(least), math.log2(most), math.ceil(8.0 * math.log2(most / least)) + 1, base=2.0)
        falls = radius.square() / (4.0 * tau.double().square()[:, None])
        largest = (sizes.log()[:, None] - falls).amax(2)
        largest[:, largest[0] < (_NOTHING * tau).log()] = math.inf  # nothing is made of a φ that is 0 for such inputs
        return _SLACK * (largest[..., None] + falls).amin(1).exp()

    def _rounding(self, begun: _Panels) -> Tensor:
        """(2, P): what φ and φ' scatter by. On a short stretch that is rounding; on a longer one, where rounding may be steps,
        it counts only as far as it is tiny."""
        radius = torch.maximum(begun.lower.abs(), begun.upper.abs()).clamp(min=1.0)
        steps = torch.minimum(self._scatter(begun, _STRETCH[1]), _TINY * self._sizes_to(_BEYOND * radius))
        return torch.maximum(self._scatter(begun, _STRETCH[0]), steps)

    def _scatter(self, begun: _Panels, stretch: float) -> Tensor:
        """(2, P): how far φ and φ' are from polynomials of degree 5 in the middle of each panel, the middle one of five
        neighbours, so that a kink is not taken for noise."""
        t = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
        x = 0.5 * (begun.lower + begun.upper)[:, None] + stretch * (begun.upper - begun.lower)[:, None] * t
        with torch.no_grad():
            both = torch.stack([self.function(x), derivative(self.function, x)])
        basis = torch.linalg.qr(torch.stack([t**k for k in range(6)], dim=1))[0]
        away = (both - both @ basis @ basis.T).abs().amax(2)
        around = torch.nn.functional.pad(away[None], (2, 2), mode="replicate")[0].unfold(1, 5, 1)
        return around.median(2).values.nan_to_num(0.0)

    def _scales(self, panels: _Panels) -> Tensor:
        """(2, P): what φ and φ' are measured by on each panel: their largest up to where it begins, seen from 0, since a
        Gaussian that is narrow has none of what lies farther out."""
        nearest = torch.minimum(panels.lower.abs(), panels.upper.abs())
        radius = torch.where((panels.lower < 0.0) & (panels.upper > 0.0), 0.0, nearest)
        own = torch.stack([panels.values.abs().amin(1), panels.slopes.abs().amin(1)])  # a slope may have no bound
        beyond = torch.minimum(_FLOOR * self._sizes_to(_BEYOND * radius.clamp(min=1.0)), self._counts_at(radius))
        value, slope = torch.maximum(torch.maximum(self._sizes_to(radius), own), beyond)
        # x itself is known to its rounding only, which φ' turns into one of φ, and φ'' ≈ φ'²/φ into one of φ'.
        blind = 4.0 * torch.finfo(torch.float64).eps / MESH_RTOL * radius * slope
        # On a wide panel a slope is known well enough only if what it adds up to is.
        slope = torch.minimum(slope, value / (panels.upper - panels.lower)) + blind * slope / value
        here = (torch.searchsorted(self.starts, panels.lower, right=True) - 1).clamp(min=0)
        return torch.stack([value + blind, slope]) + _SCATTER / MESH_RTOL * self.noise[:, here]

    def _counts_at(self, radius: Tensor) -> Tensor:
        return self.counts[:, torch.searchsorted(self.radius, radius).clamp(max=len(self.radius) - 1)]

    def _sizes_to(self, radius: Tensor) -> Tensor:
        """The sizes up to the panel that a radius lies in, on either side of 0."""
        at = torch.searchsorted(self.radius, radius).clamp(max=len(self.radius) - 1)
        return self.sizes[:, torch.searchsorted(self.radius, self.radius[at], right=True) - 1]

    def _good(self, panels: _Panels) -> Tensor:
        """Whether what is left of a polynomial beyond its low degrees is round-off, and it is the function at the ends too."""
        both, scales = torch.stack([panels.values, panels.slopes]), self._scales(panels)
        good = ((both @ self.to_series[_HIGH:].T).abs().amax(2) <= MESH_RTOL * scales).all(0)
        ends = _near_ends(panels.lower, panels.upper)
        for own, seen, scale in zip(both, panels.ends.unbind(1), scales, strict=True):
            missed = (legendre_sum(own @ self.to_series.T, ends) - seen).abs().amax(1)
            good &= (missed <= 1e2 * MESH_RTOL * scale) | (ends[:, 1] < 0.9)
        return good

    def _refined(self, pending: _Panels) -> _Panels:
        done: list[_Panels] = []
        while len(pending):
            good = self._good(pending)
            done.append(pending[good])
            rest = pending[~good]
            narrow = _narrow(rest)
            if bool(narrow.any()):  # of no width for a Gaussian, but what φ'² may be there counts
                last = rest[narrow]
                slopes = last.slopes.abs().amax(1)
                # No larger than slopes elsewhere, it is that of a kink that was not pinned down.
                grows = slopes > _UNBOUNDED * self._sizes_to(torch.maximum(last.lower.abs(), last.upper.abs()))[1]
                left_out = torch.where(grows, slopes.square() * (last.upper - last.lower), 0.0)
                self.steepness = max(self.steepness, float(left_out.max()))
                done.append(last)
                rest = rest[~narrow]
            if len(rest) + sum(map(len, done)) > _MOST:
                raise self._too_fast(len(rest) + sum(map(len, done)))
            pending = self._split(rest)
        return _Panels.joined(done)

    def _split(self, rest: _Panels) -> _Panels:
        """Halves; where a kink is suspected, the two sides of it."""
        if not len(rest):
            return rest
        width = rest.upper - rest.lower
        halvings = (_WIDEST / width).log2().round()
        suspected = (halvings == _SUSPECT[0]) | (halvings == _SUSPECT[1])
        if not bool(suspected.any()):
            return self._halves(rest)
        place = torch.full_like(rest.lower, torch.nan)
        place[suspected] = pinned_down(self.function, rest.lower[suspected], rest.upper[suspected])
        share = (place - rest.lower) / width
        new = (share > _INSIDE) & (share < 1.0 - _INSIDE)
        parts = [self._halves(rest[~new])] if bool((~new).any()) else []
        if bool(new.any()):
            exact = torch.tensor([rounded(p) for p in place[new].tolist()], dtype=torch.float64)
            self.found += exact.tolist()
            parts += [self._evaluated(rest.lower[new], exact), self._evaluated(exact, rest.upper[new])]
        return _Panels.joined(parts)

    def _halves(self, panels: _Panels) -> _Panels:
        middle = 0.5 * (panels.lower + panels.upper)
        return self._evaluated(torch.cat([panels.lower, middle]), torch.cat([middle, panels.upper]))

    def _misses(self, panels: _Panels) -> Tensor:
        """Which polynomials are not the function between the nodes: looked at the nodes of two unequal parts."""
        cut = panels.lower + _GOLDEN * (panels.upper - panels.lower)
        wrong = torch.zeros(len(panels), dtype=torch.bool)
        for part in (self._evaluated(panels.lower, cut), self._evaluated(cut, panels.upper)):
            wrong |= ~self._agrees(panels, part)
        return wrong & ~_narrow(panels)

    def _agrees(self, panels: _Panels, part: _Panels) -> Tensor:
        """Whether the polynomial of each panel is the function on a part of it."""
        width = panels.upper - panels.lower
        start = 2.0 * (part.lower - panels.lower) / width - 1.0
        length = (part.upper - part.lower) / width
        at = start[:, None] + length[:, None] * (self.nodes + 1.0)
        agrees = torch.ones(len(panels), dtype=torch.bool)
        for own, other, scale in zip(
            (panels.values, panels.slopes), (part.values, part.slopes), self._scales(panels), strict=True
        ):
            missed = (legendre_sum(own @ self.to_series.T, at) - other).abs().amax(1)
            agrees &= missed <= 10.0 * MESH_RTOL * scale
        return agrees

    def _coarsened(self, panels: _Panels, kinks: tuple[float, ...]) -> _Panels:
        """Neighbours joined wherever one polynomial serves both, kinks left alone."""
        fixed = torch.tensor(kinks or (torch.inf,), dtype=torch.float64)
        first, idle = 0, 0
        while idle < 2 and len(panels) > 1:
            left = torch.arange(first, len(panels) - 1, 2)
            left = left[~torch.isin(panels.upper[left], fixed)]
            both = self._evaluated(panels.lower[left], panels.upper[left + 1])
            good = self._good(both) & self._agrees(both, panels[left]) & self._agrees(both, panels[left + 1])
            joined = torch.zeros(len(panels), dtype=torch.bool)
            joined[left[good]] = joined[left[good] + 1] = True
            idle = 0 if bool(good.any()) else idle + 1
            first = 1 - first
            panels = _Panels.joined([panels[~joined], both[good]])
        return panels

    def _too_fast(self, panels: int) -> BadInput:
        return BadInput(
            f"{self.label} varies too fast between {-self.reach:.4g} and {self.reach:.4g}, or its slope has too few digits "
            f"somewhere there: {panels} panels are not enough to follow it to round-off. Scale the data down (at least ±16 is "
            "looked at), stretch the activation (sin(600*x) to sin(x)), or round its cusps off (abs(x - 1)**0.5 to "
            "((x - 1)**2 + 0.01)**0.25).",
            panels=panels,
        )


def _near_ends(lower: Tensor, upper: Tensor) -> Tensor:
    """Places of [−1, 1], (P, 2), just inside of the ends of each panel; farther inside than 0.9 where it is too narrow."""
    size = torch.maximum(lower.abs(), upper.abs()).clamp(min=1.0)
    inside = torch.maximum(_AT_END[0] * torch.ones_like(size), _AT_END[1] * size / (upper - lower)).clamp(max=0.5)
    return torch.stack([2.0 * inside - 1.0, 1.0 - 2.0 * inside], dim=1)


def _narrow(panels: _Panels) -> Tensor:
    return panels.upper - panels.lower <= _NARROWEST * panels.upper.abs().clamp(min=1.0)


def legendre_sum(coefficients: Tensor, at: Tensor) -> Tensor:
    """Σ_k c_k P_k(t), (P, t), of coefficients (P, degrees), by Clenshaw's recurrence."""
    later = last = torch.zeros_like(at)
    for k in range(coefficients.shape[1] - 1, 0, -1):
        here = coefficients[:, k, None] + (2.0 * k + 1.0) / (k + 1.0) * at * last - (k + 1.0) / (k + 2.0) * later
        later, last = last, here
    return coefficients[:, 0, None] + at * last - 0.5 * later


def legendre_transform() -> Tensor:
    """(degrees, nodes): from the values at the Gauss–Legendre nodes to the coefficients of their polynomial."""
    points, weights = np.polynomial.legendre.leggauss(PANEL_NODES)
    powers = np.polynomial.legendre.legvander(points, PANEL_NODES - 1)
    return torch.tensor(powers.T * weights * (np.arange(PANEL_NODES)[:, None] + 0.5))
