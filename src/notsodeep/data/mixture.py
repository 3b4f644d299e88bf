"""Gaussian mixtures: x_i = μ_a/√p + w_i, w_i ~ N(0, C_a/p). Ref: docs/theory.md, section 3."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.errors import BadInput


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """Means (K, p) and one covariance a class: (K,) isotropic, (K, p) diagonal or (K, p, p) full."""

    means: Tensor
    covariances: Tensor

    def __post_init__(self) -> None:
        means = torch.as_tensor(self.means, dtype=torch.float64)
        covariances = torch.as_tensor(self.covariances, dtype=torch.float64)
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "covariances", covariances)
        if means.ndim != 2 or covariances.shape not in [(means.shape[0], *means.shape[1:] * k) for k in range(3)]:
            raise BadInput(
                f"means {tuple(means.shape)} and covariances {tuple(covariances.shape)} do not fit; expected (K, p) and "
                "(K,) for isotropic, (K, p) for diagonal or (K, p, p) for full covariances."
            )
        if not bool(torch.isfinite(means).all() and torch.isfinite(covariances).all()):
            raise BadInput("The means and covariances of a mixture must be finite.")
        if covariances.ndim < 3 and bool((covariances < 0).any()):
            raise BadInput("A variance of the mixture is negative.")

    @property
    def classes(self) -> int:
        return self.means.shape[0]

    @property
    def p(self) -> int:
        return self.means.shape[1]

    @classmethod
    def two_classes(cls, p: int, separation: float = 8.0, spread: float = 8.0) -> GaussianMixture:
        """The mixture of [ling2024]: μ_a = separation·e_{8(a−1)+1}, C_a = (1 + spread (a−1)/√p) I, a = 1, 2."""
        if p < 9:
            raise BadInput(f"The two-class mixture puts its second mean on feature 9, so it needs p ≥ 9; got p = {p}.")
        means = torch.zeros(2, p, dtype=torch.float64)
        means[0, 0] = means[1, 8] = separation
        return cls(means, torch.tensor([1.0, 1.0 + spread / math.sqrt(p)], dtype=torch.float64))

    def sample(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """n samples (n, p) and their classes (n,), as balanced as n allows, class after class."""
        if n < 1:
            raise BadInput(f"Cannot draw n = {n} samples; n must be at least 1.")
        y = torch.arange(n) * self.classes // n
        noise = torch.randn(n, self.p, dtype=torch.float64, generator=generator)
        if self.covariances.ndim == 1:
            noise *= self.covariances.sqrt()[y, None]
        elif self.covariances.ndim == 2:
            noise *= self.covariances.sqrt()[y]
        else:
            for a, covariance in enumerate(self.covariances):
                noise[y == a] = noise[y == a] @ _root(covariance)
        return (self.means[y] + noise) / math.sqrt(self.p), y

    def traces(self) -> Tensor:
        """tr C_a, (K,)."""
        if self.covariances.ndim == 1:
            return self.p * self.covariances
        return (
            self.covariances.sum(1) if self.covariances.ndim == 2 else self.covariances.diagonal(dim1=1, dim2=2).sum(1)
        )

    def trace_products(self) -> Tensor:
        """tr(C_a C_b), (K, K)."""
        if self.covariances.ndim == 1:
            return self.p * torch.outer(self.covariances, self.covariances)
        flat = self.covariances.flatten(1)
        return flat @ flat.T


def _root(covariance: Tensor) -> Tensor:
    """The symmetric square root: unlike Cholesky's factor, it exists for a singular covariance too."""
    values, vectors = torch.linalg.eigh(covariance)
    if float(values[0]) < -1e-10 * float(values[-1].abs()) or not torch.allclose(covariance, covariance.T):
        raise BadInput(
            f"A covariance of the mixture is not positive semidefinite: its smallest eigenvalue is {float(values[0]):.2e}."
        )
    root: Tensor = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T
    return root
