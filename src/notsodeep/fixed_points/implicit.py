"""The fixed point as a differentiable operation of its arguments: exact gradients of any order, under `torch.func` too.

Ref: docs/theory.md, section 7.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.errors import NumericsWarning
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.fixed_points.affine import AffineMap, AffineStep
from notsodeep.fixed_points.capture import require_all_seen, require_not_batched, transforms_active
from notsodeep.fixed_points.eager import eager
from notsodeep.fixed_points.equations import Direct, Equation, Step, Tangent, Transposed
from notsodeep.fixed_points.loop import Plan, iterate
from notsodeep.fixed_points.precision import Map
from notsodeep.fixed_points.solution import Reason, Solution


@eager
def equilibrium(
    f: Step, z0: Tensor, args: Sequence[Tensor], plan: Plan, adjoint: Adjoint, what: str = "The fixed point"
) -> Solution:
    """z = f(z, *args) from z0, (n, d): a `Solution` whose value carries the gradient that `adjoint` says."""
    with torch.autocast(z0.device.type, enabled=False):  # solvers work in the state's precision; f may choose its own
        return _equilibrium(f, z0, args, plan, adjoint, what)


def _equilibrium(f: Step, z0: Tensor, args: Sequence[Tensor], plan: Plan, adjoint: Adjoint, what: str) -> Solution:
    if isinstance(adjoint, UnrolledAdjoint):
        require_not_batched((z0, *args), "UnrolledAdjoint does not work under vmap")
        solution = iterate(lambda z: f(z, *args), z0, plan)
        if plan.throw:
            solution.raise_unless_converged(what)
        return replace(solution, value=f(solution.value, *args))  # one step at least, even from a start that is exact
    implicit = adjoint if isinstance(adjoint, ImplicitAdjoint) else None
    box = _Box()
    differentiated = torch.is_grad_enabled() and any(arg.requires_grad for arg in args)
    task = _Task(plan, implicit, what, box, differentiated=differentiated)
    z = _Equilibrium.apply(Direct(f), task, z0.detach(), *args)
    if isinstance(adjoint, PhantomAdjoint) and torch.is_grad_enabled():
        z = z.detach()
        for _ in range(adjoint.steps):
            z = torch.lerp(z, f(z, *args), adjoint.damping)
    assert box.solution is not None
    failed = box.solution.failed
    if not transforms_active() and bool(failed.any()):
        # What is no state has no gradient, and must not spoil the others'.
        z = torch.where(failed[:, None], z.detach(), z)
    return replace(box.solution, value=z)


class _Box:
    """Carries a solution out of an autograd function, which returns tensors only, and h = W z + u to its backward pass."""

    solution: Solution | None = None
    h: Tensor | None = None


@dataclass(frozen=True, eq=False)
class _Task:
    plan: Plan
    adjoint: ImplicitAdjoint | None
    what: str
    box: _Box
    is_backward: bool = False
    differentiated: bool = False
    after_failures: bool = False

    def backward(self) -> _Task:
        assert self.adjoint is not None
        what = self.what if self.is_backward else f"The gradient of {self.what[0].lower()}{self.what[1:]}"
        plan = replace(self.adjoint.plan, precision=self.plan.precision)
        return _Task(plan, self.adjoint, what, _Box(), is_backward=True, after_failures=not self.plan.throw)

    def solve(self, step: Map, z0: Tensor) -> Tensor:
        solution = iterate(step, z0, self.plan)
        if self.plan.throw:
            solution.raise_unless_converged(self.what)
        elif self.is_backward and solution.reason is not Reason.converged:
            message = f"{self.what} is not exact: {solution.reason}, residual {float(solution.residual.max()):.1e}."
            warnings.warn(message, NumericsWarning, stacklevel=2)
        # Without its value: the node of the graph holds the box, and holding its own output it would never be freed.
        self.box.solution = replace(solution, value=None)
        value: Tensor = solution.value
        return value


class _Equilibrium(torch.autograd.Function):
    """(equation, task, z0, *args) → z, with z = equation(z, *args)."""

    @staticmethod
    def forward(equation: Equation, task: _Task, z0: Tensor, *args: Tensor) -> Tensor:
        step = equation.bind(*args)
        if isinstance(step, AffineMap):
            step.remember = task.differentiated  # otherwise one state less is in the way of the products
        z = task.solve(step, z0)
        if isinstance(step, AffineMap) and task.differentiated and step.latest is not None and step.latest[0] is z:
            task.box.h = step.latest[1]
        return z.clone() if z is z0 else z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        equation, task, _, *args = inputs
        ctx.equation, ctx.task = equation, task
        if task.adjoint is None:
            ctx.mark_non_differentiable(output)
        else:
            ctx.save_for_backward(output, *args)
            ctx.save_for_forward(output, *args)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        if ctx.task.adjoint is None:
            return (None,) * len(ctx.needs_input_grad)
        z, *args = ctx.saved_tensors
        if not transforms_active():
            require_not_batched((g,), "is_grads_batched and vectorize=True do not work through a fixed point")
        grads: Sequence[Tensor | None]
        with torch.autocast(z.device.type, enabled=False):
            needed = ctx.needs_input_grad[3:]
            if torch.is_grad_enabled() or transforms_active():
                grads = _differentiable_gradients(ctx.equation, ctx.task.backward(), z, g, args, needed)
            else:
                grads = _gradients(ctx.equation, ctx.task.backward(), z, g, args, needed, ctx.task.box.h)
        return (None, None, None, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:  # type: ignore[override]
        if ctx.task.adjoint is None:
            return None
        z, *args = ctx.saved_tensors
        changes = [torch.zeros_like(a) if t is None else t for a, t in zip(args, tangents[3:], strict=True)]
        with torch.autocast(z.device.type, enabled=False):
            r = torch.func.jvp(lambda *others: ctx.equation.bind(*others)(z), tuple(args), tuple(changes))[1]
            dz: Tensor = _Equilibrium.apply(Tangent(ctx.equation), ctx.task.backward(), r.detach(), z, r, *args)
        return dz

    @staticmethod
    def vmap(  # type: ignore[override]
        info: Any, in_dims: Any, equation: Equation, task: _Task, z0: Tensor, *args: Tensor
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        _, _, z0_dim, *dims = in_dims
        kept = [
            _stacked(arg, dim, size) if k < equation.states else arg
            for k, (arg, dim) in enumerate(zip(args, dims, strict=True))
        ]
        many = equation.batched(size, dims[equation.states :])
        z = _Equilibrium.apply(many, task, _stacked(z0, z0_dim, size), *kept)
        return z.unflatten(0, (size, -1)), 0


def _stacked(state: Tensor, dim: int | None, size: int) -> Tensor:
    """(size·n, d) from a state with, or without, a batch axis."""
    moved = state.expand(size, *state.shape) if dim is None else state.movedim(dim, 0)
    return moved.flatten(0, 1).contiguous()


def _gradients(
    equation: Equation,
    task: _Task,
    z: Tensor,
    g: Tensor,
    args: Sequence[Tensor],
    needed: Sequence[bool],
    h: Tensor | None,
) -> Sequence[Tensor | None]:
    """The same numbers as `_differentiable_gradients`, with at most one evaluation of f and no graph kept."""
    if isinstance(equation, Direct) and isinstance(equation.f, AffineStep):
        weight, u = args
        h = functional.linear(z, weight) + u if h is None else h
        h = torch.nan_to_num(h) if task.after_failures else h  # of a sample that failed, whose cotangent is 0
        adjoint = equation.f.adjoint(h, z, weight, g)
        return adjoint.gradients(task.solve(adjoint.map(), adjoint.start), needed)
    here, leaves, image = _evaluated(equation, z, args, needed)
    if not image.requires_grad:
        return [None] * len(args)

    def pull(u: Tensor) -> Tensor:
        found = torch.autograd.grad(image, here, u, retain_graph=True, allow_unused=True)[0]
        return g if found is None else found + g

    u = task.solve(pull, g)
    wanted = [leaf for leaf, need in zip(leaves, needed, strict=True) if need]
    found = iter(torch.autograd.grad(image, wanted, u, allow_unused=True) if wanted else ())
    return [next(found) if need else None for need in needed]


def _evaluated(
    equation: Equation, z: Tensor, args: Sequence[Tensor], needed: Sequence[bool]
) -> tuple[Tensor, list[Tensor], Tensor]:
    """(z, arguments, step(z)) with a graph between leaves of its own, in which every tensor that needs a gradient is seen."""
    with torch.enable_grad():
        here = z.detach().requires_grad_()
        leaves = [arg.detach().requires_grad_(need) for arg, need in zip(args, needed, strict=True)]
        image = equation.bind(*leaves)(here)
    require_all_seen(image, [here, *leaves])
    return here, leaves, image


def _differentiable_gradients(
    equation: Equation, task: _Task, z: Tensor, g: Tensor, args: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """u = Jᵀu + g as an equilibrium of its own, then (∂f/∂args)ᵀu: each a differentiable function of z, g and the arguments."""
    if not transforms_active() and isinstance(equation, Direct):
        _evaluated(equation, z, args, needed)
    u = _Equilibrium.apply(Transposed(equation), task, g.detach(), z, g, *args)
    chosen = [k for k, need in enumerate(needed) if need]

    def image(*some: Tensor) -> Tensor:
        merged = list(args)
        for k, other in zip(chosen, some, strict=True):
            merged[k] = other
        return equation.bind(*merged)(z)

    pull = torch.func.vjp(image, *(args[k] for k in chosen))[1]
    found = iter(pull(u))
    return [next(found) if need else None for need in needed]
