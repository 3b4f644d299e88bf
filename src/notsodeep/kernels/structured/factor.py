"""Rows of the factor U of a kernel U C Uᵀ + diag(d), one block of samples at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from notsodeep.arrays import check_memory


@dataclass(frozen=True, eq=False)
class FactorRows:
    """U = [diag(f_1) x, …, diag(f_a) x, N] and d of a block of samples; all but x in float64."""

    x: Tensor
    norms2: Tensor
    """‖x_i‖², (b,)"""
    scales: Tensor
    """f, (b, a)"""
    narrow: Tensor
    """N, (b, c)"""
    diag: Tensor
    """d, (b,)"""

    def times(self, right: Tensor) -> Tensor:
        """U R for R (r, m)."""
        p, wide = self.x.shape[1], self.x.shape[1] * self.scales.shape[1]
        total = self.narrow @ right[wide:]
        for a in range(self.scales.shape[1]):
            part = self.x @ right[a * p : (a + 1) * p].to(self.x.dtype)
            total += self.scales[:, a : a + 1] * part
        return total

    def transposed_times(self, left: Tensor) -> Tensor:
        """Uᵀ L for L (b, m)."""
        parts = [self.x.T @ (left * scale[:, None]).to(self.x.dtype) for scale in self.scales.T]
        return torch.cat([part.to(torch.float64) for part in [*parts, self.narrow.T @ left]])

    def quadratic(self, inner: Tensor) -> Tensor:
        """u_iᵀ P u_i of each row, (b,)."""
        dense = torch.cat([self.x * scale[:, None] for scale in self.scales.T] + [self.narrow], dim=1)
        return (dense * (dense @ inner)).sum(1)


class Factor(Protocol):
    """The rows of U and d for any samples, known or new, and C (r, r)."""

    @property
    def core(self) -> Tensor: ...

    @property
    def features(self) -> int:
        """p"""

    @property
    def terms(self) -> int:
        """How many multiples of x there are in U."""

    def rows(self, x: Tensor) -> FactorRows: ...


def refuse_many_outputs(columns: int, outputs: int, sums: int) -> None:
    """`BadInput` before `sums` Gram matrices of all columns and targets are allocated that do not fit: a class for each number
    up to the largest label has been somebody's serial number before."""
    side = columns + outputs + 2
    instead = "classes counted from 0 without gaps, or real numbers where y is a quantity"
    check_memory((sums * side, side), torch.float64, torch.device("cpu"), instead, f"A fit of {outputs} targets")
