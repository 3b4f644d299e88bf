"""The pair equation on a CPU: from Gram values to kernels in one pass over a tile, compiled by numba and cached on disk.

With ρ = Λ/(τ_i τ_j), m = E[φ(τξ)] and h(ρ) = (k(ρ) − m_i m_j)/(τ_i τ_j), a pair's equation is

    ρ = s + σ_a² h(ρ),   s = (σ_b² S + σ_a² m_i m_j)/(τ_i τ_j),   h' = Q.

A layer of an explicit network is one of σ_a² = 0 and σ_b² = 1 whose S is the layer before: it is solved as it starts.

Rows are worked on `LANES` columns at a time: every loop below is over numbers in the nearest cache, and becomes vector
instructions. The interpreter's lock is released, so threads can share the rows of a tile. Pairs that these solvers cannot
settle (|ρ| near 1, or a series that is too short) are marked, and left to `pairs`. Ref: docs/theory.md, sections 2 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import float32, njit
from numba.extending import overload, register_jitable

LANES, ROWS = 128, 16
CONJUGATE, TANGENT, PREACTIVATION, NONE = 0, 1, 2, 3
_EVALUATIONS = 8
# Offsets of a row's numbers in one flat scratch array. The compiler sees that they do not overlap, as it would not of separate
# arrays, and vectorises.
_S, _RHO, _VALUE, _SLOPE, _STEP, _Y, _V, _D, _K, _M, _TOP = (LANES * k for k in range(11))
_GROUP = 16
SCRATCH = 10 * LANES + _GROUP


class Law(NamedTuple):
    """The constants that all pairs share. `stride` 0 is a rectifier, of `form` (α², w); 1 or 2 a series in ρ or in ρ²."""

    var_a: Any
    var_b: Any
    stride: int
    form: Any
    limits: Any
    """the largest |ρ| for which 1, 2, … terms are enough; the last one bounds what is solved here"""
    tol: Any
    gain: Any
    """Θ = gain·G + Q K"""
    start: Any
    """K = start·Λ/(1 − σ_a² Q), where no layer is before"""
    kinds: int
    """of units, whose series are summed"""


class Side(NamedTuple):
    """Of each sample: τ, 1/τ, and as columns E[φ] of each kind of units and the coefficients b_l, kind by kind for each l."""

    tau: Any
    inverse: Any
    mean: Any
    coefficients: Any


class Destination(NamedTuple):
    """A kernel to write, its output and mirror image, each as a flat array with the distance of its rows, in any layout.

    If the mirror is empty, whole blocks are written, below the diagonal too; else the part above it, to both.
    """

    kernel: int
    output: Any
    wide: int
    mirror: Any
    wide_mirror: int


_fast: Any = njit(fastmath=True, nogil=True, cache=True, error_model="numpy")


@_fast
def _rectifier(law: Law, n: int, w: Any) -> bool:
    """φ = αx + β|x|: h = α²ρ + c(ρ arcsin ρ − ρ²/(1 + √(1 − ρ²))), c = 2β²/π, by Halley's method.

    The last evaluation is carried over its step by Taylor's formula instead of being made once more.
    """
    kind = w.dtype.type
    zero, half, one, right = kind(0.0), kind(0.5), kind(1.0), kind(0.5 * math.pi)
    a, linear, bent, cap = law.var_a, law.form[0], law.form[1], law.limits[-1]
    start = one / (one - a * linear)
    for j in range(n):
        first = w[_S + j] * start
        first += half * a * bent * start * first * first
        w[_RHO + j] = min(max(first, -cap), cap)
    for _ in range(_EVALUATIONS):
        moved, stopped = kind(0.0), kind(0.0)
        for j in range(n):
            r = w[_RHO + j]
            root = math.sqrt((one - r) * (one + r))
            angle = arcsine(r, half, one, right)
            h = linear * r + bent * (r * angle - r * r / (one + root))
            q = linear + bent * angle
            curvature = bent / root
            gain = one / (one - a * q)
            newton = (r - w[_S + j] - a * h) * gain
            d = newton / (one + half * newton * a * curvature * gain)
            new = min(max(r - d, -cap), cap)
            w[_VALUE + j] = h - d * (q - half * curvature * d)
            w[_SLOPE + j] = q - d * curvature
            w[_RHO + j] = new
            d = (r - new) / root
            w[_STEP + j] = d
            moved += d * d
            stopped += one if abs(new) >= cap else zero
        if moved <= law.tol * law.tol:
            return bool(stopped == zero)
    return False


@_fast
def _terms(limits: Any, top: Any) -> int:
    """The fewest terms with which a series is long enough for |ρ| ≤ top; at most all."""
    count = 1
    while count < len(limits) and limits[count - 1] < top:
        count += 1
    return count


@_fast
def _largest(n: int, w: Any) -> Any:
    """max |ρ|, in groups: a maximum over all would not be vectorised, but many side by side are."""
    for g in range(_GROUP):
        w[_TOP + g] = 0
    for start in range(0, n - n % _GROUP, _GROUP):
        for g in range(_GROUP):
            w[_TOP + g] = max(w[_TOP + g], abs(w[_RHO + start + g]))
    top = w[_TOP]
    for g in range(1, _GROUP):
        top = max(top, w[_TOP + g])
    for j in range(n - n % _GROUP, n):
        top = max(top, abs(w[_RHO + j]))
    return top


@_fast
def _start(law: Law, left: Any, right: Any, n: int, w: Any) -> None:
    """ρ from the first two terms of the series."""
    kind = w.dtype.type
    one = kind(1.0)
    a, cap = law.var_a, law.limits[-1]
    more = len(left) > 1
    first, second = a * left[0], a * left[1] if more else kind(0.0)
    for j in range(n):
        gain = one / (one - first * right[0, j])
        r = w[_S + j] * gain
        bend = second * right[1 if more else 0, j] * gain * r * r
        r += bend * r if law.stride == 2 else bend
        w[_RHO + j] = min(max(r, -cap), cap)
        w[_STEP + j] = 0
        w[_SLOPE + j] = 0


@_fast
def _horner(left: Any, right: Any, terms: int, stride: int, n: int, w: Any) -> None:
    """v = Σ_l left_l right_l y^l and its derivative d, with y = ρ^stride."""
    last = left[terms - 1]
    for j in range(n):
        r = w[_RHO + j]
        w[_Y + j] = r * r if stride == 2 else r
        w[_V + j] = last * right[terms - 1, j]
        w[_D + j] = 0
    for k in range(terms - 2, -1, -1):
        own = left[k]
        for j in range(n):
            w[_D + j] = w[_D + j] * w[_Y + j] + w[_V + j]
            w[_V + j] = w[_V + j] * w[_Y + j] + own * right[k, j]


@_fast
def _newton(law: Law, n: int, w: Any) -> Any:
    """One step of all ρ; the length of all steps together, a bound of each.

    The curvature comes from the last two slopes, so that value and slope are carried over the step to second order.
    """
    kind = w.dtype.type
    one, half, zero, power = kind(1.0), kind(0.5), kind(0.0), kind(law.stride)
    a, cap = law.var_a, law.limits[-1]
    moved = zero
    for j in range(n):
        r, before = w[_RHO + j], w[_STEP + j]
        q = w[_V + j] + power * w[_Y + j] * w[_D + j]
        h = r * w[_V + j]
        move = (r - w[_S + j] - a * h) / (one - a * q)
        curvature = (w[_SLOPE + j] - q) / before if before != zero else zero
        new = min(max(r - move, -cap), cap)
        w[_VALUE + j] = h - move * (q - half * curvature * move)
        w[_D + j] = q - curvature * move
        w[_SLOPE + j] = q
        w[_RHO + j] = new
        w[_STEP + j] = r - new
        moved += (r - new) * (r - new)
    return math.sqrt(moved)


@_fast
def _series(law: Law, left: Any, right: Any, n: int, w: Any) -> bool:
    """h = ρ Σ_l b_l(τ_i) b_l(τ_j) y^l, b the Hermite coefficients over τ and y = ρ, or ρ² for an odd φ, by Newton's method."""
    kind = w.dtype.type
    margin, before = kind(1.03), kind(1e30)
    limits = law.limits
    _start(law, left, right, n, w)
    terms = _terms(limits, margin * _largest(n, w))
    for _ in range(_EVALUATIONS):
        _horner(left, right, terms, law.stride, n, w)
        moved = _newton(law, n, w)
        if moved * before <= law.tol or moved == 0:
            top = _largest(n, w)
            if top <= limits[terms - 1] or terms == len(limits):
                for j in range(n):
                    w[_SLOPE + j] = w[_D + j]
                return bool(top < limits[-1])
            terms = _terms(limits, margin * top)
        before = moved
    return False


