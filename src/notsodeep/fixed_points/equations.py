"""Equations z = step(z) that depend on tensors: the user's own, and the linear ones that its derivatives obey."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.fixed_points.precision import Map

Step = Callable[..., Tensor]


class Equation(ABC):
    """z = step(z) with step = bind(*args). The first `states` of its arguments are laid out like z."""

    states: int

    @abstractmethod
    def bind(self, *args: Tensor) -> Map:
        """The map to iterate; what can be prepared once is prepared here."""

    @abstractmethod
    def batched(self, size: int, in_dims: Sequence[int | None]) -> Equation:
        """`size` copies at once, as one state of size·n rows; the arguments past `states` have batch axes `in_dims`."""


@dataclass(frozen=True, eq=False)
class Direct(Equation):
    """z = f(z, *args)."""

    f: Step
    states = 0

    def bind(self, *args: Tensor) -> Map:
        bind = getattr(self.f, "bind", None)
        if bind is not None:  # a step that can prepare itself
            prepared: Map = bind(*args)
            return prepared
        return lambda z: self.f(z, *args)

    def batched(self, size: int, in_dims: Sequence[int | None]) -> Equation:
        many = torch.vmap(self.f, in_dims=(0, *in_dims))
        return Direct(lambda z, *args: many(z.unflatten(0, (size, -1)), *args).flatten(0, 1))


@dataclass(frozen=True, eq=False)
class Transposed(Equation):
    """u = Jᵀu + g, J the Jacobian of `inner` at z: the arguments are (z, g, *args of inner)."""

    inner: Equation

    @property
    def states(self) -> int:  # type: ignore[override]
        return 2 + self.inner.states

    def bind(self, *args: Tensor) -> Map:
        z, g, *rest = args
        pull = torch.func.vjp(self.inner.bind(*rest), z)[1]
        return lambda u: pull(u)[0] + g

    def batched(self, size: int, in_dims: Sequence[int | None]) -> Equation:
        return Transposed(self.inner.batched(size, in_dims))


@dataclass(frozen=True, eq=False)
class Tangent(Transposed):
    """v = J v + r: as `Transposed`, forwards."""

    def bind(self, *args: Tensor) -> Map:
        z, r, *rest = args
        step = self.inner.bind(*rest)
        return lambda v: torch.func.jvp(step, (z,), (v,))[1] + r

    def batched(self, size: int, in_dims: Sequence[int | None]) -> Equation:
        return Tangent(self.inner.batched(size, in_dims))
