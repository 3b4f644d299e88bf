"""Gaussian integrals of any function of one variable, to 1e-9, by an integration that shares no line with the package.

    E[f(u)g(v)],  u = τ_i ξ, v = τ_j ζ, of a density that separates but for a function of ξ − ζ (of ξ + ζ where ρ < 0):

    exp(−(ξ² − 2ρξζ + ζ²)/2c²)/2πc = e^(−ξ²/2(1+ρ)) e^(−ζ²/2(1+ρ)) · e^(−ρ(ξ−ζ)²/2c²)/2πc,   c² = 1 − ρ².

That function is smooth on the scale c, so on cells of that width it is a polynomial to round-off, and f and g enter only by
their moments on each cell: integrals in one variable, on panels halved until f is a polynomial on each. So kinks, jumps,
steep pieces and waves cost what they cost in one variable, whatever ρ is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

Array = np.ndarray
Function = Callable[[Array], tuple[Array, Array]]
"""x ↦ (φ(x), φ'(x)), a point mass of φ' left out."""

AGREE_RTOL = 1e-9
"""Two resolutions must agree this far, or there is no verdict."""

_NODES = 16
_FARTHEST = 40.0  # deviations
_MOST_PANELS, _MOST_CELLS, _CHUNK = 80_000, 400_000, 1_000
_EPS = float(np.finfo(float).eps)
_WIDEST_KERNEL = 9.5  # deviations after which e^(−ρd²/2c²) is below round-off


class Undecided(Exception):
    """The oracle cannot tell: too fine a structure, or no finite value."""


@dataclass(frozen=True)
class Resolution:
    panels: int
    """to begin with"""
    rtol: float
    """of φ on a panel, in the norm of L²(N(0, τ²))"""
    points: int
    """of Gauss and Legendre on a panel"""
    terms: int
    """of the polynomial on a cell"""
    cell: float
    """its width, in deviations of the function of ξ − ζ"""


RESOLUTIONS = (Resolution(256, 1e-11, 24, 26, 3.0), Resolution(373, 1e-12, 30, 24, 2.2), Resolution(2048, 1e-13, 36, 24, 1.5))


@dataclass(frozen=True)
class Side:
    """φ at one deviation: its mesh in ξ = u/τ, and the integrals of it alone."""

    tau: float
    edges: Array
    norm: float
    """√E[φ²]"""
    slope_norm: float
    """√E[φ'²], without the jumps"""
    jumps: bool
    """whether a jump of φ was seen"""
    hidden: tuple[bool, bool]
    """whether E[φ²] and E[φ'²] come from beyond 8.5 deviations and are next to nothing beside φ and φ' on [−64, 64]: a number
    such as 1e-100 that no one who adds it to others can tell from 0"""
    lost: bool
    """whether φ' changes φ by less than its rounding and is next to nothing, as that of tanh(x) at 150: a float64 φ is constant
    there, and its derivative, made of its value, is 0"""
    moments: dict[str, float]


@dataclass(frozen=True)
class Pair:
    """k = E[φ(u)φ(v)] and Q = E[φ'(u)φ'(v)]; Q is of the slope alone, so it is not ∂k/∂λ where φ jumps, and NaN where it
    does not converge, as of √|x|, whose E[φ'²] is infinite."""

    left: Side
    right: Side
    value: float
    slope: float
    doubt: float
    """how far two resolutions were apart, relative to the diagonals"""


def pair(phi: Function, places: Sequence[float], tau_i: float, tau_j: float, rho: float, c: float) -> Pair:
    """E[φ(u)φ(v)] at correlation ρ, with c = √(1 − ρ²) given apart, to all its digits.

    Args:
        phi: value and slope.
        places: where φ may vary quickly: a feature narrower than 1/10 deviation is only found next to one of these.

    Raises:
        Undecided: no two resolutions agree to `AGREE_RTOL`.
    """
    before: Pair | None = None
    for resolution in RESOLUTIONS:
        now = _pair(phi, places, tau_i, tau_j, rho, c, resolution)
        if before is not None:
            value, slope = _apart(before, now)
            if max(value, slope) <= AGREE_RTOL:
                return replace(now, doubt=max(value, slope))
            if value <= AGREE_RTOL and resolution is RESOLUTIONS[-1]:
                return replace(now, slope=math.nan, doubt=value)
        before = now
    raise Undecided("two resolutions do not agree")


def _apart(a: Pair, b: Pair) -> tuple[float, float]:
    """Of what is made of φ, and of what is made of φ'."""
    value, slope = abs(a.value - b.value) / (b.left.norm * b.right.norm), 0.0
    if scale := b.left.slope_norm * b.right.slope_norm:
        slope = abs(a.slope - b.slope) / scale
    for one, other in ((a.left, b.left), (a.right, b.right)):
        value = max(value, abs(one.norm / other.norm - 1.0))
        slope = max(slope, abs(one.slope_norm / other.slope_norm - 1.0) if other.slope_norm else 0.0)
    return value, slope


def _pair(phi: Function, places: Sequence[float], tau_i: float, tau_j: float, rho: float, c: float, how: Resolution) -> Pair:
    left = side(phi, places, tau_i, how)
    right = left if tau_j == tau_i else side(phi, places, tau_j, how)
    return Pair(left, right, *between(phi, left, right, rho, c, how), math.inf)


@np.errstate(all="ignore")
def between(phi: Function, left: Side, right: Side, rho: float, c: float, how: Resolution) -> tuple[float, float]:
    """(k, Q) of two sides, at one resolution."""
    if c == 0.0:
        return _collinear(phi, left, right, math.copysign(1.0, rho), how)
    return _bilinear(phi, left, right, rho, c, how)


# --- one variable -----------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def side(phi: Function, places: Sequence[float], tau: float, how: Resolution) -> Side:
    """The mesh of φ at τ, and its own integrals."""
    low, high = _reach(phi, tau, places)
    start = np.linspace(low, high, how.panels + 1)
    marks = _graded(places, tau, low, high)
    edges = _refined(phi, tau, np.unique(np.concatenate([start, marks])), how.rtol)
    xi, weights = _panel_nodes(edges, how.points)
    root = _root_density(xi, weights)
    value, slope = (root * part for part in _evaluated(phi, tau * xi))  # first, for the square alone may overflow
    power, steepness = float(np.sum(value**2)), float(np.sum(slope**2))
    if not (math.isfinite(power) and math.isfinite(steepness)) or max(power, steepness) > 1e300:
        raise Undecided("it overflows")
    if power < 1e-280:
        raise Undecided("it underflows")
    outside = np.abs(xi) > 8.5
    largest = _largest(phi, tau)
    nothing = [math.sqrt(total) < 3e-13 * around for total, around in zip((power, steepness), largest, strict=True)]
    value_hidden, slope_hidden = (
        small and float(np.sum(part[outside] ** 2)) > 0.5 * total
        for small, part, total in zip(nothing, (value, slope), (power, steepness), strict=True)
    )
    lost = nothing[1] and tau * math.sqrt(steepness) < _EPS * math.sqrt(power)
    found = _moments(tau, xi, root, value, slope)
    jumps = _jumps(phi, tau, edges)
    return Side(tau, edges, math.sqrt(power), math.sqrt(steepness), jumps, (value_hidden, slope_hidden), lost, found)


def _largest(phi: Function, tau: float) -> list[float]:
    """The largest |φ| and |φ'| on [−64, 64]; within 40 deviations where they are 0 there."""
    near, far = (_evaluated(phi, np.linspace(-reach, reach, 4097)) for reach in (64.0, 40.0 * tau))
    sizes = [[float(np.max(np.abs(v), initial=0.0, where=np.isfinite(v))) for v in both] for both in (near, far)]
    return [here or beyond for here, beyond in zip(*sizes, strict=True)]


def _jumps(phi: Function, tau: float, edges: Array) -> bool:
    """Whether φ changes on a panel next to nothing wide by more than its slopes explain, and is not back right after it, as it
    is where it differs in a point alone."""
    value, slope = _evaluated(phi, tau * edges)
    width = np.diff(edges)
    leap = np.abs(np.diff(value))
    steepest = np.maximum(np.abs(slope[1:]), np.abs(slope[:-1]))
    seen = (width < 1e-9) & (leap > 1e-7 * np.abs(value).max()) & (leap > 10.0 * tau * width * steepest)
    before, after = (_evaluated(phi, tau * (at + shift))[0] for at, shift in ((edges[:-1], -1e-7), (edges[1:], 1e-7)))
    return bool((seen & (np.abs(after - before) > 0.1 * leap)).any())


def _moments(tau: float, xi: Array, root: Array, value: Array, slope: Array) -> dict[str, float]:
    """Those of `notsodeep.gaussian.moments`, of a φ without jumps, by Stein's identity; φ and φ' come times `root`."""
    mean = float(np.sum(root * value))
    central = value - mean * root
    return {
        "mean": mean,
        "e1": float(np.sum(root * slope)),
        "e2": float(np.sum(root * xi * slope)) / tau,
        "e3": float(np.sum(root * (xi**2 - 1.0) * slope)) / tau**2,
        "variance": float(np.sum(central**2)),
        "v2": 2.0 * float(np.sum(xi * central * slope)) / tau,
        "q": float(np.sum(slope**2)),
    }


def _root_density(xi: Array, weights: Array) -> Array:
    """√(weight·N(ξ))"""
    return np.sqrt(weights / math.sqrt(2.0 * math.pi)) * np.exp(-0.25 * xi**2)


def _evaluated(phi: Function, x: Array) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        value, slope = phi(x)
    return np.broadcast_to(value, x.shape), np.broadcast_to(slope, x.shape)


def _reach(phi: Function, tau: float, places: Sequence[float]) -> tuple[float, float]:
    """The range of ξ beyond which φ²N and φ'²N are below 1e-34 of their largest value, at least ±9."""
    xi = np.union1d(np.linspace(-_FARTHEST, _FARTHEST, 16_001), [p / tau for p in places if abs(p / tau) < _FARTHEST])
    kept = np.zeros(len(xi), dtype=bool)
    for values in _evaluated(phi, tau * xi):
        with np.errstate(all="ignore"):
            size = 2.0 * np.log(np.abs(values)) - 0.5 * xi**2
        if np.isnan(values).any() or np.isposinf(size).any():
            core = np.abs(xi) < 9.0
            if not np.isfinite(values[core]).all():
                raise Undecided("it is not finite")
            size = np.where(np.isfinite(values), size, -np.inf)
            # What is not finite far out must be so where nothing counts any more.
            first = np.abs(xi[~np.isfinite(values)]).min()
            if size[np.abs(xi) > first - 1.0].max() > size.max() - 80.0:
                raise Undecided("it overflows")
        if max(size[0], size[-1]) > size.max() - 80.0 and size.max() > -np.inf:
            raise Undecided("its mass is out of reach")
        kept |= size > size.max() - 80.0
    found = xi[kept]
    if not len(found):
        raise Undecided("it is 0")
    step = 2.0 * _FARTHEST / 16_000
    return min(-9.0, float(found[0]) - step), max(9.0, float(found[-1]) + step)


def _graded(places: Sequence[float], tau: float, low: float, high: float) -> Array:
    """Each place, and where they are few ever shorter steps towards it."""
    at = np.array([p / tau for p in places if low < p / tau < high])
    if not len(at):
        return at
    smallest = min(1e-6 / tau, 1e-3)
    steps = smallest * 4.0 ** np.arange(math.ceil(math.log(1.0 / smallest, 4)) + 1)
    if len(at) > 100:
        return at
    marks = (at[:, None] + np.concatenate([-steps, [0.0], steps])).ravel()
    return marks[(marks > low) & (marks < high)]


_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(_NODES)
_END = 1.0 - 1e-13
# The nodes of both halves, and the very ends: what bends beyond the last node would not be seen from inside.
_HALVES = np.concatenate([0.5 * (_POINTS - 1.0), 0.5 * (_POINTS + 1.0), [-_END, _END]])
_TO_HALVES = (
    np.polynomial.legendre.legvander(_HALVES, _NODES - 1)
    @ ((np.arange(_NODES) + 0.5)[:, None] * np.polynomial.legendre.legvander(_POINTS, _NODES - 1).T * _WEIGHTS)
).T


def _refined(phi: Function, tau: float, edges: Array, rtol: float) -> Array:
    """Edges so that φ and φ' are polynomials on every panel, as far as the norm of L²(N) can tell."""
    a, b = edges[:-1], edges[1:]
    done: list[Array] = [edges[-1:]]
    count = 0
    xi = _on(a, b, _POINTS)
    values = _evaluated(phi, tau * xi)
    norms = [_norm(v, xi, b - a) for v in values]
    while len(a):
        middle = 0.5 * (a + b)
        fine = _on(a, b, _HALVES)
        finer = _evaluated(phi, tau * fine)
        width = (b - a)[:, None]
        settled = (b - a) <= 8.0 * _EPS * np.maximum(np.abs(a), np.abs(b)) + 1e-300
        good = np.ones(len(a), dtype=bool)
        near = np.exp(-0.25 * fine**2)
        # The argument τξ is rounded: what φ makes of that is no structure.
        noise = 8.0 * _EPS * (np.abs(finer[0]) + np.abs(tau * fine * finer[1]))
        range_of_slope = np.ptp(finer[1], axis=1, keepdims=True)
        slope_noise = 8.0 * _EPS * (np.abs(finer[1]) + np.abs(fine) / np.maximum(width, 1e-300) * range_of_slope)
        for coarse, now, norm, floor in zip(values, finer, norms, (noise, slope_noise), strict=True):
            error = np.abs(coarse @ _TO_HALVES - now)
            share = np.where(error > floor, error, 0.0) * near / max(norm, 1e-300)
            worst = share.max(axis=1)
            mass = b - a
            good &= (worst * np.sqrt(mass) <= rtol) | (np.maximum(worst, worst**2) * mass <= 1e-2 * rtol)
        good |= settled
        done.append(a[good])
        count += int(good.sum())
        if count + 2 * int((~good).sum()) > _MOST_PANELS:
            raise Undecided("its structure is too fine")
        a, middle, b = a[~good], middle[~good], b[~good]
        values = tuple(_interleaved(v[~good, :_NODES], v[~good, _NODES : 2 * _NODES]) for v in finer)  # type: ignore[assignment]
        fresh = _interleaved(fine[~good, :_NODES], fine[~good, _NODES : 2 * _NODES])
        a, b = _interleaved(a, middle), _interleaved(middle, b)
        norms = [max(norm, _norm(v, fresh, b - a)) for norm, v in zip(norms, values, strict=True)]
    return np.sort(np.concatenate(done))


def _norm(values: Array, xi: Array, width: Array) -> float:
    with np.errstate(all="ignore"):
        return math.sqrt(float(np.sum((_root_density(xi, 0.5 * width[:, None] * _WEIGHTS) * values) ** 2)))


def _interleaved(first: Array, second: Array) -> Array:
    return np.reshape(np.stack([first, second], axis=1), (-1, *first.shape[1:]))


def _on(a: Array, b: Array, points: Array) -> Array:
    return 0.5 * (a + b)[:, None] + 0.5 * (b - a)[:, None] * points


def _panel_nodes(edges: Array, points: int) -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return _on(edges[:-1], edges[1:], nodes), 0.5 * np.diff(edges)[:, None] * weights


# --- two variables ----------------------------------------------------------------------------------------------------


def _collinear(phi: Function, left: Side, right: Side, sign: float, how: Resolution) -> tuple[float, float]:
    """v = ±(τ_j/τ_i)u: one variable is left."""
    low = max(left.edges[0], (sign * right.edges).min())
    high = min(left.edges[-1], (sign * right.edges).max())
    edges = np.unique(np.clip(np.concatenate([left.edges, sign * right.edges]), low, high))
    xi, weights = _panel_nodes(edges, how.points)
    root = _root_density(xi, weights)
    first, second = _evaluated(phi, left.tau * xi), _evaluated(phi, sign * right.tau * xi)
    value, slope = (float(np.sum((root * f) * (root * g))) for f, g in zip(first, second, strict=True))
    return value, slope


def _bilinear(phi: Function, left: Side, right: Side, rho: float, c: float, how: Resolution) -> tuple[float, float]:
    sign, r = math.copysign(1.0, rho), abs(rho)
    deviation = c / math.sqrt(r) if r > 0.0 else math.inf
    width = min(how.cell * deviation, 1.0)
    most = max(abs(end) for side in (left, right) for end in (side.edges[0], side.edges[-1]))
    cells = math.ceil(most / width)
    if 2 * cells > _MOST_CELLS:
        raise Undecided("too many cells")
    first = _cell_weights(phi, left, 1.0, width, cells, r, how)
    second = _cell_weights(phi, right, sign, width, cells, r, how)
    points = 0.5 * width * np.polynomial.legendre.leggauss(how.terms)[0]
    value = slope = 0.0
    farthest = 2 * cells - 1
    if math.isfinite(deviation):
        farthest = min(farthest, math.ceil(_WIDEST_KERNEL * deviation / width) + 1)
    for k in range(-farthest, farthest + 1):
        distance = points[:, None] - points[None, :] - k * width
        kernel = np.exp(-0.5 * r * (distance / c) ** 2) / (2.0 * math.pi * c)
        for start in range(max(0, -k), 2 * cells - max(0, k), 2 * _CHUNK):
            mine = slice(start, min(start + 2 * _CHUNK, 2 * cells - max(0, k)))
            theirs = slice(mine.start + k, mine.stop + k)
            value += float(np.vdot(first[0][mine] @ kernel, second[0][theirs]))
            slope += float(np.vdot(first[1][mine] @ kernel, second[1][theirs]))
    return value * left.norm * right.norm, slope * left.slope_norm * right.slope_norm


def _cell_weights(
    phi: Function, at: Side, sign: float, width: float, cells: int, r: float, how: Resolution
) -> tuple[Array, Array]:
    """(2·cells, terms), of φ/‖φ‖ and of φ'/‖φ'‖: Σ weights·p(nodes) is the integral over the cell of it times e^(−ξ²/2(1+r)) p
    for every polynomial p of fewer than `terms` coefficients, at the nodes of Gauss and Legendre."""
    own = np.sort(sign * at.edges)
    grid = width * np.arange(math.floor(own[0] / width), math.ceil(own[-1] / width) + 1)
    edges = np.union1d(own, grid[(grid > own[0]) & (grid < own[-1])])
    cell = np.floor(0.5 * (edges[1:] + edges[:-1]) / width).astype(int)
    whole = np.bincount(cell + cells, minlength=2 * cells)[cell + cells] == 1
    whole[[0, -1]] = False  # the mesh ends inside of these
    result = np.zeros((2, 2 * cells, how.terms))
    nodes, gauss = np.polynomial.legendre.leggauss(how.terms)

    def parts(xi: Array, weights: Array) -> tuple[Array, Array]:
        weights = weights * np.exp(-0.5 * xi**2 / (1.0 + r))
        value, slope = _evaluated(phi, sign * at.tau * xi)
        return weights * (value / at.norm), weights * (slope / (at.slope_norm or 1.0))

    for some in _chunks(np.flatnonzero(whole)):  # φ is a polynomial there: the rule itself
        xi = (cell[some][:, None] + 0.5) * width + 0.5 * width * nodes
        result[0, cell[some] + cells], result[1, cell[some] + cells] = parts(xi, 0.5 * width * gauss)
    moments = np.zeros((2, how.terms, 2 * cells))
    points, legendre = np.polynomial.legendre.leggauss(how.points)
    for some in _chunks(np.flatnonzero(~whole)):
        a, b = edges[some], edges[some + 1]
        xi, place = _on(a, b, points), cell[some]
        here = (xi - (place[:, None] + 0.5) * width) / (0.5 * width)
        both = parts(xi, 0.5 * (b - a)[:, None] * legendre)
        lower, upper = np.zeros_like(here), np.ones_like(here)
        for n in range(how.terms):
            for which, part in enumerate(both):
                moments[which, n] += np.bincount(place + cells, (part * upper).sum(axis=1), minlength=2 * cells)
            lower, upper = upper, ((2 * n + 1) * here * upper - n * lower) / (n + 1)
    vandermonde = np.polynomial.legendre.legvander(nodes, how.terms - 1).T
    to_nodes = (np.arange(how.terms) + 0.5)[:, None] * vandermonde * gauss
    return result[0] + moments[0].T @ to_nodes, result[1] + moments[1].T @ to_nodes


def _chunks(index: Array) -> list[Array]:
    return [index[k : k + _CHUNK] for k in range(0, len(index), _CHUNK)]
