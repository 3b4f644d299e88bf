"""The fixed point as a differentiable operation of its arguments: exact gradients of any order, under `torch.func` too.

Ref: docs/theory.md, section 7.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.errors import BadInput, warn
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.fixed_points.affine import AffineMap, AffineStep
from notsodeep.fixed_points.capture import eager, require_not_batched, transforms_active
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.loop import Rows, iterate
from notsodeep.fixed_points.plan import Plan, without_autocast
from notsodeep.fixed_points.solution import REASONS, Reason, Solution, Subject
from notsodeep.fixed_points.splitting import Splitting

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


@eager
def equilibrium(
    f: Step,
    z0: Tensor,
    args: Sequence[Tensor],
    plan: Plan,
    adjoint: Adjoint,
    what: Subject = Subject(),  # noqa: B008
) -> Solution:
    """z = f(z, *args) from z0, (n, d): a `Solution` whose value carries the gradient that `adjoint` says.

    f must use no other tensor that needs a gradient; `followed` takes any f.
    """
    with without_autocast(z0.device.type):
        if isinstance(adjoint, UnrolledAdjoint):
            return unrolled(lambda z: f(z, *args), z0, plan, what)
        implicit = adjoint if isinstance(adjoint, ImplicitAdjoint) else None
        differentiated = torch.is_grad_enabled() and any(arg.requires_grad for arg in args)
        task = Task(plan, implicit, what, Box(), differentiated=differentiated)
        z = _Equilibrium.apply(Direct(f), task, z0.detach(), *args)
        assert task.box.solution is not None
        if isinstance(adjoint, PhantomAdjoint) and torch.is_grad_enabled():
            z = phantom(lambda z: f(z, *args), z, adjoint)
        return with_value(task.box.solution, z)


def unrolled(f: Map, z0: Tensor, plan: Plan, what: Subject, keep: tuple[int, ...] = ()) -> Solution:
    if transforms_active():
        require_not_batched((z0, f(z0)), "UnrolledAdjoint does not work under vmap")
    if isinstance(plan.solver, Splitting):
        raise BadInput(
            f"The steps of {type(plan.solver).__name__} are those of another map than f, and are not differentiated: use "
            "ImplicitAdjoint(), or UnrolledAdjoint() with Picard(), Anderson() or Broyden()."
        )
    solution = iterate(f, z0, plan, keep=keep)
    if plan.throw:
        solution.raise_unless_converged(what)
    # One step at least, even from a start that is exact.
    return replace(solution, value=_with_gradient(solution.value, f(solution.value)))


def phantom(f: Map, z: Tensor, adjoint: PhantomAdjoint) -> Tensor:
    step = z.detach()
    for _ in range(adjoint.steps):
        step = torch.lerp(step, f(step), adjoint.damping)
    return _with_gradient(z, step)


def _with_gradient(z: Tensor, step: Tensor) -> Tensor:
    """z, which was measured, with the gradient of steps from it."""
    return z.detach() + (step - step.detach())


def with_value(solution: Solution, z: Tensor) -> Solution:
    failed = solution.failed
    if not transforms_active() and bool(failed.any()):
        # What is no state has no gradient, and must not spoil the others'.
        z = torch.where(failed[:, None], z.detach(), z)
    return replace(solution, value=z)


class Box:
    """Carries a solution out of an autograd function, which returns tensors only, and h = W z + u to its backward pass."""

    solution: Solution | None = None
    h: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Task:
    plan: Plan
    adjoint: ImplicitAdjoint | None
    what: Subject
    box: Box
    is_backward: bool = False
    differentiated: bool = False
    after_failures: bool = False
    rows: Rows = Rows.said
    keep: tuple[int, ...] = ()

    def backward(self) -> Task:
        assert self.adjoint is not None
        what = self.what if self.is_backward else self.what.gradient()
        plan = replace(self.adjoint.plan, precision=self.plan.precision)
        return Task(plan, self.adjoint, what, Box(), is_backward=True, after_failures=not self.plan.throw)

    def solve(self, step: Map, z0: Tensor, tracked: Map | None = None, first: Tensor | None = None) -> Tensor:
        rows = Rows.independent if isinstance(step, AffineMap) else self.rows
        solution = iterate(step, z0, self.plan, tracked=tracked, first=first, rows=rows, keep=self.keep)
        value: Tensor = solution.value
        nan = solution.status == REASONS.index(Reason.nan)
        overflown = self.is_backward and bool(nan.any())
        if overflown:  # not 0: what comes after is to see it
            value = torch.where(nan[:, None], torch.nan, value)
        if overflown and (self.what.scaled or not bool(torch.isfinite(z0).all())):
            pass  # the cotangent brought it along, or overflows as gradients in float16 may: a GradScaler deals with that
        elif self.plan.throw:
            solution.raise_unless_converged(self.what)
        elif self.is_backward and solution.reason is not Reason.converged:
            message = (
                f"{self.what.name} is not exact: {solution.reason}, residual {float(solution.residual.max()):.1e}."
            )
            warn(message)
        # Without its value: the node of the graph holds the box, and holding its own output it would never be freed.
        self.box.solution = replace(solution, value=None)
        return value

    def report(self, backward: Task) -> None:
        """Tell the solution, and the adjoint's callback, how the backward pass went."""
        found = backward.box.solution
        if found is None:
            return
        if self.box.solution is not None:
            self.box.solution.gradient.solution = found
        if self.adjoint is not None and self.adjoint.callback is not None:
            self.adjoint.callback(found)


