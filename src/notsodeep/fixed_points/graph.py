"""The gradient of a fixed point along the graph of the last evaluation of f."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.fixed_points.capture import (
    eager,
    mark_state,
    require_all_seen,
    require_not_batched,
    uses_gradients,
)
from notsodeep.fixed_points.implicit import (
    Box,
    Direct,
    Step,
    Task,
    differentiable_gradients,
    phantom,
    unrolled,
    with_value,
)
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.loop import Rows
from notsodeep.fixed_points.plan import Plan, without_autocast
from notsodeep.fixed_points.solution import Solution, Subject
from notsodeep.fixed_points.splitting import ActivatedRows, Splitting
from notsodeep.tolerances import CHANGED_FACTOR


@dataclass(frozen=True, eq=False)
class Graph:
    """A state z, a leaf, and its image f(z) with the graph between them; the parts of f, where it shows them."""

    z: Tensor
    image: Tensor
    structure: ActivatedRows | None = None

    @staticmethod
    def of(f: Map, z: Tensor) -> Graph:
        """The graph of f at z."""
        with torch.enable_grad():
            leaf = mark_state(z.detach().requires_grad_())
            return Graph(leaf, f(leaf), getattr(f, "structure", None))

    def pull(self, u: Tensor) -> Tensor | None:
        """Jᵀu, in the shape of u; None where the image does not depend on the state."""
        if not self.image.requires_grad:
            return None
        (found,) = torch.autograd.grad(
            self.image, self.z, u.reshape(self.image.shape), retain_graph=True, allow_unused=True
        )
        return None if found is None else found.reshape(u.shape)


class Tracked:
    """Evaluates f with a graph and holds the last one.

    The loop asks for it where it expects to be done with this evaluation, and at the first one: what f caches then keeps its
    graph.
    """

    def __init__(self, f: Map) -> None:
        self.f = f
        self.graph: Graph | None = None

    def __call__(self, z: Tensor) -> Tensor:
        self.graph = None  # that of an earlier guess is given back first
        self.graph = Graph.of(self.f, z)
        return self.graph.image.detach()

    def at(self, z: Tensor) -> tuple[Graph, bool]:
        """The graph at z, and whether f had to be evaluated for it: not where this was the last evaluation."""
        held = self.graph
        if held is not None and held.z.data_ptr() == z.data_ptr() and held.z.numel() == z.numel():
            return held, False
        held = self.graph = None
        return Graph.of(self.f, z), True


@dataclass(frozen=True, eq=False)
class Seen:
    """f as a function step(z, *tensors) of the tensors that it uses; and f(z0), where it was watched for them."""

    image: Tensor | None
    step: Step
    tensors: tuple[Tensor, ...]


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
            return unrolled(f, z0, plan, what, keep)
        tracked = Tracked(f) if isinstance(adjoint, ImplicitAdjoint) and torch.is_grad_enabled() else None
        with torch.no_grad():
            task = Task(
                plan, adjoint if isinstance(adjoint, ImplicitAdjoint) else None, what, Box(), rows=rows, keep=keep
            )
            z = task.solve(f, z0, tracked=tracked, first=None if seen is None else seen.image)
        solution = task.box.solution
        assert solution is not None
        if isinstance(adjoint, PhantomAdjoint) and torch.is_grad_enabled():
            z = phantom(f, z, adjoint)
        if tracked is not None:
            graph, again = tracked.at(z)
            solution = replace(solution, extra=solution.extra + again)
            z = _attach(task, graph, z, seen, len(solution.status))
        return replace(solution, value=z) if plan.throw else with_value(solution, z)


def _attach(task: Task, graph: Graph, z: Tensor, seen: Seen | None, rows: int) -> Tensor:
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
    def forward(ctx: Any, task: Task, graph: Graph, seen: Seen | None, rows: int, z: Tensor, *rest: Tensor) -> Tensor:
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


def _adjoint(task: Task, graph: Graph, g: Tensor, failed: Tensor | None) -> Tensor:
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
    task: Task,
    backward: Task,
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
    return differentiable_gradients(Direct(seen.step), backward, z, g, tensors, needed)
