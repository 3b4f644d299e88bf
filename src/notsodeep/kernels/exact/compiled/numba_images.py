"""The equation of pairs of images on a CPU, all positions and iterations in a core's cache, compiled by numba.

With ρ = Λ/(τ_i τ_j), m = E[φ(τξ)] and h(ρ) = (k − m_i m_j)/(τ_i τ_j), all of a position s, a DEQ has

    τ_i τ_j ρ = σ_a² P(m_i m_j + τ_i τ_j h(ρ)) + σ_b² P S,    Θ_h = τ_i τ_j ρ + σ_a² P(h' Θ_h),

and a layer of an explicit network is one of σ_a² = 0 whose S is the layer before. One image meets `LANES` others at once:
numbers are stored position by position, those of the others side by side, so that every loop, patch averages included, becomes
vector instructions. Blocks that do not settle, for which a series is too short, or whose gradients round-off spoils, are
left to float64, or to `images.pairs`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from notsodeep.kernels.exact.compiled.numba_loops import _fast, arcsine
from notsodeep.tolerances import COLLINEAR

LANES = 16
_STEPS, _SWEEPS, _MOST_SWEEPS = 30, 400, 4000  # the last of gradients, which are right only with all they need
_NEAR = 1024  # numbers that stay in the nearest cache while a series is summed


class Grid(NamedTuple):
    """Height and width of the images, half lengths of the patch along each, and whether the grid is closed."""

    height: int
    width: int
    up: int
    aside: int
    closed: bool


class Laws(NamedTuple):
    """The constants of a DEQ, or of each layer of an explicit network, one entry a layer."""

    var_a: Any
    var_b: Any
    stride: Any
    """0 is a rectifier, of `form` (α², w); 1 or 2 a series in ρ or in ρ²"""
    form: Any
    limits: Any
    """(layers, terms): the largest |ρ| for which 1, 2, … terms are enough"""
    terms: Any
    """How many terms there are"""
    gain: Any
    start: Any
    tol: Any
    doubt: Any
    """What round-off may change of gradients, relative to them"""


class Left(NamedTuple):
    """Of each image and position: pixels (n, c, S), a number of the image, and for each layer τ, 1/τ, m (layers, n, S) and b_l
    (layers, terms, n, S)."""

    pixels: Any
    number: Any
    tau: Any
    inverse: Any
    mean: Any
    coefficients: Any


class Right(NamedTuple):
    """The same of the other images in blocks of `LANES`: (blocks, c, S·LANES), (blocks, LANES), (layers, blocks, S·LANES), and
    (layers, terms, blocks, S·LANES)."""

    pixels: Any
    number: Any
    tau: Any
    inverse: Any
    mean: Any
    coefficients: Any


# Loops run over whole views, from 0 to their length: the compiler then knows that no index is negative, and vectorises.


@_fast
def _added(source: Any, into: Any) -> None:
    for e in range(len(into)):
        into[e] += source[e]


@_fast
def _shifted(source: Any, shift: int, closed: bool, into: Any) -> None:
    """into[e] += source[e ± shift], beyond the ends nothing, or what is at the other end."""
    over = len(source) - shift
    if over > 0:
        _added(source[:over], into[shift:])
        _added(source[shift:], into[:over])
    if closed:
        _added(source[over:], into[:shift])
        _added(source[:shift], into[over:])


@_fast
def _averaged(grid: Grid, factor: Any, source: Any, base: Any, sums: Any, into: Any) -> None:
    """base + factor·P source; `sums` is scratch of twice the length. `source` may be `into`, and so may `base`."""
    row, count = grid.width * LANES, len(source)
    scale = base.dtype.type(factor / ((2 * grid.up + 1) * (2 * grid.aside + 1)))
    along, both = sums[:count], sums[count:]
    for e in range(count):
        along[e] = source[e]
    for start in range(0, count, row):
        for r in range(1, grid.aside + 1):
            _shifted(source[start : start + row], r * LANES, grid.closed, along[start : start + row])
    for e in range(count):
        both[e] = along[e]
    for r in range(1, grid.up + 1):
        _shifted(along, r * row, grid.closed, both)
    for e in range(count):
        into[e] = base[e] + scale * both[e]


@_fast
def _rectified(form: Any, r: Any, value: Any, slope: Any) -> None:
    """h = α²ρ + c(ρ arcsin ρ − ρ²/(1 + √(1 − ρ²))) and its slope."""
    kind = r.dtype.type
    half, one, right = kind(0.5), kind(1.0), kind(0.5 * math.pi)
    linear, bent, whole = form[0], form[1], kind(1.0 - COLLINEAR)
    for e in range(len(r)):
        rho = math.copysign(one, r[e]) if abs(r[e]) > whole else r[e]  # as `pairs.snap`
        root = math.sqrt((one - rho) * (one + rho))
        angle = arcsine(rho, half, one, right)
        value[e] = linear * rho + bent * (rho * angle - rho * rho / (one + root))
        slope[e] = linear + bent * angle


@_fast
def _summed(products: Any, terms: int, stride: int, r: Any, y: Any, value: Any, slope: Any) -> None:
    """h = ρ Σ_l b_l b_l y^l, y = ρ^stride, and its slope."""
    kind = r.dtype.type
    last, power, zero = products[terms - 1], kind(stride), kind(0.0)
    if stride == 2:
        for e in range(len(r)):
            y[e] = r[e] * r[e]
    else:
        for e in range(len(r)):
            y[e] = r[e]
    for e in range(len(r)):
        value[e] = last[e]
        slope[e] = zero
    for start in range(0, len(r), _NEAR):
        here = slice(start, start + _NEAR)
        for k in range(terms - 2, -1, -1):  # two loops: the compiler makes no vectors of one that does both
            _multiplied(slope[here], y[here], value[here])
            _multiplied(value[here], y[here], products[k, here])
    for e in range(len(r)):
        slope[e] = value[e] + power * y[e] * slope[e]
        value[e] = r[e] * value[e]


@_fast
def _multiplied(values: Any, factors: Any, more: Any) -> None:
    for e in range(len(values)):
        values[e] = values[e] * factors[e] + more[e]


@_fast
def _top(values: Any, factors: Any) -> Any:
    """max |values · factors|, lane by lane first: a maximum over all would not be vectorised."""
    kind = values.dtype.type
    tops = np.zeros(LANES, values.dtype)
    for start in range(0, len(values), LANES):
        for lane in range(LANES):
            tops[lane] = max(tops[lane], abs(values[start + lane] * factors[start + lane]))
    top = kind(0.0)
    for lane in range(LANES):
        top = max(top, tops[lane])
    return top


@_fast
def _evaluated(laws: Laws, layer: int, products: Any, ones: Any, r: Any, y: Any, value: Any, slope: Any) -> bool:
    """Write h and h' at ρ; whether the series is long enough."""
    if laws.stride[layer] == 0:
        _rectified(laws.form[layer], r, value, slope)
        return True
    top, terms = _top(r, ones), 1
    while terms < laws.terms[layer] and laws.limits[layer, terms - 1] < top:
        terms += 1
    _summed(products, terms, laws.stride[layer], r, y, value, slope)
    return bool(top <= laws.limits[layer, terms - 1])


