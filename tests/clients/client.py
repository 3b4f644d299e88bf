"""A client: an implicit layer that somebody trains, and the requirements on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import notsodeep as nsd


class Problem(NamedTuple):
    """z = f(z) from z0, and the tensors whose gradients count."""

    f: Callable[[Any], Any]
    z0: Any
    parameters: tuple[Tensor, ...]


Build = Callable[[torch.dtype, int], Problem]


@dataclass(frozen=True)
class Client:
    """A layer in two sizes, and how it is solved best.

    `build(dtype, seed)` gives it small enough for a dense Jacobian, `large(dtype, seed)` as it is timed; the numbers are the
    same in every dtype, drawn in float32. `samples` leading axes of the state are independent of each other. `tol` is the
    relative residual asked for in float32, `gradient_tol` the relative error that it may leave in the gradient; `damping` is a
    step with which the plain iteration comes near, for the reference.
    """

    name: str
    build: Build
    large: Build
    samples: int = 1
    tol: float = 1e-4
    gradient_tol: float = 1e-2
    solver: nsd.fixed_points.Solver | nsd.fixed_points.Splitting = nsd.Anderson()  # noqa: RUF009 (frozen values)
    adjoint_solver: nsd.fixed_points.Solver | nsd.fixed_points.Splitting = nsd.Anderson()  # noqa: RUF009
    max_steps: int = 200
    damping: float = 1.0

    def solve(self, problem: Problem, tol: float | None = None) -> nsd.fixed_points.Solution:
        """The library's solution, with the exact implicit gradient at the same tolerance."""
        tol = self.tol if tol is None else tol
        adjoint = nsd.ImplicitAdjoint(self.adjoint_solver, tol=tol, max_steps=self.max_steps)
        options: dict[str, Any] = {"tol": tol, "max_steps": self.max_steps}
        f, z0 = problem.f, problem.z0
        return nsd.fixed_point(f, z0, self.solver, adjoint, samples=self.samples, **options)

    def residual(self, problem: Problem, z: Any) -> float:
        """‖f(z) − z‖/‖f(z)‖ of the worst sample, by one evaluation of f."""
        with torch.no_grad():
            image, state = self._rows(problem.f(z)), self._rows(z)
        return float(((image - state).norm(dim=1) / image.norm(dim=1)).max())

    def _rows(self, state: Any) -> Tensor:
        """(samples, numbers); all of the state is one sample where its axes are not independent."""
        leaves = pytree.tree_leaves(state)
        count = leaves[0].shape[: self.samples].numel()
        return torch.cat([leaf.reshape(count, -1) for leaf in leaves], dim=1)


class Counted:
    """f, with `evaluations` counted."""

    def __init__(self, f: Callable[[Any], Any]) -> None:
        self.f, self.evaluations = f, 0

    def __call__(self, z: Any) -> Any:
        self.evaluations += 1
        return self.f(z)


def draw(shape: tuple[int, ...], scale: float, generator: torch.Generator) -> Tensor:
    """Normal numbers of standard deviation `scale`, in float32: the same for a layer in every dtype."""
    return scale * torch.randn(shape, generator=generator)


def loss(z: Any, seed: int = 7) -> Tensor:
    """A linear functional of the state, the same in every dtype: its gradient is seen by every number of the state."""
    leaves = pytree.tree_leaves(z)
    generator = torch.Generator().manual_seed(seed)
    return sum((leaf * draw(tuple(leaf.shape), 1.0, generator).to(leaf)).sum() for leaf in leaves)