@_fast
def _preactivation(law: Law, tau: Any, right: Side, n: int, w: Any) -> None:
    """K = start·Λ/(1 − σ_a² Q)."""
    one, scale = w.dtype.type(1.0), law.start * tau
    for j in range(n):
        w[_K + j] = scale * right.tau[j] * w[_RHO + j] / (one - law.var_a * w[_SLOPE + j])


@_fast
def _dots(left: Any, right: Any, n: int, into: Any, at: int) -> None:
    """Σ_q left_q right_q at into[at], into[at + 1] …"""
    for j in range(n):
        into[at + j] = left[0] * right[0, j]
    for q in range(1, len(left)):
        for j in range(n):
            into[at + j] += left[q] * right[q, j]


@_fast
def _emit(kernel: int, gain: Any, tau: Any, right: Side, n: int, w: Any, into: Any) -> None:
    """G = m_i m_j + τ_i τ_j h, K, or Θ = gain·G + Q K."""
    for j in range(n):
        conjugate = w[_M + j] + tau * right.tau[j] * w[_VALUE + j]
        tangent = gain * conjugate + w[_SLOPE + j] * w[_K + j]
        into[j] = conjugate if kernel == CONJUGATE else tangent if kernel == TANGENT else w[_K + j]


@_fast
def _scatter(block: Any, shift: int, top: int, start: int, target: Destination) -> None:
    """Write a block to its place and, transposed, to its mirror image; of one that meets the diagonal, the part above it."""
    rows, columns = block.shape
    whole = len(target.mirror) == 0 or start > top + rows - 1 + shift
    for r in range(rows):
        skipped = 0 if whole else min(max(top + r + shift + 1 - start, 0), columns)
        place = (top + r) * target.wide + start
        for c in range(skipped, columns):
            target.output[place + c] = block[r, c]
    if len(target.mirror) == 0:
        return
    for c in range(columns):
        above = rows if whole else min(max(start + c - top - shift, 0), rows)
        place = (start + c) * target.wide_mirror + top
        for r in range(above):
            target.mirror[place + r] = block[r, c]