@_fast
def _sweeps(rate: Any, wanted: Any, most: int) -> int:
    """How many sweeps take an error times `rate` each to `wanted`, up to `most`."""
    if rate <= 0.0:
        return 1
    if rate >= 1.0:
        return most
    return int(min(most, max(1.0, math.ceil(math.log(wanted) / math.log(rate)))))


@_fast
def _settle(
    grid: Grid, laws: Laws, known: Any, products: Any, ones: Any, drive: Any, w: Any, r: Any, value: Any, slope: Any
) -> bool:
    """Newton's method for τ_iτ_j ρ = drive + σ_a² P(τ_iτ_j h(ρ)), its linear equation by sweeps; whether it settled."""
    kind = r.dtype.type
    scale, inverse = known[0], known[1]
    one, a, count = kind(1.0), laws.var_a[0], len(r)
    residual, move, work, sums = w[0], w[1], w[2], w[3:].reshape(2 * count)
    first = laws.form[0, 0] if laws.stride[0] == 0 else kind(0.0)
    for e in range(count):
        r[e] = max(min(drive[e] * inverse[e] / (one - a * first), one), -one)
    before, settled = kind(1e30), False
    for _ in range(_STEPS):
        if not _evaluated(laws, 0, products, ones, r, move, value, slope):
            return False
        for e in range(count):
            work[e] = scale[e] * value[e]
            residual[e] = drive[e] - scale[e] * r[e]
        _averaged(grid, a, work, residual, sums, residual)
        left = _top(residual, inverse)
        if left <= laws.tol[0] and (settled or laws.stride[0] != 0):
            return True
        if settled or not left < before:
            return False
        settled, before = left <= laws.tol[0], left  # then one more step: next to ρ = 1 a rectifier has a slope of √(1 − ρ²)
        rate = a * _top(slope, ones)
        for e in range(count):
            move[e] = residual[e]
        wanted = kind(1e-3) if settled else max(kind(0.1) * left, kind(0.1) * laws.tol[0] / left)
        for _ in range(_sweeps(rate, wanted, _SWEEPS)):
            for e in range(count):
                work[e] = slope[e] * move[e]
            _averaged(grid, a, work, residual, sums, move)
        for e in range(count):
            r[e] = max(min(r[e] + move[e] * inverse[e], one), -one)
    return False


