"""Choices of preconditioner for a kernel's systems: none, Nyström, the sharp kernel, or both in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from notsodeep.arguments import count, instance, seed as checked_seed
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Kernel
from notsodeep.kernels.structured.sharp import sharp_kernel
from notsodeep.linalg.preconditioners import Chained, Preconditioner, identity, made_positive, nystrom, whitened
from notsodeep.theory.architecture import Network
from notsodeep.theory.convolution import Convolutional

_FLOOR = 1e-3
"""The smallest diagonal of the sharp kernel in a preconditioner, relative to the mean of the kernel's."""


class RidgedKernel(Protocol):
    """The operator K + diag(ridge) that a preconditioner is made for, with the network and the samples of K."""

    net: Network
    kernel: Kernel
    tau0: float | None
    ridge: Tensor

    @property
    def samples(self) -> Tensor: ...

    def matvec(self, v: Any) -> Any: ...


class Preconditioning(Protocol):
    """A choice of preconditioner."""

    def of(self, operator: RidgedKernel) -> Preconditioner: ...


@dataclass(frozen=True)
class Plain:
    """No preconditioner: P = I."""

    def of(self, operator: RidgedKernel) -> Preconditioner:
        return identity(len(operator.samples), operator.samples)


@dataclass(frozen=True)
class Nystrom:
    """The randomised Nyström approximation of the kernel, for one product with `rank` vectors (`nystrom`).

    Args:
        rank: Of the approximation, at most n.
        seed: Of the random vectors.
    """

    rank: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        count(self.rank, "rank")
        checked_seed(self.seed)

    def of(self, operator: RidgedKernel) -> Preconditioner:
        level, draw = float(operator.ridge.min()), torch.Generator().manual_seed(self.seed)
        return nystrom(lambda v: operator.matvec(v) - level * v, operator.ridge, self.rank, level, draw)


@dataclass(frozen=True)
class Sharp:
    """The sharp kernel plus the ridge, made positive definite where it is not; it needs no product (`sharp_kernel`).

    Args:
        directions: Leading directions of the quadratic term.
    """

    directions: int = 10

    def __post_init__(self) -> None:
        count(self.directions, "directions", least=0)

    def of(self, operator: RidgedKernel) -> Preconditioner:
        if isinstance(operator.net, Convolutional):
            raise BadInput("Images have no sharp kernel to precondition with: take Nystrom(rank) or Plain().")
        sharp = sharp_kernel(operator.net, operator.samples, operator.kernel, operator.tau0, self.directions)
        floor = _FLOOR * float(sharp.diagonal().mean())
        return made_positive(sharp.add_ridge(operator.ridge), floor)


@dataclass(frozen=True)
class SharpNystrom:
    """The sharp kernel P = LLᵀ, and a Nyström approximation of L⁻¹(K + ridge·I)L⁻ᵀ, the remainder.

    The sharp kernel has the flat part of the spectrum, which Nyström misses; Nyström finds the close neighbours of real data,
    which an expansion in small correlations misses.

    Args:
        rank: Of the Nyström approximation; n where that is less.
        sharp: The first preconditioner.
        seed: Of the random vectors.
    """

    rank: int = 400
    sharp: Sharp = field(default_factory=Sharp)
    seed: int = 0

    def __post_init__(self) -> None:
        count(self.rank, "rank")
        instance(self.sharp, Sharp, "sharp", "Sharp(), or Sharp(directions)")
        checked_seed(self.seed)

    def of(self, operator: RidgedKernel) -> Preconditioner:
        first = self.sharp.of(operator)
        generator, rank = torch.Generator().manual_seed(self.seed), min(self.rank, len(operator.ridge))
        second = nystrom(whitened(operator.matvec, first), operator.ridge, rank, generator=generator)
        return Chained(first, second)