class _Equilibrium(torch.autograd.Function):
    """(equation, task, z0, *args) → z, with z = equation(z, *args)."""

    @staticmethod
    def forward(equation: Equation, task: Task, z0: Tensor, *args: Tensor) -> Tensor:
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
        with without_autocast(z.device.type):
            needed, task = ctx.needs_input_grad[3:], ctx.task.backward()
            step = ctx.equation.f if isinstance(ctx.equation, Direct) else None
            if isinstance(step, AffineStep) and not (torch.is_grad_enabled() or transforms_active()):
                grads = _affine_gradients(step, task, z, g, args, needed, ctx.task.box.h)
            else:
                grads = differentiable_gradients(ctx.equation, task, z, g, args, needed)
        ctx.task.report(task)
        return (None, None, None, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:  # type: ignore[override]
        if ctx.task.adjoint is None:
            return None
        z, *args = ctx.saved_tensors
        changes = [torch.zeros_like(a) if t is None else t for a, t in zip(args, tangents[3:], strict=True)]
        with without_autocast(z.device.type):
            r = torch.func.jvp(lambda *others: ctx.equation.bind(*others)(z), tuple(args), tuple(changes))[1]
            dz: Tensor = _Equilibrium.apply(Tangent(ctx.equation), ctx.task.backward(), r.detach(), z, r, *args)
        return dz

    @staticmethod
    def vmap(  # type: ignore[override]
        info: Any, in_dims: Any, equation: Equation, task: Task, z0: Tensor, *args: Tensor
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


def _affine_gradients(
    step: AffineStep,
    task: Task,
    z: Tensor,
    g: Tensor,
    args: Sequence[Tensor],
    needed: Sequence[bool],
    h: Tensor | None,
) -> Sequence[Tensor | None]:
    """The same numbers as `differentiable_gradients`, with no evaluation of f and no graph."""
    weight, u = args
    h = functional.linear(z, weight) + u if h is None else h
    h = torch.nan_to_num(h) if task.after_failures else h  # of a sample that failed, whose cotangent is 0
    adjoint = step.adjoint(h, z, weight, g)
    return adjoint.gradients(task.solve(adjoint.map(), adjoint.start), needed)


def differentiable_gradients(
    equation: Equation, task: Task, z: Tensor, g: Tensor, args: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """u = Jᵀu + g as an equilibrium of its own, then (∂f/∂args)ᵀu: each a differentiable function of z, g and the arguments."""
    if isinstance(task.plan.solver, Splitting):  # looked through with torch.func, f has no parts to split by
        task = replace(task, plan=replace(task.plan, solver=task.plan.solver.solver))
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