@_fast
def _mean(values: Any, into: Any) -> None:
    """The mean over positions, lane by lane."""
    kind = values.dtype.type
    totals = np.zeros(LANES, np.float64)
    for start in range(0, len(values), LANES):
        for lane in range(LANES):
            totals[lane] += values[start + lane]
    for lane in range(LANES):
        into[lane] = kind(totals[lane] * LANES / len(values))


@_fast
def _spread(values: Any, into: Any) -> None:
    """One number a position, `LANES` times."""
    for s in range(len(values)):
        own = values[s]
        lanes = into[s * LANES : (s + 1) * LANES]
        for lane in range(LANES):
            lanes[lane] = own


@_fast
def _products(left: Any, right: Any, into: Any) -> None:
    for e in range(len(into)):
        into[e] = left[e] * right[e]


@_fast
def _gram(own: Any, number: Any, right: Right, block: int, into: Any) -> None:
    """S of one image, spread, with a block; nothing with itself, which has the kernels of the diagonal."""
    kind = into.dtype.type
    _products(own[0], right.pixels[block, 0], into)
    for c in range(1, len(own)):
        other, mine = right.pixels[block, c], own[c]
        for e in range(len(into)):
            into[e] += mine[e] * other[e]
    for lane in range(LANES):
        if right.number[block, lane] == number:
            for e in range(lane, len(into), LANES):
                into[e] = kind(0.0)


@_fast
def _gradients(grid: Grid, laws: Laws, scale: Any, r: Any, slope: Any, drive: Any, w: Any, theta: Any) -> bool:
    """Θ_h of a DEQ, or start·Λ of a first layer, by sweeps; whether they were enough."""
    a, start, ones = laws.var_a[0], laws.start[0], w[1]
    for e in range(len(r)):
        drive[e] = start * scale[e] * r[e]
        theta[e] = drive[e]
    if a <= 0:
        return True
    ones[:] = 1
    sweeps = _sweeps(a * _top(slope, ones), laws.tol[0], _MOST_SWEEPS)
    if sweeps == _MOST_SWEEPS:
        return False
    for _ in range(sweeps):
        _products(slope, theta, w[2])
        _averaged(grid, a, w[2], drive, w[3:].reshape(2 * len(r)), theta)
    return True


@_fast
def _steep(laws: Laws, layer: int, r: Any, slope: Any, theta: Any, ones: Any) -> bool:
    """Whether round-off in ρ may change Q Θ_h too much: next to |ρ| = 1 a rectifier's slope goes as √(1 − ρ²), and a DEQ takes
    every change 1/(1 − rate) times, in ρ and in Θ_h."""
    kind = r.dtype.type
    one, unit = kind(1.0), kind(np.finfo(r.dtype).eps)
    linear, bent = laws.form[layer]
    stable = one - laws.var_a[layer] * (_top(slope, ones) if laws.var_a[layer] > 0 else one)
    spoilt = stable <= 0 or laws.doubt[layer] * stable * stable < unit
    if spoilt or laws.stride[layer] != 0 or bent == 0:
        return bool(spoilt)
    doubts, sizes = np.zeros(LANES, r.dtype), np.zeros(LANES, r.dtype)
    for start in range(0, len(r), LANES):
        for lane in range(LANES):
            rho, size = r[start + lane], abs(theta[start + lane])
            doubts[lane] += size / math.sqrt(max((one - rho) * (one + rho), unit))
            sizes[lane] += size
    allowed = laws.doubt[layer] * stable * stable * (linear + bent * kind(0.5 * math.pi))
    return bool((kind(0.5) * unit * bent * doubts > allowed * sizes).any())


