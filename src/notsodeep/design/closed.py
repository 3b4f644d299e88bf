"""Members of a family in closed form: all that share three of the four scalars that decide a kernel.

Ref: docs/theory.md, section 5.

A layer σ at deviation τ̃ enters the scalars through its slope E[σ']² and its bend E[σ²]/τ̃² − E[σ']², which is not negative by
Cauchy–Schwarz. Of a centred rectifier or quadratic the rest is proportional to the bend:

    E[σ'']² = curve·bend/τ̃²,   E[σ'²] = slope + stretch·bend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Polynomial as Poly

from notsodeep.theory.scalars import Scalars

# That a root may be complex by, or a bend negative; the square root of it where a root of the cubic is double. Whether a
# candidate matches is decided by its scalars.
_ROUND_OFF = 1e-9


class Layer(NamedTuple):
    slope: float
    bend: float


@dataclass(frozen=True)
class Bent:
    """A shape of layer by its two constants."""

    curve: float
    stretch: float

    def one_layer(self, target: Scalars, kernel: str) -> list[tuple[Layer, ...]]:
        """From γ and α1; or κ² = γ² + τ0² E[σ'²] and β1 = 2α1."""
        if kernel == "conjugate":
            slope = target.alpha1
            bend = target.gamma**2 / target.tau0**2 - slope
        else:
            slope = target.beta1 / 2.0
            bend = (target.kappa**2 / target.tau0**2 - 2.0 * slope) / (1.0 + self.stretch)
        return _possible([(Layer(slope, bend),)])

    def two_layers(self, target: Scalars, kernel: str) -> list[tuple[Layer, ...]]:
        """From γ, α1, α3 or κ, β1, β3, with τ̃_1 = τ0: real roots u = E[σ_1']² of a cubic."""
        solve = self._conjugate if kernel == "conjugate" else self._tangent
        return _possible(solve(target))

    def _conjugate(self, target: Scalars) -> list[tuple[Layer, ...]]:
        """E[σ_2']² = α1/u and 2α3 τ0²/curve = (1 − u) α1/u + u² (g − α1/u), g = γ²/τ0²."""
        g, a = target.gamma**2 / target.tau0**2, target.alpha1
        level = 2.0 * target.alpha3 * target.tau0**2 / self.curve
        roots = _between_zero_and_one(Poly([a, -(a + level), -a, g]))
        return [(Layer(u, 1.0 - u), Layer(a / u, g - a / u)) for u in roots]

    def _tangent(self, target: Scalars) -> list[tuple[Layer, ...]]:
        """E[σ_2']² = a/u with a = β1/3; the bend w of the second layer from κ²/τ0² = a/u + w + (1 + q)(a/u + stretch·w), where
        q = E[σ_1'²]; and β3 τ0²/curve = 2(1 − u) a/u + (5/2) u² w."""
        a, c = target.beta1 / 3.0, self.stretch
        u = Poly([0.0, 1.0])
        q = c + (1.0 - c) * u
        below = 1.0 + c * (1.0 + q)
        above = target.kappa**2 / target.tau0**2 * u - a * (2.0 + q)  # w = above/(u·below)
        level = target.beta3 * target.tau0**2 / self.curve
        roots = _between_zero_and_one(2.0 * a * (1.0 - u) * below + 2.5 * u**2 * above - level * u * below)
        return [(Layer(r, 1.0 - r), Layer(a / r, float(above(r) / (r * below(r))))) for r in roots]


RECTIFIER = Bent(curve=2.0 / (math.pi - 2.0), stretch=math.pi / (math.pi - 2.0))
"""s x + r|x| less its mean: E[σ']² = s², and r² = stretch·bend."""
QUADRATIC = Bent(curve=2.0, stretch=2.0)
"""a x² + b x less its mean: E[σ']² = b², and 2a²τ̃² = bend."""


def _between_zero_and_one(equation: Poly) -> list[float]:
    roots = np.atleast_1d(equation.trim().roots())
    real = [float(r.real) for r in roots if abs(r.imag) <= math.sqrt(_ROUND_OFF) * abs(r)]
    return [min(r, 1.0) for r in real if 0.0 < r <= 1.0 + math.sqrt(_ROUND_OFF)]


def _possible(found: list[tuple[Layer, ...]]) -> list[tuple[Layer, ...]]:
    """Those without a negative slope or bend; one that is so by round-off is zero."""
    kept = [
        layers for layers in found if all(s >= 0.0 and b >= -math.sqrt(_ROUND_OFF) * (s + abs(b)) for s, b in layers)
    ]
    return [tuple(Layer(s, max(b, 0.0)) for s, b in layers) for layers in kept]
