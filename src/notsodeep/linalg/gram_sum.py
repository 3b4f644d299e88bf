"""Weighted Gram matrices summed over blocks of rows: products in the rows' dtype, sums in float64."""

from __future__ import annotations

import torch
from torch import Tensor

_PANELS = 4


class GramSum:
    """Σ over blocks of Uᵀ diag(w) U with U = [diag(f_1) x, …, diag(f_a) x, N]: `terms` multiples of x, `narrow` columns of N.

    Every XᵀWX is symmetric, so a triangle of panels is computed; N is narrow, so its own products are in float64.
    """

    def __init__(self, terms: int, p: int, narrow: int) -> None:
        self.terms, self.p = terms, p
        self._total = torch.zeros(terms * p + narrow, terms * p + narrow, dtype=torch.float64)

    def add(self, x: Tensor, scales: Tensor, narrow: Tensor, weights: Tensor) -> None:
        """One block: x (b, p), scales f (b, a), N (b, narrow) and w (b,), all but x in float64."""
        p, wide = self.p, self.terms * self.p
        for a in range(self.terms):
            weighted = weights * scales[:, a]
            cross = x.T @ (narrow * weighted[:, None]).to(x.dtype)
            self._total[a * p : (a + 1) * p, wide:] += cross.cpu()
            for b in range(a, self.terms):
                self._add_square(x, (weighted * scales[:, b]).to(x.dtype), a * p, b * p)
        self._total[wide:, wide:] += (narrow.T @ (narrow * weights[:, None])).cpu()

    def _add_square(self, x: Tensor, weights: Tensor, row: int, column: int) -> None:
        """The panels of xᵀ diag(w) x on and above its diagonal."""
        step = -(-self.p // _PANELS) if self.p >= 64 * _PANELS else self.p
        for start in range(0, self.p, step):
            stop = min(start + step, self.p)
            product = (x[:, start:stop] * weights[:, None]).T @ x[:, start:]
            self._total[row + start : row + stop, column + start : column + self.p] += product.cpu()

    def matrix(self) -> Tensor:
        """The sum so far, symmetric, in float64."""
        p, terms = self.p, self.terms
        whole = self._total.clone()
        for a in range(terms):
            for b in range(a, terms):
                square = whole[a * p : (a + 1) * p, b * p : (b + 1) * p]
                square.copy_(square.triu() + square.triu(1).T)
        return whole.triu() + whole.triu(1).T
