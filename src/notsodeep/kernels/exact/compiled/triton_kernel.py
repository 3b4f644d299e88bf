"""The pair equation on CUDA: one Triton kernel takes a block of samples' products to both kernels, in registers.

The Gram values of a block come from tensor cores, of samples split into two float16 numbers each (float32), or are given
(float64); then the equation ρ = s + σ_a² h(ρ) of `law` is solved as on a CPU, and the kernels are written to their places and
to their mirror images. A block in which a pair stays open is flagged and the pair written as NaN, to be solved elsewhere; the
layers of an explicit network hand such a pair on.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

CONJUGATE, TANGENT, PREACTIVATION, NONE = (tl.constexpr(k) for k in range(4))
GROUP = 16  # blocks of a side of a square that is worked on together, so that its samples stay in cache
_EVALUATIONS = tl.constexpr(6)


@triton.jit
def _products(
    high1, low1, high2, low2, n, n2, features, row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr
):
    """Inner products of a block of split samples with another: high·high + high·low + low·high."""
    depth = tl.arange(0, DEPTH)
    left = tl.minimum(row, n - 1)[:, None].to(tl.int64) * features + depth[None, :]
    right = tl.minimum(column, n2 - 1)[None, :].to(tl.int64) * features + depth[:, None]
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    small = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for start in range(0, features, DEPTH):
        a, c = tl.load(high1 + left + start), tl.load(low1 + left + start)
        b, d = tl.load(high2 + right + start), tl.load(low2 + right + start)
        small = tl.dot(a, d, small)
        small = tl.dot(c, b, small)
        # A sum that stays in the tensor cores is cut off, not rounded, at every addition; so it is added up outside.
        total += tl.dot(a, b)
    return total + small


@triton.jit
def _rectifier(s, a, linear, bent, cap, tol):
    """(ρ, h, Q, open) of φ = αx + β|x|, by Halley's method; the last evaluation is carried over its step."""
    first = s / (1.0 - a * linear)
    rho = first + 0.5 * a * bent * first * first / (1.0 - a * linear)
    rho = tl.minimum(tl.maximum(rho, -cap), cap)
    value, slope, step = 0.0 * s, 0.0 * s, 0.0 * s + 1.0
    count = 0
    while (count < _EVALUATIONS) & (tl.max(step) > tol):
        root = tl.sqrt((1.0 - rho) * (1.0 + rho))
        angle = libdevice.asin(rho)
        h = linear * rho + bent * (rho * angle - rho * rho / (1.0 + root))
        q = linear + bent * angle
        curvature = bent / root
        gain = 1.0 / (1.0 - a * q)
        newton = (rho - s - a * h) * gain
        d = newton / (1.0 + 0.5 * newton * a * curvature * gain)
        new = tl.minimum(tl.maximum(rho - d, -cap), cap)
        value = h - d * (q - 0.5 * curvature * d)
        slope = q - d * curvature
        step = tl.abs(rho - new) / root
        rho = new
        count += 1
    return rho, value, slope, (step > tol) | (tl.abs(rho) >= cap)


@triton.jit
def _series(s, a, b1, b2, limits, terms, samples1, samples2, row, column, inside1, inside2, cap, tol, STRIDE: tl.constexpr):
    """(ρ, h, Q, open) of a Hermite series, by Newton's method, as in `cpu._series`. Coefficients are (terms, samples)."""
    first1, first2 = tl.load(b1 + row, inside1, 0.0), tl.load(b2 + column, inside2, 0.0)
    gain = 1.0 / (1.0 - a * first1[:, None] * first2[None, :])
    rho = s * gain
    if terms > 1:
        c1 = tl.load(b1 + samples1 + row, inside1, 0.0)
        c2 = tl.load(b2 + samples2 + column, inside2, 0.0)
        bend = a * gain * c1[:, None] * c2[None, :] * rho * rho
        rho += bend * rho if STRIDE == 2 else bend
    rho = tl.minimum(tl.maximum(rho, -cap), cap)
    value, slope, step, carried = 0.0 * s, 0.0 * s, 0.0 * s, 0.0 * s
    count = 0
    moved = tl.max(rho) * 0.0 + 1.0
    before = moved * 1e30
    while (count < _EVALUATIONS) & (moved * before > tol):
        before = tl.where(count > 0, moved, before)
        top = 1.03 * tl.max(tl.abs(rho))
        used = 1
        while (used < terms) & (tl.load(limits + used - 1) < top):
            used += 1
        y = rho * rho if STRIDE == 2 else rho
        v, d = 0.0 * s, 0.0 * s
        for back in range(0, used):
            k = (used - 1 - back).to(tl.int64)
            c1 = tl.load(b1 + k * samples1 + row, inside1, 0.0)
            c2 = tl.load(b2 + k * samples2 + column, inside2, 0.0)
            d = d * y + v
            v = v * y + c1[:, None] * c2[None, :]
        q = v + STRIDE * y * d
        h = rho * v
        move = (rho - s - a * h) / (1.0 - a * q)
        curvature = tl.where(step != 0.0, (slope - q) / tl.where(step != 0.0, step, 1.0), 0.0)
        new = tl.minimum(tl.maximum(rho - move, -cap), cap)
        value = h - move * (q - 0.5 * curvature * move)
        carried = q - curvature * move
        slope = q
        step = rho - new
        rho = new
        moved = tl.max(tl.abs(step))
        count += 1
    return rho, value, carried, (step * step > tol) | (tl.abs(rho) >= cap)


