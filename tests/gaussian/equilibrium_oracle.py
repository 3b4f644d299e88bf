"""The equilibrium of two samples of a DEQ, solved with the oracle's integrals alone.

τ² = σ_a² E[φ²(τξ)] + σ_b²‖x‖²,     Λ = σ_a² E[φ(u)φ(v)] + σ_b² x_i·x_j,     Θ = k + QΛ/(1 − σ_a² Q).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.gaussian import oracle
from tests.gaussian.function_trees import Tree
from tests.gaussian.oracle import RESOLUTIONS, Resolution, Side, Undecided

_STEPS, _RTOL, _LOOKS = 60, 1e-12, 6

Start = tuple[tuple[float, float], float]
"""τ_i², τ_j² and Λ"""

_CONTRACTS = 0.9
"""σ_a² E[φ'²] up to which there is one root, and it is well conditioned."""


class NoEquilibrium(Exception):
    """None, several, or one that is badly conditioned."""


@dataclass(frozen=True)
class Equilibrium:
    """The kernels of both samples: 2 × 2."""

    conjugate: list[list[float]]
    tangent: list[list[float]]
    doubt: float
    hidden: tuple[bool, bool]
    """of each sample, whether its E[φ²] is next to nothing; see `oracle.Side`"""


def equilibrium(tree: Tree, var_a: float, var_b: float, norms: tuple[float, float], rho: float) -> Equilibrium:
    """By two resolutions that agree, or `Undecided`; `NoEquilibrium` where there is nothing to compare with."""
    problem = _Problem(tree, tree.places(40.0 * max(norms) * max(1.0, math.sqrt(var_b))), var_a, var_b, norms, rho)
    coarse, at = problem.solved(RESOLUTIONS[0], None)
    fine, _ = problem.solved(RESOLUTIONS[1], at)
    doubt = 0.0
    for a, b in ((coarse.conjugate, fine.conjugate), (coarse.tangent, fine.tangent)):
        for i, j in ((0, 0), (0, 1), (1, 1)):
            scale = math.sqrt(b[i][i]) * math.sqrt(b[j][j])
            if not scale > 0.0:
                raise Undecided("a kernel is 0, or underflows")
            doubt = max(doubt, abs(a[i][j] - b[i][j]) / scale)
    if not doubt <= 10.0 * oracle.AGREE_RTOL:
        raise Undecided("two resolutions do not agree")
    return Equilibrium(fine.conjugate, fine.tangent, doubt, fine.hidden)


@dataclass(frozen=True)
class _Problem:
    tree: Tree
    places: list[float]
    var_a: float
    var_b: float
    norms: tuple[float, float]
    rho: float

    def solved(self, how: Resolution, start: Start | None) -> tuple[Equilibrium, Start]:
        """From scratch, or from a solution of another resolution."""
        starts = (None, None) if start is None else start[0]
        left = self.deviation(self.norms[0], how, starts[0])
        right = left if self.norms[1] == self.norms[0] else self.deviation(self.norms[1], how, starts[1])
        if left is right and self.rho == 1.0:
            value, slope, lam = left.norm**2, left.slope_norm**2, left.tau**2
        else:
            value, slope, lam = self.covariance(left, right, how, None if start is None else start[1])
        k = [[left.norm**2, value], [value, right.norm**2]]
        q = [[left.slope_norm**2, slope], [slope, right.slope_norm**2]]
        s = [[left.tau**2, lam], [lam, right.tau**2]]
        theta = [[k[i][j] + q[i][j] * s[i][j] / (1.0 - self.var_a * q[i][j]) for j in (0, 1)] for i in (0, 1)]
        return Equilibrium(k, theta, math.inf, (left.hidden[0], right.hidden[0])), ((left.tau**2, right.tau**2), lam)

    def deviation(self, norm: float, how: Resolution, start: float | None) -> Side:
        """φ at the smallest τ of its equation, by the network's own iteration, hastened by secants."""
        drive = self.var_b * norm**2

        def excess(v: float) -> float:
            return v - self.var_a * oracle.side(self.tree, self.places, math.sqrt(v), how).norm ** 2 - drive

        before = drive if start is None else start * (1.0 + 1e-7)
        at_before = excess(before)
        v = before - at_before if start is None else start
        at_v = excess(v)
        for _ in range(_STEPS):
            if abs(at_v) <= _RTOL * v or v == before:
                break
            slope = (at_v - at_before) / (v - before)
            if not slope > 0.05 or not math.isfinite(slope):
                raise NoEquilibrium("the variance runs away, or nearly")
            before, at_before = v, at_v
            v = max(v - at_v / slope, drive)
            at_v = excess(v)
        else:
            raise NoEquilibrium("the variance does not settle")
        looks = (drive + (v - drive) * k / (_LOOKS + 1) for k in range(1, _LOOKS + 1))
        if start is None and v > drive * (1.0 + 1e-9) and any(excess(look) >= 0.0 for look in looks):
            raise NoEquilibrium("there are several")
        found = oracle.side(self.tree, self.places, math.sqrt(v), how)
        if self.var_a * found.slope_norm**2 > _CONTRACTS:
            raise NoEquilibrium("σ_a² E[φ'²] is too large")
        return found

    def covariance(self, left: Side, right: Side, how: Resolution, start: float | None) -> tuple[float, float, float]:
        """(k, Q, Λ) by Newton: 1 − σ_a² Q > 0, so there is one root."""
        drive, limit = self.var_b * self.rho * self.norms[0] * self.norms[1], left.tau * right.tau
        lam = min(max(drive if start is None else start, -limit), limit)
        for _ in range(_STEPS):
            rho = lam / limit
            c = math.sqrt(max((1.0 - rho) * (1.0 + rho), 0.0))
            value, slope = oracle.between(self.tree, left, right, rho, c, how)
            step = (lam - self.var_a * value - drive) / (1.0 - self.var_a * slope)
            if abs(step) <= _RTOL * limit:
                return value, slope, lam
            lam = min(max(lam - step, -limit), limit)
        raise NoEquilibrium("the covariance does not settle")