@_fast
def _mark(law: Law, marks: Any, shift: int, i: int, start: int, n: int, w: Any) -> int:
    allowed = law.tol if law.stride == 0 else math.sqrt(law.tol)
    found = 0
    for j in range(n):
        if start + j > i + shift and (abs(w[_RHO + j]) >= law.limits[-1] or abs(w[_STEP + j]) > allowed):
            marks[i, start + j] = 1
            found += 1
    return found


@_fast
def _drive(law: Law, gram: Any, inverse: Any, right: Side, n: int, w: Any) -> None:
    for j in range(n):
        w[_S + j] = (law.var_b * gram[j] + law.var_a * w[_M + j]) * (inverse * right.inverse[j])


@_fast
def solve_rows(
    gram: Any,
    theta: Any,
    top: int,
    rows: int,
    shift: int,
    left: Side,
    right: Side,
    law: Law,
    first: Destination,
    second: Destination,
    marks: Any,
) -> int:
    """Solve gram[top : top + rows], at most `ROWS`, write the kernels, mark the unsolved pairs, and return their number.

    Pairs with column ≤ row + shift are of the other triangle, and left out. `theta`, if not empty, is Θ of the layer before.
    """
    found = 0
    w = np.empty(SCRATCH, gram.dtype)
    blocks = np.empty((2, rows, LANES), gram.dtype)
    kinds, terms = law.kinds, len(left.coefficients) // law.kinds
    own, one, means = (
        np.empty(len(left.coefficients), gram.dtype),
        np.ones(terms, gram.dtype),
        np.empty(len(left.mean), gram.dtype),
    )
    products = np.empty((terms + 1, LANES + 1), gram.dtype)[:, :LANES]  # of the layout of coefficients: one type to compile for
    for start in range(max(0, (top + shift + 1) // LANES * LANES), gram.shape[1], LANES):
        n = min(LANES, gram.shape[1] - start)
        here = slice(start, start + n)
        columns = Side(right.tau[here], right.inverse[here], right.mean[:, here], right.coefficients[:, here])
        for r in range(rows):
            i = top + r
            tau = left.tau[i]
            means[:] = left.mean[:, i]
            _dots(means, columns.mean, n, w, _M)
            _drive(law, gram[i, here], left.inverse[i], columns, n, w)
            if law.stride == 0:
                solved = _rectifier(law, n, w)
            else:
                own[:] = left.coefficients[:, i]
                if kinds == 1:
                    solved = _series(law, own, columns.coefficients, n, w)
                else:
                    for k in range(terms):
                        each = slice(k * kinds, (k + 1) * kinds)
                        _dots(own[each], columns.coefficients[each], n, products[k], 0)
                    solved = _series(law, one, products, n, w)
            if not solved:
                found += _mark(law, marks, shift, i, start, n, w)
            if theta.shape[0] == 0:
                _preactivation(law, tau, columns, n, w)
            else:
                w[_K : _K + n] = theta[i, here]
            _emit(first.kernel, law.gain, tau, columns, n, w, blocks[0, r])
            if second.kernel != NONE:
                _emit(second.kernel, law.gain, tau, columns, n, w, blocks[1, r])
        _scatter(blocks[0, :, :n], shift, top, start, first)
        if second.kernel != NONE:
            _scatter(blocks[1, :, :n], shift, top, start, second)
    return found


def _arcsine_series(terms: int, kind: type) -> tuple[Any, ...]:
    """P, highest power first, with arcsin y = y + y z P(z) and z = y² ≤ ¼: Chebyshev interpolation of the power series."""
    taylor = [math.comb(2 * k, k) / (4.0**k * (2 * k + 1)) for k in range(1, 40)]
    nodes = 0.125 * (1.0 + np.cos((np.arange(terms) + 0.5) * math.pi / terms))
    values = np.polynomial.polynomial.polyval(nodes, taylor)
    fitted = np.polynomial.Chebyshev.fit(nodes, values, terms - 1, domain=[0.0, 0.25])
    return tuple(kind(c) for c in fitted.convert(kind=np.polynomial.Polynomial).coef[::-1])


_SINGLE, _DOUBLE = _arcsine_series(6, np.float32), _arcsine_series(13, float)


def _polynomial(z: Any) -> Any:
    raise NotImplementedError("compiled code only")


@overload(_polynomial, inline="always")
def _typed_polynomial(z: Any) -> Callable[[Any], Any]:
    # Spelt out term by term: a loop over the coefficients would keep the loop over values from being vectorised.
    def single(z: Any) -> Any:
        return ((((_SINGLE[0] * z + _SINGLE[1]) * z + _SINGLE[2]) * z + _SINGLE[3]) * z + _SINGLE[4]) * z + _SINGLE[5]

    def double(z: Any) -> Any:
        p = ((((_DOUBLE[0] * z + _DOUBLE[1]) * z + _DOUBLE[2]) * z + _DOUBLE[3]) * z + _DOUBLE[4]) * z + _DOUBLE[5]
        p = ((((p * z + _DOUBLE[6]) * z + _DOUBLE[7]) * z + _DOUBLE[8]) * z + _DOUBLE[9]) * z + _DOUBLE[10]
        return (p * z + _DOUBLE[11]) * z + _DOUBLE[12]

    return single if z == float32 else double


@register_jitable
def arcsine(x: Any, half: Any, one: Any, right: Any) -> Any:
    """arcsin x for |x| < 1, to round-off; ½, 1 and π/2 come in the precision of x.

    Beyond ½ it is π/2 − 2 arcsin √((1 − |x|)/2), whose argument is exact.
    """
    size = abs(x)
    beyond = size > half
    z = half * (one - size) if beyond else size * size
    y = math.sqrt(z) if beyond else size
    angle = y + y * z * _polynomial(z)
    angle = right - (angle + angle) if beyond else angle
    return angle if x >= 0 else -angle
