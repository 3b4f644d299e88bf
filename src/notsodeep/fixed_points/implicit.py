"""The fixed point as a differentiable operation of its arguments: exact gradients of any order, under `torch.func` too.

Ref: docs/theory.md, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.errors import BadInput, warn
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.fixed_points.affine import AffineMap, AffineStep
from notsodeep.fixed_points.capture import require_all_seen, require_not_batched, transforms_active, uses_gradients
from notsodeep.fixed_points.eager import eager
from notsodeep.fixed_points.equations import Direct, Equation, Step, Tangent, Transposed
from notsodeep.fixed_points.loop import Rows, iterate
from notsodeep.fixed_points.plan import Plan
from notsodeep.fixed_points.precision import Map, without_autocast
from notsodeep.fixed_points.solution import REASONS, Reason, Solution, Subject
from notsodeep.fixed_points.splitting import Splitting
from notsodeep.fixed_points.tracked import Graph, Tracked
from notsodeep.tolerances import CHANGED_FACTOR


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
            return followed(lambda z: f(z, *args), z0, plan, adjoint, what=what)
        implicit = adjoint if isinstance(adjoint, ImplicitAdjoint) else None
        differentiated = torch.is_grad_enabled() and any(arg.requires_grad for arg in args)
        task = _Task(plan, implicit, what, _Box(), differentiated=differentiated)
        z = _Equilibrium.apply(Direct(f), task, z0.detach(), *args)
        assert task.box.solution is not None
        if isinstance(adjoint, PhantomAdjoint) and torch.is_grad_enabled():
            z = _phantom(lambda z: f(z, *args), z, adjoint)
        return _with_value(task.box.solution, z)


@eager
def followed(
    f: Map,
    z0: Tensor,
    plan: Plan,
    adjoint: Adjoint,
    seen: Seen | None = None,
    what: Subject = Subject(),  # noqa: B008
    rows: Rows = Rows.taken,
    keep: tuple[int, ...] = (),
) -> Solution:
    """z = f(z) from z0, (n, d), for any f: a first derivative follows the graph of the last evaluation of f, whatever is in it.

    Args:
        f: The map, which may close over anything.
        z0: The start.
        plan: How to solve.
        adjoint: How to differentiate.
        seen: f(z0), and f as a function of the tensors that it was seen to use, for second derivatives.
        what: The subject of errors.
        rows: What is known of the rows of z0.
        keep: Evaluations whose iterates are kept.
    """
    with without_autocast(z0.device.type):
        if isinstance(adjoint, UnrolledAdjoint):
            if transforms_active():
                require_not_batched((z0, f(z0)), "UnrolledAdjoint does not work under vmap")
            return _unrolled(f, z0, plan, what, keep)
        tracked = Tracked(f) if isinstance(adjoint, ImplicitAdjoint) and torch.is_grad_enabled() else None
        with torch.no_grad():
            task = _Task(
                plan, adjoint if isinstance(adjoint, ImplicitAdjoint) else None, what, _Box(), rows=rows, keep=keep
            )
            z = task.solve(f, z0, tracked=tracked, first=None if seen is None else seen.image)
        solution = task.box.solution
        assert solution is not None
        if isinstance(adjoint, PhantomAdjoint) and torch.is_grad_enabled():
            z = _phantom(f, z, adjoint)
        if tracked is not None:
            graph, again = tracked.at(z)
            solution = replace(solution, extra=solution.extra + again)
            z = _attach(task, graph, z, seen, len(solution.status))
        return replace(solution, value=z) if plan.throw else _with_value(solution, z)


def _unrolled(f: Map, z0: Tensor, plan: Plan, what: Subject, keep: tuple[int, ...]) -> Solution:
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


def _phantom(f: Map, z: Tensor, adjoint: PhantomAdjoint) -> Tensor:
    step = z.detach()
    for _ in range(adjoint.steps):
        step = torch.lerp(step, f(step), adjoint.damping)
    return _with_gradient(z, step)


def _with_gradient(z: Tensor, step: Tensor) -> Tensor:
    """z, which was measured, with the gradient of steps from it."""
    return z.detach() + (step - step.detach())


def _with_value(solution: Solution, z: Tensor) -> Solution:
    failed = solution.failed
    if not transforms_active() and bool(failed.any()):
        # What is no state has no gradient, and must not spoil the others'.
        z = torch.where(failed[:, None], z.detach(), z)
    return replace(solution, value=z)


class _Box:
    """Carries a solution out of an autograd function, which returns tensors only, and h = W z + u to its backward pass."""

    solution: Solution | None = None
    h: Tensor | None = None


@dataclass(frozen=True, eq=False)
class _Task:
    plan: Plan
    adjoint: ImplicitAdjoint | None
    what: Subject
    box: _Box
    is_backward: bool = False
    differentiated: bool = False
    after_failures: bool = False
    rows: Rows = Rows.said
    keep: tuple[int, ...] = ()

    def backward(self) -> _Task:
        assert self.adjoint is not None
        what = self.what if self.is_backward else self.what.gradient()
        plan = replace(self.adjoint.plan, precision=self.plan.precision)
        return _Task(plan, self.adjoint, what, _Box(), is_backward=True, after_failures=not self.plan.throw)

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

    def report(self, backward: _Task) -> None:
        """Tell the solution, and the adjoint's callback, how the backward pass went."""
        found = backward.box.solution
        if found is None:
            return
        if self.box.solution is not None:
            self.box.solution.gradient.solution = found
        if self.adjoint is not None and self.adjoint.callback is not None:
            self.adjoint.callback(found)


