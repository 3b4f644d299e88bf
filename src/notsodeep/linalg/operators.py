"""The operations that every symmetric operator of the package has."""

from __future__ import annotations

from typing import Any, Protocol, SupportsFloat, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class SymmetricOperator(Protocol):
    """A symmetric matrix A (n, n) that is not held; `to_dense` gives its dense twin.

    `LowRankPlusDiagonal` and `TiledKernel` are such operators. Vectors are tensors or numpy arrays, answered in kind.
    """

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def matvec(self, v: Any) -> Any:
        """A v for v (n,) or (n, b)."""

    def diagonal(self) -> Tensor:
        """A_ii, (n,)."""

    def solve(self, v: Any) -> Any:
        """A⁻¹ v for v (n,) or (n, b)."""

    def logdet(self) -> SupportsFloat:
        """log det A, exact or estimated."""

    def eigsh(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest eigenvalues, descending, and their eigenvectors (n, k)."""

    def to_dense(self) -> Tensor:
        """A, where it fits in memory."""
