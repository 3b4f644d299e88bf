"""Features of unlike units: where one of them holds nearly all of the variance, no kernel and no network sees the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.errors import BadInput

DOMINATES = 0.9
"""Of x's variance, in one feature of several: in distances and inner products the others together are then a tenth at most.
Features that measure like things, as pixels do, never come near; a length in millimetres beside one in metres always does."""


@dataclass(frozen=True, eq=False)
class Columns:
    """What each feature is divided by: 1, or its own deviation where one feature dominates."""

    divisors: Tensor
    """(p,), float64"""
    largest: float
    """The share of the variance that one feature held before."""

    @classmethod
    def of(cls, x: Tensor) -> Columns:
        """The divisors for x (n, p). A feature that never changes has nothing to divide, and keeps its 1."""
        variances = x.double().var(0, correction=0)
        total = float(variances.sum())
        largest = float(variances.max()) / total if total > 0.0 else 0.0
        if x.shape[1] == 1 or largest <= DOMINATES:
            return cls(torch.ones_like(variances), largest)
        # What rounding leaves of a feature that never changes is no variance.
        floor = (torch.finfo(x.dtype).eps * x.double().abs().amax(0)).square()
        return cls(torch.where(variances > floor, variances.sqrt(), 1.0), largest)

    @property
    def scaled(self) -> bool:
        """Whether one feature dominated."""
        return len(self.divisors) > 1 and self.largest > DOMINATES

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[1] != len(self.divisors):
            raise BadInput(f"x has {x.shape[1]} features, and {len(self.divisors)} elsewhere.")
        return x.double() / self.divisors