@_fast
def _layer(
    grid: Grid, laws: Laws, layer: int, known: Any, products: Any, ones: Any, w: Any, value: Any, slope: Any, r: Any, drive: Any
) -> bool:
    """Solve one layer for the S in `value`, which becomes its features' covariance; whether it settled."""
    kind = value.dtype.type
    scale, inverse, means = known[0], known[1], known[2]
    a, b, one = laws.var_a[layer], laws.var_b[layer], kind(1.0)
    blank = w[2]
    for e in range(len(value)):
        value[e] = b * value[e] + a * means[e]
        blank[e] = kind(0.0)
    _averaged(grid, one, value, blank, w[3:].reshape(2 * len(value)), drive)
    if a > 0:
        good = bool(_settle(grid, laws, known, products, ones, drive, w, r, value, slope))
    else:
        for e in range(len(value)):
            r[e] = max(min(drive[e] * inverse[e], one), -one)
        good = bool(_evaluated(laws, layer, products, ones, r, w[0], value, slope))
    for e in range(len(value)):
        value[e] = means[e] + scale[e] * value[e]
    return good


@_fast
def solve_images(grid: Grid, laws: Laws, left: Left, right: Right, images: Any, blocks: Any, tangent: bool, out: Any) -> Any:
    """The kernels of the images from images[0] up to images[1] with those of the blocks from blocks[0] up to blocks[1].

    Returns:
        Whether each image is left open with each block; out (3, images, blocks, LANES) holds the conjugate, tangent and
        pre-activation kernels.
    """
    dtype = left.tau.dtype
    layers, terms, channels = len(laws.var_a), left.coefficients.shape[1], left.pixels.shape[1]
    count = grid.height * grid.width * LANES
    own = np.empty((layers, 3 + terms, count), dtype)  # of one image: τ, 1/τ, m and coefficients, spread
    pixels, products = np.empty((channels, count), dtype), np.empty((terms, count), dtype)
    known, w, parts = np.empty((3, count), dtype), np.empty((5, count), dtype), np.empty((6, count), dtype)
    value, slope, r, drive, theta, before = parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]
    ones, blank = np.ones(count, dtype), np.zeros(count, dtype)
    opened = np.zeros((images[1] - images[0], blocks[1] - blocks[0]), np.bool_)
    for i in range(images[0], images[1]):
        for c in range(channels):
            _spread(left.pixels[i, c], pixels[c])
        for layer in range(layers):
            _spread(left.tau[layer, i], own[layer, 0])
            _spread(left.inverse[layer, i], own[layer, 1])
            _spread(left.mean[layer, i], own[layer, 2])
            for k in range(laws.terms[layer]):
                _spread(left.coefficients[layer, k, i], own[layer, 3 + k])
        for block in range(blocks[0], blocks[1]):
            _gram(pixels, left.number[i], right, block, value)
            good = True
            for layer in range(layers):
                _products(own[layer, 0], right.tau[layer, block], known[0])
                _products(own[layer, 1], right.inverse[layer, block], known[1])
                _products(own[layer, 2], right.mean[layer, block], known[2])
                if laws.stride[layer] != 0:
                    for k in range(laws.terms[layer]):
                        _products(own[layer, 3 + k], right.coefficients[layer, k, block], products[k])
                good = good and _layer(grid, laws, layer, known, products, ones, w, value, slope, r, drive)
                if tangent and layer == 0:
                    good = good and bool(_gradients(grid, laws, known[0], r, slope, drive, w, theta))
                elif tangent:
                    _averaged(grid, dtype.type(1.0), before, blank, w[3:].reshape(2 * count), theta)
                if tangent:
                    good = good and not _steep(laws, layer, r, slope, theta, ones)
                    gain = laws.gain[layer]
                    for e in range(count):
                        before[e] = gain * value[e] + slope[e] * theta[e]
            opened[i - images[0], block - blocks[0]] = not good
            place = out[:, i - images[0], block - blocks[0]]
            _mean(value, place[0])
            if tangent:
                _mean(before, place[1])
                _mean(theta, place[2])
    return opened
