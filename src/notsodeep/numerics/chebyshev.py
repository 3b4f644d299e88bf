"""Smooth functions of one number as Chebyshev series: a few evaluations instead of one a sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_SMALLEST, _LARGEST = 32, 512  # terms
_TAIL, _NOISE = 1e-13, 1e-9  # of the largest coefficient: settled; settled as far as a noisy function allows


@dataclass(frozen=True, eq=False)
class ChebyshevSeries:
    """Σ_k c_k T_k(t), t = (2 log s − log ab)/log(b/a) ∈ [−1, 1], on a ≤ s ≤ b; c is (terms, columns)."""

    coefficients: Tensor
    low: float
    high: float

    @classmethod
    def of(cls, function: Callable[[Tensor], Tensor], low: float, high: float) -> ChebyshevSeries | None:
        """`function`, (m,) → (m, columns), to round-off on 0 < low ≤ s ≤ high; None where 512 terms are not enough.

        Round-off of the largest column: columns are meant to be of one scale.
        """
        terms = _SMALLEST
        before: tuple[ChebyshevSeries | None, float] = (None, math.inf)
        while terms <= _LARGEST:
            angles = (torch.arange(terms, dtype=torch.float64) + 0.5) * (math.pi / terms)
            places = _places(torch.cos(angles), low, high)
            waves = torch.cos(torch.arange(terms, dtype=torch.float64)[:, None] * angles[None, :])
            coefficients = (2.0 / terms) * (waves @ function(places))
            coefficients[0] *= 0.5
            # The last quarter, because a series that has not settled may have a few small terms by chance.
            tail = float(coefficients[-terms // 4 :].abs().max() / coefficients.abs().max())
            series = cls(coefficients, low, high)
            if tail <= _TAIL:
                return series
            if before[1] <= _NOISE and tail > 0.5 * before[1]:
                return before[0]
            terms, before = 2 * terms, (series, tail)
        return None

    def covers(self, s: Tensor) -> Tensor:
        return (s >= self.low) & (s <= self.high)

    def __call__(self, s: Tensor) -> Tensor:
        """(m, columns) at s (m,), by Clenshaw's recurrence."""
        t = (2.0 * s.log() - math.log(self.low * self.high)) / math.log(self.high / self.low)
        t = t[:, None]
        ahead = further = self.coefficients.new_zeros(())
        for row in self.coefficients[1:].flip(0):
            ahead, further = torch.addcmul(row - further, t, 2.0 * ahead), ahead
        return t * ahead - further + self.coefficients[0]


def _places(t: Tensor, low: float, high: float) -> Tensor:
    return torch.exp(0.5 * (t * math.log(high / low) + math.log(low * high))).clamp(low, high)
