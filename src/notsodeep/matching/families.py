"""Families of explicit networks that a design may choose from. Ref: docs/theory.md, section 5.

A family turns a few numbers into a network. The scale that moves freely between two layers is fixed by τ̃_1 = τ_0. Sign and
mirror images have the same kernels; the one with rising slope is taken.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Polynomial as Poly
from scipy.optimize import brentq

from notsodeep.activations import Activation, HardTanh, Polynomial, Rectifier
from notsodeep.activations.mixed import each_kind
from notsodeep.activations.wrappers import affine_parts
from notsodeep.kernels.names import Kernel
from notsodeep.theory.architecture import Explicit
from notsodeep.theory.scalars import Scalars

_TINY, _ROUND_OFF = 1e-300, 1e-14
# How far a root may be complex, or a bend negative, where a root of the cubic is double; the scalars of a candidate decide
# whether it matches.
_DOUBLE_ROOT = 1e-9**0.5


class Layer(NamedTuple):
    """A layer by E[σ']² and its remaining power: slope + bend = E[σ²]/τ̃²."""

    slope: float
    bend: float


@dataclass(frozen=True)
class Bent:
    """Layers with a linear and an even part: E[σ'']² τ̃² = curve·bend and E[σ'²] = slope + stretch·bend."""

    curve: float
    stretch: float

    def one_layer(self, target: Scalars, kernel: Kernel | str) -> list[tuple[Layer, ...]]:
        """From γ and α1; or κ² = γ² + τ0² E[σ'²] and β1 = 2α1."""
        if kernel == Kernel.CONJUGATE:
            slope = target.alpha1
            bend = target.gamma**2 / target.tau0**2 - slope
        else:
            slope = target.beta1 / 2.0
            bend = (target.kappa**2 / target.tau0**2 - 2.0 * slope) / (1.0 + self.stretch)
        return _possible([(Layer(slope, bend),)])

    def two_layers(self, target: Scalars, kernel: Kernel | str) -> list[tuple[Layer, ...]]:
        """From γ, α1, α3 or κ, β1, β3, with τ̃_1 = τ0: real roots u = E[σ_1']² of a cubic."""
        solve = self._conjugate if kernel == Kernel.CONJUGATE else self._tangent
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
    real = [float(r.real) for r in roots if abs(r.imag) <= _DOUBLE_ROOT * abs(r)]
    return [min(r, 1.0) for r in real if 0.0 < r <= 1.0 + _DOUBLE_ROOT]


def _possible(found: list[tuple[Layer, ...]]) -> list[tuple[Layer, ...]]:
    """The candidates without a negative slope or bend; one that is negative by round-off is set to zero."""
    kept = [layers for layers in found if all(s >= 0.0 and b >= -_DOUBLE_ROOT * (s + abs(b)) for s, b in layers)]
    return [tuple(Layer(s, max(b, 0.0)) for s, b in layers) for layers in kept]


class Family(ABC):
    """Networks of one shape, indexed by a vector of unknowns."""

    depth: int

    @property
    @abstractmethod
    def label(self) -> str:
        """The name by which it is chosen."""

    @property
    @abstractmethod
    def starts(self) -> list[tuple[float, ...]]:
        """Unknowns from which a solver looks for the nearest member, where none matches."""

    @abstractmethod
    def candidates(self, target: Scalars, kernel: Kernel | str) -> list[tuple[float, ...]]:
        """The members that could have the target's kernel, to round-off: those that share all its scalars but one."""

    @abstractmethod
    def build(self, unknowns: tuple[float, ...], tau0: float) -> Explicit:
        """The network, each layer centred, for data of root mean square norm τ0."""


@dataclass(frozen=True)
class HardTanhFamily(Family):
    """One layer clip(a x, −a c, a c); unknowns log a and log(c/τ0)."""

    label = "hard_tanh"
    depth = 1
    starts = [(0.0, 0.0), (-0.5, 1.0), (0.5, -1.0), (-1.0, -2.0)]  # noqa: RUF012

    def candidates(self, target: Scalars, kernel: Kernel | str) -> list[tuple[float, ...]]:
        """With s = c/τ0 and P = P(|ξ| < s): α1 = a²P², γ² = a²τ0² E[clip²(ξ, ±s)]; β1 = 2α1, κ² = γ² + a²τ0²P. The share of
        γ²/(τ0² α1), or of κ²/(τ0² β1), falls in s."""
        conjugate = kernel == Kernel.CONJUGATE
        slope = target.alpha1 if conjugate else 0.5 * target.beta1
        share = (target.gamma if conjugate else target.kappa) ** 2 / (target.tau0**2 * max(slope, _TINY))

        def excess(s: float) -> float:
            inside = math.erf(s / math.sqrt(2.0))
            power = inside - s * math.sqrt(2.0 / math.pi) * math.exp(-0.5 * s * s) + s * s * math.erfc(s / math.sqrt(2.0))
            return (power if conjugate else power + inside) / inside**2 - share

        low, high = 1e-5, 12.0
        if not excess(high) <= _ROUND_OFF < excess(low):
            return []
        # At the high end it is a line already, and the share its limit: 1, or 2.
        s = high if abs(excess(high)) <= _ROUND_OFF else brentq(excess, low, high, xtol=1e-15, rtol=1e-15)
        return [(math.log(math.sqrt(slope) / math.erf(s / math.sqrt(2.0))), math.log(s))]

    def build(self, unknowns: tuple[float, ...], tau0: float) -> Explicit:
        # Clamped where hard tanh is a line or a step to round-off, so that a solver's wild step stays a number.
        log_a, log_c = (min(max(u, -12.0), 12.0) for u in unknowns)
        return Explicit([HardTanh(math.exp(log_a), tau0 * math.exp(min(log_c, 3.0)))])


@dataclass(frozen=True)
class LeakyReluFamily(Family):
    """One or two layers max(a x, b x) − (a − b) τ̃/√(2π).

    One layer: slopes a, b. Two: the angle of (a_1, b_1), whose length τ̃_1 = τ0 fixes, then a_2, b_2. With s = (a+b)/2
    and r = (a−b)/2 of each layer, γ and α1 leave one free unknown, which only α3 depends on: so a match exists exactly
    when α2 = (γ²/τ0² − α1)/((2π − 4) τ0²), as it is for every DEQ whose activation is a rectifier.
    """

    depth: int

    @property
    def label(self) -> str:
        return f"leaky_relu (depth {self.depth})"

    @property
    def starts(self) -> list[tuple[float, ...]]:
        slopes = [(0.8, 0.1), (0.9, 0.5), (0.5, 0.5)]
        return list(slopes) if self.depth == 1 else [(t, *s) for t, s in product((0.0, 0.4, 0.7), slopes)]

    def candidates(self, target: Scalars, kernel: Kernel | str) -> list[tuple[float, ...]]:
        if self.depth == 1:
            return [_slopes(layer) for (layer,) in RECTIFIER.one_layer(target, kernel)]
        pairs = [(_slopes(one), _slopes(two)) for one, two in RECTIFIER.two_layers(target, kernel)]
        return [(math.atan2(b, a), *second) for (a, b), second in pairs]

    def build(self, unknowns: tuple[float, ...], tau0: float) -> Explicit:
        if self.depth == 1:
            return Explicit([_rising(*unknowns)]).centred(tau0)
        angle, a, b = unknowns
        first = _rising(math.cos(angle), math.sin(angle))
        gain = tau0 / Explicit([first]).centred(tau0).deviations(tau0)[-1]
        return Explicit([Rectifier(gain * first.positive, gain * first.negative), _rising(a, b)]).centred(tau0)


@dataclass(frozen=True)
class QuadraticFamily(Family):
    """Two layers a x² + b x + c, c = −a τ̃²: the angle of the first's (a τ0, b), then a_2 τ0, b_2."""

    label = "quadratic"
    depth = 2
    starts = [(t, a, b) for t in (0.1, 0.8) for a, b in ((0.1, 0.5), (0.4, 0.5), (0.05, 0.9))]  # noqa: RUF012

    def candidates(self, target: Scalars, kernel: Kernel | str) -> list[tuple[float, ...]]:
        return [
            (math.atan2(math.sqrt(0.5 * one.bend), math.sqrt(one.slope)), math.sqrt(0.5 * two.bend), math.sqrt(two.slope))
            for one, two in QUADRATIC.two_layers(target, kernel)
        ]

    def build(self, unknowns: tuple[float, ...], tau0: float) -> Explicit:
        angle, a, b = unknowns
        first = Polynomial((0.0, abs(math.cos(angle)), abs(math.sin(angle)) / tau0))
        gain = tau0 / Explicit([first]).centred(tau0).deviations(tau0)[-1]
        scaled = Polynomial(tuple(gain * c for c in first.coefficients))
        layers: list[Activation] = [scaled, Polynomial((0.0, abs(b), abs(a) / tau0))]
        centred = Explicit(layers).centred(tau0)
        return Explicit([each_kind(layer, _absorb_offset) for layer in centred.layers])


def _slopes(layer: Layer) -> tuple[float, float]:
    """The slopes right and left of zero."""
    mean, half = math.sqrt(layer.slope), math.sqrt(RECTIFIER.stretch * layer.bend)
    return mean + half, mean - half


def _rising(a: float, b: float) -> Rectifier:
    """The one with a + b ≥ 0 and a ≥ b of the four that have the same kernels."""
    mean, half = 0.5 * abs(a + b), 0.5 * abs(a - b)
    return Rectifier(mean + half, mean - half)


def _absorb_offset(layer: Activation) -> Activation:
    """A centred polynomial with its offset written into its coefficients."""
    core, factor, offset = affine_parts(layer)
    assert isinstance(core, Polynomial)
    constant, *rest = (factor * c for c in core.coefficients)
    return Polynomial((constant - offset, *rest))
