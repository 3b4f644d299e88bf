"""The kernels of pairs of samples: the equation of a DEQ by Newton, an explicit network layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from notsodeep.activations.mixed import kinds_of
from notsodeep.approximation.newton import bracketed_newton
from notsodeep.gaussian import Moments, Rows, dual, rows
from notsodeep.gaussian.moments import tabulated_moments
from notsodeep.gaussian.variance import tabulated_deviation
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.tolerances import COLLINEAR, PAIR_RTOL

_PLAIN_NEWTON_STEPS = 6
_FROM_BELOW = 200
_SMALLEST_TAU = 1e-150  # stands for 0, so that ρ = λ/(τ_i τ_j) is defined
# 1 − |cos| of two inputs, below which a second root of their equation is within rounding of the first.
_NEARLY_PARALLEL = 1e-5


@dataclass(frozen=True)
class PairKernels:
    """Entry by entry: Λ (pre-activation covariance), G (conjugate), Θ (tangent of aᵀz), K (tangent of a pre-activation)."""

    covariance: Tensor
    conjugate: Tensor
    slope: Tensor
    """Q = E[φ'(u)φ'(v)] of the last layer"""
    tangent: Tensor
    preactivation: Tensor


def snap(lam: Tensor, limit: Tensor) -> Tensor:
    """|λ| ≤ τ_i τ_j, and exactly so where round-off is all that keeps ρ from ±1."""
    lam = torch.minimum(torch.maximum(lam, -limit), limit)
    collinear = limit - lam.abs() <= COLLINEAR * limit
    return torch.where(collinear, torch.copysign(limit, lam), lam)


def _settled(step: Tensor, lam: Tensor, limit: Tensor) -> Tensor:
    """Whether the error that a Newton step leaves is below round-off.

    That error is the step squared times k''/2, and k'' of a kinked φ grows like (1 − |ρ|)^(−1/2): so a step of PAIR_RTOL
    is small enough in the middle, but not next to ρ = ±1.
    """
    room = torch.maximum(limit - lam.abs(), COLLINEAR * limit)
    return step.square() <= (PAIR_RTOL**2 * limit).mul(room)


@dataclass(frozen=True)
class _Operand:
    """One side of pairs, shaped to broadcast with the other side."""

    rows: Rows
    mean: Tensor
    e1: Tensor
    e2: Tensor
    norms: Tensor
    who: tuple[Tensor, Tensor] | None = None
    """the number of each sample and of its opposite; equal samples share one"""


class ImplicitPairs:
    """Λ = σ_a² k(τ_i, τ_j, Λ) + σ_b² S for every pair, from the start of docs/theory.md, section 4, by Newton.

    f(λ) = λ − σ_a² k(λ) − σ_b² S has f(−τ_iτ_j) ≤ 0 ≤ f(τ_iτ_j) by Cauchy–Schwarz and slope 1 − σ_a² Q, so where plain
    Newton does not settle a bracketed one does.
    """

    def __init__(self, net: Implicit, norms2: Tensor) -> None:
        self.net = net
        self.tau = tabulated_deviation(net.phi, net.var_a, net.var_b * norms2).clamp(min=_SMALLEST_TAU)
        self.moments: Moments = tabulated_moments(net.phi, self.tau)
        self.norms = norms2.sqrt()
        # Where σ_a² Q reaches 1 at ρ = 1, the equation of two equal samples has a second root below τ².
        self.several_roots = bool((net.var_a * self.moments.q >= 1.0).any())
        self.who: tuple[Tensor, Tensor] | None = None

    @cached_property
    def rows(self) -> Rows:
        """The samples prepared for `dual`; only pairs off the diagonal need them."""
        return rows(self.net.phi, self.tau)

    def layers(self, index: Any = slice(None)) -> list[list[Moments]]:
        """The moments of the samples `index`, of one layer of one kind."""
        return [[self.moments[index]]]

    def tell_apart(self, x: Tensor) -> None:
        """Number the samples by value, since products alone show only to rounding which are equal or opposite."""
        _, number = torch.cat([x, -x]).unique(dim=0, return_inverse=True)
        self.who = number[: len(x)], number[len(x) :]

    def tile(self, left: slice, right: slice, gram: Tensor) -> PairKernels:
        return self._answer(self._side(left, 1), self._side(right, 0), gram)

    def pairs(self, left: Tensor, right: Tensor, gram: Tensor) -> PairKernels:
        """The kernels of a list of pairs, (pairs,)."""
        return self._answer(self._side(left), self._side(right), gram)

    def _side(self, index: Any, axis: int | None = None) -> _Operand:
        at, norms = self.moments[index], self.norms[index]
        who = None if self.who is None else (self.who[0][index], self.who[1][index])
        if axis is None:
            return _Operand(self.rows[index], at.mean, at.e1, at.e2, norms, who)
        samples = self.rows[index].column() if axis == 1 else self.rows[index].row()
        who = None if who is None else (who[0].unsqueeze(axis), who[1].unsqueeze(axis))
        mean, e1, e2, norms = (field.unsqueeze(axis) for field in (at.mean, at.e1, at.e2, norms))
        return _Operand(samples, mean, e1, e2, norms, who)

    def _answer(self, left: _Operand, right: _Operand, gram: Tensor) -> PairKernels:
        limit = left.rows.tau * right.rows.tau
        drive = self.net.var_b * gram
        lam = snap(self._solve(left.rows, right.rows, drive, limit, self._start(left, right, gram)), limit)
        lam = self._parallel(left, right, gram, limit, lam)
        value, slope = dual(self.net.phi, left.rows, right.rows, lam)
        return self._kernels(lam, value, slope)

    def _start(self, left: _Operand, right: _Operand, gram: Tensor) -> Tensor:
        """Λ to second order in the correlation: λ0 + ½σ_a² e_i e_j λ0²/(1 − g), λ0 = (σ_a² m_i m_j + σ_b² S)/(1 − g)."""
        a = self.net.var_a
        damping = ((a * left.e1) * right.e1).neg_().add_(1.0).reciprocal_()
        first = torch.addcmul(self.net.var_b * gram, left.mean, right.mean, value=a).mul_(damping)
        curvature = ((0.5 * a * left.e2) * right.e2).mul_(damping)
        return first + curvature * first.square()

    def _parallel(self, left: _Operand, right: _Operand, gram: Tensor, limit: Tensor, lam: Tensor) -> Tensor:
        """Λ of equal samples is τ², and −τ² of opposite ones if φ is odd, although their equation may have another root or a
        slope next to 0 that magnifies rounding."""
        largest = torch.maximum(left.norms, right.norms).square()
        equal = (gram - largest).abs() <= COLLINEAR * largest
        if not self.several_roots:
            return torch.where(equal, limit, lam)
        probe = torch.linspace(0.1, 5.0, 50, dtype=lam.dtype, device=lam.device)
        odd = torch.allclose(self.net.phi(-probe), -self.net.phi(probe), rtol=1e-12, atol=1e-14)
        opposite = (gram + largest).abs() <= COLLINEAR * largest
        if left.who is not None and right.who is not None:
            equal, opposite = left.who[0] == right.who[0], left.who[1] == right.who[0]
        near = largest - gram.abs() <= _NEARLY_PARALLEL * largest
        near = near & ~equal & ((gram > 0) | (odd & ~opposite))
        if bool(near.any()):
            lam[near] = self._from_below(left.rows, right.rows, gram, limit, near)
        lam = torch.where(equal, limit, lam)
        return torch.where(opposite, -limit, lam) if odd else lam

    def _from_below(self, left: Rows, right: Rows, gram: Tensor, limit: Tensor, which: Tensor) -> Tensor:
        """The smallest root of nearly parallel pairs, which the network's own iteration reaches. For λ ≥ 0 the equation is
        concave, so Newton's steps from below the first root stay below."""
        a = self.net.var_a
        row, column = (side.expand_as(gram.shape)[which] for side in (left, right))
        sign, bound = gram[which].sign(), limit[which]
        force = self.net.var_b * gram[which].abs()
        lam = torch.minimum(force, bound)
        for _ in range(_FROM_BELOW):
            value, slope = dual(self.net.phi, row, column, sign * lam)
            step = (force + a * sign * value - lam) / (1.0 - a * slope)
            step = torch.where(torch.isfinite(step) & (step > 0.0), step, 0.0)
            lam = torch.minimum(lam + step, bound)
            if bool((step <= PAIR_RTOL * bound).all()):
                break
        return sign * lam

    def diagonal(self, index: slice) -> PairKernels:
        at = self.moments[index]
        return self._kernels(self.tau[index].square(), at.gamma2, at.q)

    def _kernels(self, lam: Tensor, value: Tensor, slope: Tensor) -> PairKernels:
        preactivation = lam / (1.0 - self.net.var_a * slope)
        return PairKernels(lam, value, slope, torch.addcmul(value, slope, preactivation), preactivation)

    def _solve(self, row: Rows, column: Rows, drive: Tensor, limit: Tensor, lam: Tensor) -> Tensor:
        a = self.net.var_a
        lam = torch.minimum(torch.maximum(lam, -limit), limit)
        settled = torch.zeros_like(lam, dtype=torch.bool)
        for _ in range(_PLAIN_NEWTON_STEPS):
            value, slope = dual(self.net.phi, row, column, lam)
            step = (lam - drive).sub_(value, alpha=a).div_(slope.mul(-a).add_(1.0))
            lam = torch.minimum(torch.maximum(lam - step, -limit), limit)
            settled = _settled(step, lam, limit)
            if bool(settled.all()):
                return lam
        stuck = ~settled
        left, right = (side.expand_as(lam.shape)[stuck] for side in (row, column))
        bound, force = limit[stuck], drive[stuck]

        def equation(x: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = dual(self.net.phi, left, right, x)
            return x - a * value - force, 1.0 - a * slope

        lam[stuck] = bracketed_newton(equation, -bound, bound, lam[stuck], PAIR_RTOL, scale=bound)
        return lam


class ExplicitPairs:
    """Σ^(l) = k_l(Σ^(l−1)), Θ^(l) = g_{l+1}² Σ^(l) + Θ^(l−1) ∘ Q_l, from Σ^(0) = S and Θ^(0) = g_1² S.

    Of a layer of several kinds of units, k_l and Q_l are the means over its kinds. Ref: docs/theory.md, sections 5 and 7.
    """

    def __init__(self, net: Explicit, norms2: Tensor) -> None:
        self.net = net
        self.norms2 = norms2
        self.taus: list[Tensor] = []
        self.moments: list[list[Moments]] = []
        """Layer by layer, of each kind of units"""
        variance = norms2
        for layer in net.layers:
            self.taus.append(variance.sqrt().clamp(min=_SMALLEST_TAU))
            self.moments.append([tabulated_moments(kind, self.taus[-1]) for kind in kinds_of(layer)])
            variance = _mean([at.gamma2 for at in self.moments[-1]])

    @property
    def tau(self) -> Tensor:
        """The deviation of the first pre-activation of each sample."""
        return self.taus[0]

    @cached_property
    def rows(self) -> list[list[Rows]]:
        """The samples prepared for `dual`, layer by layer, of each kind; only pairs off the diagonal need them."""
        return [[rows(kind, tau) for kind in kinds_of(layer)] for layer, tau in zip(self.net.layers, self.taus, strict=True)]

    def layers(self, index: Any = slice(None)) -> list[list[Moments]]:
        """The moments of the samples `index`, layer by layer, of each kind."""
        return [[at[index] for at in kinds] for kinds in self.moments]

    def tile(self, left: slice, right: slice, gram: Tensor) -> PairKernels:
        return self._answer([[(one[left].column(), one[right].row()) for one in kinds] for kinds in self.rows], gram)

    def pairs(self, left: Tensor, right: Tensor, gram: Tensor) -> PairKernels:
        """The kernels of a list of pairs, (pairs,)."""
        return self._answer([[(one[left], one[right]) for one in kinds] for kinds in self.rows], gram)

    def _answer(self, sides: list[list[tuple[Rows, Rows]]], gram: Tensor) -> PairKernels:
        first, *gains = (gain**2 for gain in self.net.gains)
        lam = value = gram
        tangent = preactivation = first * gram
        slope = torch.ones_like(gram)
        for layer, gain, kinds in zip(self.net.layers, gains, sides, strict=True):
            row, column = kinds[0]
            lam, preactivation = snap(value, row.tau * column.tau), tangent
            maps = [dual(kind, *side, lam) for kind, side in zip(kinds_of(layer), kinds, strict=True)]
            value, slope = (_mean(parts) for parts in zip(*maps, strict=True))
            tangent = torch.addcmul(gain * value, slope, preactivation)
        return PairKernels(lam, value, slope, tangent, preactivation)

    def diagonal(self, index: slice) -> PairKernels:
        first, *gains = (gain**2 for gain in self.net.gains)
        lam = value = self.norms2[index]
        tangent = preactivation = first * value
        slope = torch.ones_like(value)
        for gain, kinds in zip(gains, self.moments, strict=True):
            lam, preactivation = value, tangent
            value, slope = _mean([at.gamma2[index] for at in kinds]), _mean([at.q[index] for at in kinds])
            tangent = torch.addcmul(gain * value, slope, preactivation)
        return PairKernels(lam, value, slope, tangent, preactivation)


def _mean(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(tuple(parts)).mean(0)


Pairs = ImplicitPairs | ExplicitPairs
"""The kernels of samples that were prepared once, for a tile, a list of pairs, or the diagonal."""