@triton.jit
def _kernel(KIND: tl.constexpr, scale, constant, preactivation, value, slope, gain, unknown):
    """G = m_i m_j + τ_i τ_j h, K, or Θ = gain·G + Q K."""
    conjugate = constant + scale * value
    if KIND == CONJUGATE:
        found = conjugate
    elif KIND == TANGENT:
        found = gain * conjugate + slope * preactivation
    else:
        found = preactivation
    return tl.where(unknown, float("nan"), found)


@triton.jit
def _write(output, mirror, wide, wide_mirror, found, row, column, inside, MIRRORED: tl.constexpr):
    tl.store(output + row[:, None].to(tl.int64) * wide + column[None, :], found, inside)
    if MIRRORED:
        across = mirror + column[:, None].to(tl.int64) * wide_mirror + row[None, :]
        tl.store(across, tl.trans(found), tl.trans(inside))


@triton.jit
def _block(pid, n2, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of a block: blocks are numbered square by square of GROUP × GROUP."""
    across = tl.cdiv(tl.cdiv(n2, WIDTH), GROUP)
    square, within = pid // (GROUP * GROUP), pid % (GROUP * GROUP)
    top = (square // across * GROUP + within % GROUP) * HEIGHT
    left = (square % across * GROUP + within // GROUP) * WIDTH
    return top, left


@triton.jit
def solve_blocks(
    high1, low1, unit1, high2, low2, unit2, gram, theta, n, n2, features,
    tau1, mean1, b1, samples1, tau2, mean2, b2, samples2,
    limits, terms, numbers,
    first, second, mirror1, mirror2, wide, wide_mirror, shift, flags,
    KIND1: tl.constexpr, KIND2: tl.constexpr, STRIDE: tl.constexpr, GIVEN: tl.constexpr, THETA: tl.constexpr,
    MIRRORED: tl.constexpr, SYMMETRIC: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """All blocks of a tile of n × n2 pairs. A sample meets itself at column = row + shift, where SYMMETRIC; a MIRRORED tile is
    solved above that diagonal alone, and written to both places. `theta`, where THETA, is Θ of the layer before, and stands
    for K = start·Λ/(1 − σ_a² Q)."""
    pid = tl.program_id(0)
    top, left = _block(pid, n2, HEIGHT, WIDTH, GROUP)
    skipped = (top >= n) | (left >= n2)
    if MIRRORED:
        skipped = skipped | (left + WIDTH - 1 <= top + shift)
    if skipped:
        return
    row, column = top + tl.arange(0, HEIGHT), left + tl.arange(0, WIDTH)
    inside1, inside2 = row < n, column < n2
    inside = inside1[:, None] & inside2[None, :]
    lost = ~inside
    if GIVEN:
        product = tl.load(gram + row[:, None].to(tl.int64) * n2 + column[None, :], inside, 0.0)
        lost = product != product
        product = tl.where(lost, 0.0, product)
    else:
        product = _products(high1, low1, high2, low2, n, n2, features, row, column, HEIGHT, WIDTH, DEPTH)
        u1, u2 = tl.load(unit1 + row, inside1, 0.0), tl.load(unit2 + column, inside2, 0.0)
        product = product * u1[:, None] * u2[None, :]
    if SYMMETRIC:
        product = tl.where(column[None, :] == row[:, None] + shift, 0.0, product)
    if MIRRORED:
        inside = inside & (column[None, :] > row[:, None] + shift)
    var_a, var_b, linear = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    bent, cap, tol = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    gain, start = tl.load(numbers + 6), tl.load(numbers + 7)
    t1, t2 = tl.load(tau1 + row, inside1, 1.0), tl.load(tau2 + column, inside2, 1.0)
    m1, m2 = tl.load(mean1 + row, inside1, 0.0), tl.load(mean2 + column, inside2, 0.0)
    scale, constant = t1[:, None] * t2[None, :], m1[:, None] * m2[None, :]
    s = tl.where(inside, (var_b * product + var_a * constant) / scale, 0.0)
    if STRIDE == 0:
        rho, value, slope, unknown = _rectifier(s, var_a, linear, bent, cap, tol)
    else:
        rho, value, slope, unknown = _series(
            s, var_a, b1, b2, limits, terms, samples1, samples2, row, column, inside1, inside2, cap, tol, STRIDE
        )
    unknown = (unknown | lost) & inside
    if tl.max(unknown.to(tl.int32)) > 0:
        tl.store(flags + pid, 1)
    if THETA:
        preactivation = tl.load(theta + row[:, None].to(tl.int64) * n2 + column[None, :], inside, 0.0)
    else:
        preactivation = start * scale * rho / (1.0 - var_a * slope)
    found = _kernel(KIND1, scale, constant, preactivation, value, slope, gain, unknown)
    _write(first, mirror1, wide, wide_mirror, found, row, column, inside, MIRRORED)
    if KIND2 != NONE:
        found = _kernel(KIND2, scale, constant, preactivation, value, slope, gain, unknown)
        _write(second, mirror2, wide, wide_mirror, found, row, column, inside, MIRRORED)
