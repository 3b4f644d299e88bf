"""Rows of the factor U of a kernel U C Uᵀ + diag(d), one block of samples at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.arrays import check_memory
from notsodeep.linalg.low_rank import LowRankPlusDiagonal


@dataclass(frozen=True, eq=False)
class FactorRows:
    """U = [diag(f_1) x, …, diag(f_a) x, N] and d of a block of samples; all but x in float64."""

    x: Tensor
    scales: Tensor
    """f, (b, a)"""
    narrow: Tensor
    """N, (b, c)"""
    diag: Tensor
    """d, (b,)"""
    norms2: Tensor | None = None
    """‖x_i‖², (b,), where they were computed"""

    def operator(self, core: Tensor, like: Tensor) -> LowRankPlusDiagonal:
        """U C Uᵀ + diag(d) of these samples, in the dtype and on the device of `like`."""
        return LowRankPlusDiagonal(self._dense(self.x, like.dtype), core.to(like), self.diag.to(like))

    def times(self, right: Tensor) -> Tensor:
        """U R for R (r, m)."""
        p, terms = self.x.shape[1], self.scales.shape[1]
        *wide, narrow = right.split([p] * terms + [len(right) - terms * p])
        total: Tensor = self.narrow @ narrow
        for scale, part in zip(self.scales.T, wide, strict=True):
            total += scale[:, None] * (self.x @ part.to(self.x.dtype))
        return total

    def transposed_times(self, left: Tensor) -> Tensor:
        """Uᵀ L for L (b, m)."""
        parts = [self.x.T @ (left * scale[:, None]).to(self.x.dtype) for scale in self.scales.T]
        return torch.cat([part.to(torch.float64) for part in [*parts, self.narrow.T @ left]])

    def quadratic(self, inner: Tensor) -> Tensor:
        """u_iᵀ P u_i of each row, (b,)."""
        dense = self._dense(self.x.to(torch.float64), torch.float64)
        return (dense * (dense @ inner)).sum(1)

    def _dense(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """U, (b, r)."""
        wide = [(x * scale[:, None].to(x.dtype)).to(dtype) for scale in self.scales.T]
        return torch.cat([*wide, self.narrow.to(dtype)], dim=1)


def check_outputs(columns: int, outputs: int, sums: int) -> None:
    """Raise BadInput where `sums` Gram matrices of all columns and targets do not fit in memory, as with one class for each
    number up to a largest label that is really a serial number."""
    side = columns + outputs + 2
    instead = "classes counted from 0 without gaps, or real numbers where y is a quantity"
    check_memory((sums * side, side), torch.float64, torch.device("cpu"), instead, f"A fit of {outputs} targets")
