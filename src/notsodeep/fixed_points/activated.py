"""Maps z ↦ φ(W z + u) that show their parts, as splittings need them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.fixed_points.linear import Dense, Linear, as_linear

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Activated:
    """f(z) = φ(W z + u), to be given to `fixed_point`: as any f, and also solvable by `PeacemanRachford` and `ForwardBackward`.

    Args:
        phi: An element-wise, non-decreasing function of slope at most 1.
        linear: W: a matrix, or `Dense`, `CircularConvolution` or `Operator`.
        u: The input of every sample, of the shape of the state.
    """

    phi: Function
    linear: Linear | Tensor
    u: Tensor
    weight: Linear = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.phi):
            raise BadInput(f"phi must be a function, got {type(self.phi).__name__}.")
        if not isinstance(self.u, Tensor):
            raise BadInput(f"u must be a tensor that fits the state, got {type(self.u).__name__}.")
        object.__setattr__(self, "weight", as_linear(self.linear))

    def __call__(self, z: Tensor) -> Tensor:
        return self.phi(self.weight(z) + self.u)


@dataclass(frozen=True, eq=False)
class Slopes:
    """h ↦ D h, with slopes of its own for every number."""

    slopes: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        return h * self.slopes

    def select(self, rows: Tensor) -> Slopes:
        return Slopes(self.slopes[rows])


@dataclass(frozen=True, eq=False)
class ActivatedRows:
    """φ(W z + u) of (n, d) matrices; `shape` is that of the states, with −1 for the number of samples where it may vary."""

    phi: Function
    linear: Linear
    u: Tensor
    shape: tuple[int, ...]

    @staticmethod
    def dense(phi: Function, weight: Tensor, u: Tensor) -> ActivatedRows:
        return ActivatedRows(phi, Dense(weight), u, (-1, u.shape[1]))

    def as_states(self, z: Tensor) -> Tensor:
        """(n, d) in the shape that W takes."""
        return z.reshape(self.shape)

    def product(self, z: Tensor) -> Tensor:
        """W z."""
        return self.linear(self.as_states(z)).reshape(z.shape)

    def adjoint(self, z: Tensor, g: Tensor) -> ActivatedRows:
        """t = D (Wᵀ t + g), D = φ'(W z + u): with u = Wᵀ t + g, u = Jᵀ u + g for J = D W."""
        with torch.no_grad():
            h = self.product(z) + self.u
        with torch.enable_grad():
            inner = h.requires_grad_()
            slopes = torch.autograd.grad(self.phi(inner).sum(), inner)[0]
        return ActivatedRows(Slopes(slopes), self.linear.transposed(), g, self.shape)

    def __call__(self, z: Tensor) -> Tensor:
        return self.phi(self.product(z) + self.u)

    @property
    def structure(self) -> ActivatedRows:
        return self
