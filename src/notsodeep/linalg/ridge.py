"""Ridge regression for many ridges at once, and the exact error of leaving each sample out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from notsodeep.linalg.low_rank import LowRankPlusDiagonal


def left_out_error(alpha: Tensor, inverse_diagonal: Tensor) -> float:
    """Σ_i ‖α_i/(A⁻¹)_ii‖² for α = A⁻¹ T, A = K + λI: the squared error at each sample of the fit to all others."""
    return float((alpha.double() / inverse_diagonal.double()[:, None]).square().sum())


@dataclass(frozen=True, eq=False)
class _Spectrum:
    """A positive semidefinite matrix V Λ Vᵀ, and Vᵀ B."""

    values: Tensor
    vectors: Tensor
    along: Tensor

    @classmethod
    def of(cls, matrix: Tensor, b: Tensor) -> Self:
        values, vectors = torch.linalg.eigh(matrix)
        return cls(values.clamp(min=0.0), vectors, vectors.T @ b)


@dataclass(frozen=True, eq=False)
class KernelSpectrum(_Spectrum):
    """K = V Λ Vᵀ (n, n) and Vᵀ T, which give (K + λI)⁻¹ T and its leave-one-out error for every λ."""

    def coefficients(self, level: float) -> Tensor:
        """(K + λI)⁻¹ T, (n, K)."""
        return self.vectors @ (self.shrink(level)[:, None] * self.along)

    def best_level(self, ridges: Sequence[float]) -> float:
        """λ = ridge·tr K/n with the smallest leave-one-out error."""
        mean = float(self.values.mean())
        return min((ridge * mean for ridge in ridges), key=self.left_out)

    def left_out(self, level: float) -> float:
        """`left_out_error` with λ = `level`."""
        return left_out_error(self.coefficients(level), self._shares @ self.shrink(level))

    def shrink(self, level: float) -> Tensor:
        """1/(Λ + λ), (n,)."""
        return 1.0 / (self.values + level)

    @cached_property
    def _shares(self) -> Tensor:
        return self.vectors.square()


def kernel_ridge(gram: Tensor | LowRankPlusDiagonal, targets: Tensor, ridges: Sequence[float]) -> tuple[Tensor, float]:
    """α = (K + λI)⁻¹ T, λ = ridge·tr K/n, and its ridge: the one with the smallest leave-one-out error."""
    n = gram.shape[0]
    if isinstance(gram, LowRankPlusDiagonal):
        mean, best, smallest = float(gram.trace()) / n, (targets, ridges[0]), float("inf")
        for ridge in ridges:
            shifted = gram.add_ridge(ridge * mean)
            alpha = shifted.solve(targets)
            error = left_out_error(alpha, shifted.inverse_diagonal()) if len(ridges) > 1 else 0.0
            if error < smallest:
                best, smallest = (alpha, ridge), error
        return best
    mean = float(gram.diagonal().sum()) / n
    if len(ridges) > 1:
        spectrum = KernelSpectrum.of(gram.double(), targets.double())
        ridge = min(ridges, key=lambda ridge: spectrum.left_out(ridge * mean))
        return spectrum.coefficients(ridge * mean).to(targets), ridge
    dense = gram.to(torch.float64, copy=True)
    dense.diagonal().add_(ridges[0] * mean)
    return torch.linalg.solve(dense, targets.double()).to(targets), ridges[0]


@dataclass(frozen=True, eq=False)
class FeatureSpectrum(_Spectrum):
    """ZᵀZ = V Λ Vᵀ (m, m) and VᵀZᵀT, which give (ZᵀZ + λI)⁻¹ ZᵀT and its leave-one-out error for every λ."""

    def weight(self, level: float) -> Tensor:
        """((ZᵀZ + λI)⁻¹ ZᵀT)ᵀ, (K, m)."""
        return (self.vectors @ (self.along / (self.values + level)[:, None])).T

    def left_out(self, z: Tensor, targets: Tensor, levels: Sequence[float], own: float) -> Tensor:
        """Σ_i ‖(t_i − out_i)/(1 − h_i)‖² over some samples z (b, m), for each level: h_i = own + Σ_k (z_iᵀv_k)²/(Λ_k + λ)."""
        inverse = torch.stack([1.0 / (self.values + level) for level in levels], dim=1)  # (m, levels)
        shrunk = torch.stack([self.along / (self.values + level)[:, None] for level in levels])  # (levels, m, K)
        along = z @ self.vectors
        rest = (1.0 - (along.square() @ inverse + own)).clamp(min=torch.finfo(torch.float64).eps)
        missed = targets - along @ shrunk  # (levels, b, K)
        return (missed.square().sum(2).T / rest.square()).sum(0)