@dataclass(frozen=True, eq=False)
class Seen:
    """f as a function step(z, *tensors) of the tensors that it uses; and f(z0), where it was watched for them."""

    image: Tensor | None
    step: Step
    tensors: tuple[Tensor, ...]


def _attach(task: _Task, graph: Graph, z: Tensor, seen: Seen | None, rows: int) -> Tensor:
    """z with the implicit gradient that `graph` gives; `rows` says how many samples z was solved as."""
    tensors = () if seen is None else seen.tensors
    if not graph.image.requires_grad or not (tensors or uses_gradients(graph.image)):
        return z.detach()  # the start, perhaps
    value: Tensor = _Attached.apply(task, graph, seen, rows, z, graph.image, *tensors)
    return value


class _Attached(torch.autograd.Function):
    """(task, graph, seen, rows, z, image, *tensors) → z. A cotangent g becomes u = Jᵀu + g, which goes on into the graph of
    the image; where it must itself be differentiable, into `tensors`."""

    @staticmethod
    def forward(ctx: Any, task: _Task, graph: Graph, seen: Seen | None, rows: int, z: Tensor, *rest: Tensor) -> Tensor:
        out = z.detach()
        ctx.task, ctx.graph, ctx.seen, ctx.rows = task, graph, seen, rows
        ctx.save_for_backward(out, *rest[1:])
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        require_not_batched((g,), "is_grads_batched and vectorize=True do not work through a fixed point")
        task, graph = ctx.task.backward(), ctx.graph
        before: tuple[Any, ...] = (None,) * 5
        with without_autocast(g.device.type):
            if torch.is_grad_enabled():
                out, *tensors = ctx.saved_tensors  # only here: for a first derivative they may have changed since
                needed = ctx.needs_input_grad[6:]
                found = _second_order(ctx.seen, ctx.task, task, graph, out, g, tensors, needed)
                ctx.task.report(task)
                return (*before, None, *found)

            found = ctx.task.box.solution
            failed = found.failed if task.after_failures and found is not None else None
            u = _adjoint(task, graph, g.reshape(ctx.rows, -1), failed).reshape(g.shape)
        ctx.task.report(task)
        return (*before, u, *(None for _ in ctx.needs_input_grad[6:]))


def _adjoint(task: _Task, graph: Graph, g: Tensor, failed: Tensor | None) -> Tensor:
    """u = Jᵀu + g at the state of `graph`; 0 for samples that `failed`, whose J is that of no state."""
    if isinstance(task.plan.solver, Splitting) and graph.structure is not None:
        parts = graph.structure.adjoint(graph.z.detach(), g.reshape(graph.z.shape))
        return (parts.product(task.solve(parts, parts.phi(parts.u))) + parts.u).reshape(g.shape)

    def transposed(u: Tensor) -> Tensor:
        found = graph.pull(u)
        image = g if found is None else found + g
        return image if failed is None else torch.where(failed[:, None], 0.0, image)

    return task.solve(transposed, g)


def _second_order(
    seen: Seen | None,
    task: _Task,
    backward: _Task,
    graph: Graph,
    z: Tensor,
    g: Tensor,
    tensors: Sequence[Tensor],
    needed: Sequence[bool],
) -> Sequence[Tensor | None]:
    """The gradients of `tensors` as differentiable functions of z, g and themselves: f is evaluated again."""
    require_all_seen(graph.image, tensors)
    assert seen is not None  # what needs a gradient was seen
    with torch.no_grad():
        again = seen.step(z, *tensors)
        gap = float((again - graph.image).norm() / graph.image.norm().clamp(min=torch.finfo(z.dtype).tiny))
    if not gap <= CHANGED_FACTOR * task.plan.tolerance(z.dtype):
        raise BadInput(
            f"For a second derivative f was evaluated again and is another function now: its image of the solution moved by "
            f"{gap:.1e} (relative). Bind what it closes over when it is made (lambda z, x=x: …), change no tensor in place, "
            "draw no random numbers in it.",
            change=gap,
        )
    return _differentiable_gradients(Direct(seen.step), backward, z, g, tensors, needed)


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
        with without_autocast(z.device.type):
            needed, task = ctx.needs_input_grad[3:], ctx.task.backward()
            step = ctx.equation.f if isinstance(ctx.equation, Direct) else None
            if isinstance(step, AffineStep) and not (torch.is_grad_enabled() or transforms_active()):
                grads = _affine_gradients(step, task, z, g, args, needed, ctx.task.box.h)
            else:
                grads = _differentiable_gradients(ctx.equation, task, z, g, args, needed)
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


def _affine_gradients(
    step: AffineStep,
    task: _Task,
    z: Tensor,
    g: Tensor,
    args: Sequence[Tensor],
    needed: Sequence[bool],
    h: Tensor | None,
) -> Sequence[Tensor | None]:
    """The same numbers as `_differentiable_gradients`, with no evaluation of f and no graph."""
    weight, u = args
    h = functional.linear(z, weight) + u if h is None else h
    h = torch.nan_to_num(h) if task.after_failures else h  # of a sample that failed, whose cotangent is 0
    adjoint = step.adjoint(h, z, weight, g)
    return adjoint.gradients(task.solve(adjoint.map(), adjoint.start), needed)


def _differentiable_gradients(
    equation: Equation, task: _Task, z: Tensor, g: Tensor, args: Sequence[Tensor], needed: Sequence[bool]
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
