"""Polynomials, in powers or in Hermite polynomials."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.activations.base import Activation
from notsodeep.arguments import numbers, positive
from notsodeep.errors import BadInput

MOST_COEFFICIENTS = 512
"""Past some hundred terms h_k(x) and x^k leave the range of float64 on the nodes of the integrals, which take minutes there."""


def _checked(coefficients: tuple[float, ...], what: str) -> tuple[float, ...]:
    values = numbers(coefficients, what)
    if len(values) > MOST_COEFFICIENTS:
        raise BadInput(f"{what} are {len(values)}; at most {MOST_COEFFICIENTS} can be integrated. Leave out the last ones.")
    return values


class _Series(Activation):
    """Σ_k coefficients[k] p_k(x/scale) for polynomials p_k of degree k, p_1(x) = x."""

    coefficients: tuple[float, ...]
    scale: float
    grading = None

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    @property
    def lipschitz(self) -> float:
        if any(self.coefficients[2:]):
            return math.inf
        return abs(self.coefficients[1]) / self.scale if self.degree >= 1 else 0.0


@dataclass(frozen=True)
class Polynomial(_Series):
    """φ(x) = Σ_k coefficients[k] x^k."""

    coefficients: tuple[float, ...]

    scale = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _checked(self.coefficients, "The coefficients of a polynomial"))

    def __call__(self, x: Tensor) -> Tensor:
        return _horner(self.coefficients, x)

    def derivative(self, x: Tensor) -> Tensor:
        return _horner(tuple(k * c for k, c in enumerate(self.coefficients))[1:] or (0.0,), x)

    def __str__(self) -> str:
        terms = [f"{c:.6g}" + ("", "·x")[k > 0] + (f"^{k}" if k > 1 else "") for k, c in enumerate(self.coefficients) if c]
        return "polynomial(" + (" + ".join(reversed(terms)) or "0") + ")"


@dataclass(frozen=True)
class HermiteSeries(_Series):
    """φ(x) = Σ_k coefficients[k] h_k(x/scale), h_k = He_k/√k! orthonormal under N(0, 1)."""

    coefficients: tuple[float, ...]
    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _checked(self.coefficients, "The coefficients of a Hermite series"))
        object.__setattr__(self, "scale", positive(self.scale, "The scale of a Hermite series"))

    def __call__(self, x: Tensor) -> Tensor:
        return hermite_sum(self.coefficients, x / self.scale)

    def derivative(self, x: Tensor) -> Tensor:
        # h_k' = √k h_{k−1}
        slopes = tuple(math.sqrt(k) * c for k, c in enumerate(self.coefficients))[1:] or (0.0,)
        return hermite_sum(slopes, x / self.scale) / self.scale

    def __str__(self) -> str:
        shown = ", ".join(f"{c:.4g}" for c in self.coefficients[:4])
        more = ", …" if len(self.coefficients) > 4 else ""
        return f"hermite({len(self.coefficients)} terms: {shown}{more}; scale={self.scale:.6g})"


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    value = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * x + c
    return value


def hermite_sum(coefficients: tuple[float, ...], xi: Tensor) -> Tensor:
    """Σ_k c_k h_k(ξ), by the three-term recurrence h_{k+1} = (ξ h_k − √k h_{k−1})/√(k+1)."""
    previous, current = torch.zeros_like(xi), torch.ones_like(xi)
    total = coefficients[0] * current
    for k, c in enumerate(coefficients[1:]):
        previous, current = current, (xi * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
        total = total + c * current
    return total
