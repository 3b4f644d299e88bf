"""Low rank + diagonal, from its r × r Gram matrix alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from notsodeep.errors import BadInput


@dataclass(frozen=True, eq=False)
class Capacitance:
    """A = U C Uᵀ + D known by C and G = Uᵀ D⁻¹ U (both r × r): P = (I + C G)⁻¹ C is all that U needs of A⁻¹.

    A⁻¹ = D⁻¹ − D⁻¹ U P Uᵀ D⁻¹,   U C Uᵀ A⁻¹ = U P Uᵀ D⁻¹,   C − C Uᵀ A⁻¹ U C = P,   |A| = |D| |I + C G|.
    """

    core: Tensor
    gram: Tensor

    @cached_property
    def inner(self) -> Tensor:
        """P, (r, r)."""
        found: Tensor = torch.linalg.lu_solve(*self._factors, self.core)
        symmetric: Tensor = 0.5 * (found + found.T)
        return symmetric

    def solve(self, b: Tensor) -> Tensor:
        """P b = (I + C G)⁻¹ C b for b (r, m), with one step of iterative refinement."""
        right = self.core @ b
        first: Tensor = torch.linalg.lu_solve(*self._factors, right)
        missing = right - first - self.core @ (self.gram @ first)
        second: Tensor = torch.linalg.lu_solve(*self._factors, missing)
        return first + second

    def logdet(self, negative: int = 0) -> float:
        """log |I + C G|; NaN where the determinant of A is negative, D having `negative` entries below zero."""
        lu, pivots = self._factors
        swaps = int((pivots != torch.arange(1, len(lu) + 1)).sum())
        odd = (swaps + int((lu.diagonal() < 0).sum()) + negative) % 2 == 1
        return float("nan") if odd else float(lu.diagonal().abs().log().sum())

    def ritz(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest eigenvalues μ of D^(−1/2) U C Uᵀ D^(−1/2), descending, and Z (r, k) with eigenvectors D^(−1/2) U Z.

        They are those of G^(1/2) C G^(1/2).
        """
        values, vectors = torch.linalg.eigh(self.gram)
        # Directions that are round-off of the largest carry nothing, and may not be divided by.
        kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1].abs()
        if not bool(kept.any()):
            return values.new_zeros(0), values.new_zeros(len(values), 0)
        values, vectors = values[kept], vectors[:, kept]
        root = vectors * values.sqrt()
        found, inside = torch.linalg.eigh(root.T @ self.core @ root)
        count = min(k, len(found))
        return found.flip(0)[:count], (vectors / values.sqrt()) @ inside.flip(1)[:, :count]

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor]:
        inside = self.core @ self.gram
        inside.diagonal().add_(1.0)
        if not bool(torch.isfinite(inside).all()):
            raise BadInput("The diagonal is zero somewhere, so this kernel cannot be inverted; take a larger ridge.")
        lu, pivots = torch.linalg.lu_factor(inside)
        return lu, pivots
