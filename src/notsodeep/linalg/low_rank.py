"""Symmetric matrices kept as low rank + diagonal: every operation in O(n r) memory but `to_dense`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arguments import count, instance
from notsodeep.arrays import check_dense, check_memory, operand, shift
from notsodeep.errors import BadInput
from notsodeep.linalg.eigen import Arpack, top_eigenpairs


@dataclass(frozen=True, eq=False)
class Capacitance:
    """A = U C Uᵀ + D known by C and G = Uᵀ D⁻¹ U (both r × r): P = (I + C G)⁻¹ C is all that U needs of A⁻¹.

    A⁻¹ = D⁻¹ − D⁻¹ U P Uᵀ D⁻¹,   U C Uᵀ A⁻¹ = U P Uᵀ D⁻¹,   C − C Uᵀ A⁻¹ U C = P,   |A| = |D| |I + C G|.

    This form of Woodbury's identity needs no inverse of C, which may be singular.
    """

    core: Tensor
    gram: Tensor

    @cached_property
    def inner(self) -> Tensor:
        """P, (r, r), made symmetric."""
        found: Tensor = torch.linalg.lu_solve(*self._factors, self.core)
        return 0.5 * (found + found.T)

    def apply(self, b: Tensor) -> Tensor:
        """P b = (I + C G)⁻¹ C b for b (r, m)."""
        found: Tensor = torch.linalg.lu_solve(*self._factors, self.core @ b)
        return found

    def solve(self, b: Tensor) -> Tensor:
        """P b for b (r, m), with one step of iterative refinement."""
        first = self.apply(b)
        missing = self.core @ (b - self.gram @ first) - first
        second: Tensor = torch.linalg.lu_solve(*self._factors, missing)
        return first + second

    def logdet(self, negative: int = 0) -> Tensor:
        """log |I + C G|; NaN where the determinant of A is negative, D having `negative` entries below zero."""
        lu, pivots = self._factors
        swaps = int((pivots != torch.arange(1, len(lu) + 1, device=pivots.device)).sum())
        odd = (swaps + int((lu.diagonal() < 0).sum()) + negative) % 2 == 1
        total = lu.diagonal().abs().log().sum()
        return torch.full_like(total, math.nan) if odd else total

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
            raise BadInput("The diagonal is zero, or too small to divide by, at some sample: take a larger ridge to invert it.")
        lu, pivots = torch.linalg.lu_factor(inside)
        return lu, pivots


@dataclass(frozen=True, eq=False)
class LowRankPlusDiagonal:
    """The symmetric matrix A = U C Uᵀ + diag(d), never formed but by `to_dense`.

    Args:
        factor: U, (n, r).
        core: C, (r, r), symmetric; it may be indefinite or singular.
        diag: d, (n,).

    Raises:
        BadInput: Shapes that do not fit.
    """

    factor: Tensor
    core: Tensor
    diag: Tensor

    def __post_init__(self) -> None:
        for name in ("factor", "core", "diag"):
            check_dense(instance(getattr(self, name), Tensor, name, "a tensor"), name)
        n, r = self.factor.shape if self.factor.ndim == 2 else (-1, -1)
        if self.core.shape != (r, r) or self.diag.shape != (n,):
            raise BadInput(
                f"factor {tuple(self.factor.shape)}, core {tuple(self.core.shape)} and diagonal "
                f"{tuple(self.diag.shape)} do not fit; expected (n, r), (r, r) and (n,)."
            )

    @property
    def shape(self) -> tuple[int, int]:
        return self.factor.shape[0], self.factor.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.factor.dtype

    @property
    def rank(self) -> int:
        """Columns of the factor: an upper bound on the rank of A − diag(d)."""
        return self.factor.shape[1]

    def __repr__(self) -> str:
        n, r = self.factor.shape
        return f"LowRankPlusDiagonal(n={n}, rank={r}, {str(self.factor.dtype).removeprefix('torch.')})"

    def matvec(self, v: Any) -> Any:
        """A v for v (n,) or (n, b)."""
        if isinstance(v, np.ndarray):
            return self.matvec(self._operand(v)).cpu().numpy()
        v = self._operand(v)
        diag = self.diag if v.ndim == 1 else self.diag[:, None]
        return self.factor @ (self.core @ (self.factor.T @ v)) + diag * v

    def __matmul__(self, v: Any) -> Any:
        return self.matvec(v)

    def solve(self, v: Any) -> Any:
        """A⁻¹ v by Woodbury's identity (`Capacitance`), with one step of iterative refinement."""
        if isinstance(v, np.ndarray):
            return self.solve(self._operand(v)).cpu().numpy()
        v = self._operand(v)
        columns = v if v.ndim == 2 else v[:, None]
        first = self._solve_once(columns)
        found = first + self._solve_once(columns - self.matvec(first))
        return found if v.ndim == 2 else found[:, 0]

    def _solve_once(self, v: Tensor) -> Tensor:
        scaled = v / self.diag[:, None]
        return scaled - (self.factor @ self.capacitance.apply(self.factor.T @ scaled)) / self.diag[:, None]

    def inverse_diagonal(self) -> Tensor:
        """(A⁻¹)_ii of each i, by the same identity as `solve`, in O(n r) memory."""
        inner = self.capacitance.apply((self.factor / self.diag[:, None]).T)
        return (1.0 - (self.factor * inner.T).sum(1)) / self.diag

    def logdet(self) -> Tensor:
        """log |det A| = Σ log |d_i| + log |det(I + C Uᵀ D⁻¹ U)|; NaN where det A < 0, as for a dense matrix."""
        return self.capacitance.logdet(int((self.diag < 0).sum())) + self.diag.abs().log().sum()

    def diagonal(self) -> Tensor:
        return ((self.factor @ self.core) * self.factor).sum(1) + self.diag

    def trace(self) -> Tensor:
        return self.diagonal().sum()

    def eigsh(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest eigenvalues, descending, and their eigenvectors (n, k), by Lanczos in O(n r) memory."""
        found = top_eigenpairs(self.matvec, count(k, "k", most=self.shape[0]), self.factor, Arpack())
        return found.values, found.vectors

    def eigvalsh(self, k: int | None = None) -> Tensor:
        """All eigenvalues, ascending, or the k largest.

        Constant d: d plus the spectrum of R C Rᵀ with U = QR, in O(n r) memory. The k largest for any d: Lanczos, in O(n r)
        memory. All of them for a varying d go through `to_dense`, which raises BadInput where the matrix does not fit.
        """
        n, r = self.factor.shape
        k = None if k is None else min(count(k, "k"), n)
        if k is not None and k < n - 1:
            return self.eigsh(k)[0].flip(0)
        if bool((self.diag == self.diag[0]).all()) and r < n:
            triangle = torch.linalg.qr(self.factor, mode="r").R
            inner = torch.linalg.eigvalsh(triangle @ self.core @ triangle.T)
            values = torch.cat([inner, inner.new_zeros(n - r)]).sort().values + self.diag[0]
        else:
            values = torch.linalg.eigvalsh(self.to_dense())
        return values if k is None else values[-k:]

    def spectral_norm(self) -> float:
        """‖A‖, without forming A."""
        n = self.factor.shape[0]
        if n <= 2:
            return float(torch.linalg.eigvalsh(self.to_dense()).abs().max())
        largest = top_eigenpairs(self.matvec, 1, self.factor, Arpack("LM")).values
        return float(largest.abs().max())

    def add_ridge(self, ridge: float | Tensor) -> LowRankPlusDiagonal:
        """A + ridge·I, or A + diag(ridge)."""
        more = shift(ridge, len(self.diag))
        return replace(self, diag=self.diag + (more.to(self.diag) if isinstance(more, Tensor) else more))

    def to_dense(self) -> Tensor:
        """The (n, n) matrix; raises BadInput where it does not fit. The only O(n²) line."""
        n = self.factor.shape[0]
        check_memory((n, n), self.factor.dtype, self.factor.device, "matvec, solve, logdet or eigvalsh(k=…)")
        dense = (self.factor @ self.core) @ self.factor.T
        dense.diagonal().add_(self.diag)
        return dense

    def _operand(self, v: Any) -> Tensor:
        return operand(v, self.factor.shape[0], self.factor)

    @cached_property
    def capacitance(self) -> Capacitance:
        """C and Uᵀ D⁻¹ U, which `solve`, `logdet` and `inverse_diagonal` need."""
        if bool((self.diag == 0).any()):
            raise BadInput(
                f"{int((self.diag == 0).sum())} entries of the diagonal are zero, so this form cannot be inverted; "
                "add a ridge first: op.add_ridge(1e-6)."
            )
        return Capacitance(self.core, self.factor.T @ (self.factor / self.diag[:, None]))
