"""Preconditioners: positive definite matrices with a cheap inverse and a cheap root."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.arguments import is_whole
from notsodeep.errors import BadInput
from notsodeep.linalg.eigen import BlockProduct
from notsodeep.linalg.low_rank import LowRankPlusDiagonal

_NEGLIGIBLE = 0.02
"""A gain of P below this changes the condition number by no more, and each costs a column."""

_LOWEST_GAIN = 0.1
"""The floor on 1 + s that keeps P positive definite."""


@dataclass(frozen=True, eq=False)
class SpikedDiagonal:
    """P = D^½ (I + Q diag(s) Qᵀ) D^½ with d > 0 (n,), Q (n, r) orthonormal and s > −1 (r,); its root is
    L = D^½ (I + Q diag(√(1+s) − 1) Qᵀ)."""

    diag: Tensor
    vectors: Tensor
    gains: Tensor

    @property
    def rank(self) -> int:
        return self.vectors.shape[1]

    def solve(self, v: Tensor) -> Tensor:
        # By way of the root: I − Q diag(s/(1+s)) Qᵀ at once leaves round-off where 1/(1+s) is as small, of either sign.
        return self.whiten_back(self.whiten(v))

    def whiten(self, v: Tensor) -> Tensor:
        return self._inner(self._root(v), (1.0 + self.gains).rsqrt())

    def whiten_back(self, v: Tensor) -> Tensor:
        return self._root(self._inner(v, (1.0 + self.gains).rsqrt()))

    def logdet(self) -> float:
        return float(self.diag.double().log().sum() + self.gains.double().log1p().sum())

    def _root(self, v: Tensor) -> Tensor:
        return v * self.diag.rsqrt()[:, None]

    def _inner(self, v: Tensor, along: Tensor) -> Tensor:
        return v + self.vectors @ ((along - 1.0)[:, None] * (self.vectors.T @ v))


@dataclass(frozen=True, eq=False)
class Chained:
    """P = L₁ P₂ L₁ᵀ: the second preconditions the remainder of the first."""

    first: Preconditioner
    second: Preconditioner

    def solve(self, v: Tensor) -> Tensor:
        return self.first.whiten_back(self.second.solve(self.first.whiten(v)))

    def whiten(self, v: Tensor) -> Tensor:
        return self.second.whiten(self.first.whiten(v))

    def whiten_back(self, v: Tensor) -> Tensor:
        return self.first.whiten_back(self.second.whiten_back(v))

    def logdet(self) -> float:
        return self.first.logdet() + self.second.logdet()


Preconditioner = SpikedDiagonal | Chained
"""P = L Lᵀ: `solve` is P⁻¹V, `whiten` L⁻¹V, `whiten_back` L⁻ᵀV; V is (n, b)."""


def whitened(product: BlockProduct, by: Preconditioner) -> BlockProduct:
    """V ↦ L⁻¹ A L⁻ᵀ V."""
    return lambda v: by.whiten(product(by.whiten_back(v)))


def identity(n: int, like: Tensor) -> SpikedDiagonal:
    """P = I."""
    return SpikedDiagonal(torch.ones(n, dtype=like.dtype, device=like.device), like.new_zeros(n, 0), like.new_zeros(0))


@torch.no_grad()
def made_positive(operator: LowRankPlusDiagonal, floor: float) -> SpikedDiagonal:
    """U C Uᵀ + diag(d) made positive definite: d is raised to at least `floor`, and 1 + s to at least a tenth, where
    D^−½ U C Uᵀ D^−½ = Q diag(s) Qᵀ. Small |s| are dropped."""
    diag = operator.diag.double().clamp(min=floor)
    factor, core = _trimmed(operator.factor.double() / diag.sqrt()[:, None], operator.core.double())
    q, r = torch.linalg.qr(factor)
    gains, along = torch.linalg.eigh(r @ core @ r.T)
    kept = gains.abs() > _NEGLIGIBLE
    vectors = q @ along[:, kept]
    gains = gains[kept].clamp(min=_LOWEST_GAIN - 1.0)
    return SpikedDiagonal(diag.to(operator.diag), vectors.to(operator.diag), gains.to(operator.diag))


def _trimmed(factor: Tensor, core: Tensor) -> tuple[Tensor, Tensor]:
    """U and C without the columns whose sum is negligible, by ‖Σ c u uᵀ‖ ≤ Σ |c| ‖u‖²; for a diagonal C only."""
    if not torch.equal(core, torch.diag(core.diagonal())):
        return factor, core
    sizes, order = (core.diagonal().abs() * factor.square().sum(0)).sort()
    kept = order[sizes.cumsum(0) > _NEGLIGIBLE].sort().values
    return factor[:, kept], core[kept][:, kept]


@torch.no_grad()
def nystrom(
    product: BlockProduct, like: Tensor, rank: int, ridge: float = 0.0, generator: torch.Generator | None = None
) -> SpikedDiagonal:
    """The randomised Nyström preconditioner of K + ridge·I, from one product of K with `rank` orthonormal Gaussian vectors Ω:
    K ≈ (KΩ)(ΩᵀKΩ)⁻¹(KΩ)ᵀ = U Λ Uᵀ and P = I + U diag((Λ + ridge)/(λ_r + ridge) − 1) Uᵀ.

    Ref: Frangella, Tropp and Udell, SIAM J. Matrix Anal. Appl. 44 (2023), algorithm 2.1 and equation 1.3.
    """
    n = len(like)
    if not is_whole(rank) or not 1 <= rank <= n:
        raise BadInput(f"A Nyström preconditioner of {n} samples has a rank from 1 to {n}; rank = {rank}.")
    own = torch.Generator().manual_seed(0) if generator is None else generator
    test = torch.linalg.qr(torch.randn(n, rank, dtype=torch.float64, generator=own, device=own.device).to(like.device)).Q
    image = product(test.to(like)).double()
    # The shift keeps the small Gram matrix positive in the precision of the product; anything below it is round-off.
    shift = n**0.5 * torch.finfo(like.dtype).eps * float(torch.linalg.matrix_norm(image))
    image = image + shift * test
    small, along = torch.linalg.eigh(0.5 * (test.T @ image + image.T @ test))
    sound = small > 0.5 * shift
    if not bool(sound.any()):
        return identity(n, like)
    vectors, singular, _ = torch.linalg.svd(image @ (along[:, sound] * small[sound].rsqrt()), full_matrices=False)
    values = (singular.square() - shift).clamp(min=0.0) + ridge
    lowest = max(float(values[-1]), shift)
    gains = (values / lowest - 1.0).clamp(min=0.0)
    kept = gains > _NEGLIGIBLE
    ones = torch.ones(n, dtype=like.dtype, device=like.device)
    return SpikedDiagonal(ones, vectors[:, kept].to(like), gains[kept].to(like))
