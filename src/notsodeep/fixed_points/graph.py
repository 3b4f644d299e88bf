"""The gradient of a fixed point along the graph of the last evaluation of f."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.fixed_points.capture import eager, mark_state, require_all_seen, require_not_batched, uses_gradients
from notsodeep.fixed_points.implicit import (
    Attempt,
    Cotangent,
    Direct,
    Step,
    differentiable_gradients,
    phantom,
    unrolled,
    with_value,
)
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.loop import Context
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

    def pull(self, u: Tensor) -> Tensor:
        """Jᵀu, in the shape of u."""
        if not self.image.requires_grad:  # a constant
            return torch.zeros_like(u)
        u_image = u.reshape(self.image.shape)
        (found,) = torch.autograd.grad(self.image, self.z, u_image, retain_graph=True, materialize_grads=True)
        return found.reshape(u.shape)


class _Tracked:
    """Evaluates f with a graph and holds it: where the loop expects to end, and at first, when f fills its caches."""

    def __init__(self, f: Map) -> None:
        self.f = f
        self.graph: Graph | None = None

    def __call__(self, z: Tensor) -> Tensor:
        self.graph = None  # frees that of an earlier guess first
        self.graph = Graph.of(self.f, z)
        return self.graph.image.detach()

    def at(self, z: Tensor) -> tuple[Graph, bool]:
        """The graph at z, and whether it took another evaluation of f: not where z was evaluated last."""
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
    f: Map, z0: Tensor, plan: Plan, adjoint: Adjoint, *, seen: Seen | None, what: Subject, context: Context
) -> Solution:
    """The solution of z = f(z) from z0, (n, d), for any f.

    A first derivative follows the graph of the last evaluation of f, a second one the tensors that f was `seen` to use.
    """
    with without_autocast(z0.device.type):
        if isinstance(adjoint, UnrolledAdjoint):
            return unrolled(f, z0, plan, what, context.keep)
        implicit = adjoint if isinstance(adjoint, ImplicitAdjoint) else None
        tracked = _Tracked(f) if implicit is not None and torch.is_grad_enabled() else None
        with torch.no_grad():
            attempt = Attempt(plan, implicit, what)
            first = None if seen is None else seen.image
            z = attempt.solve(f, z0, replace(context, tracked=tracked, first=first))
        solution = attempt.box.solution
        assert solution is not None
        if isinstance(adjoint, PhantomAdjoint) and torch.is_grad_enabled():
            z = phantom(f, z, adjoint)
        if tracked is not None:
            graph, again = tracked.at(z)
            solution = replace(solution, extra=solution.extra + again)
            tensors = () if seen is None else seen.tensors
            link = _Link(attempt, graph, seen, len(solution.status))
            wanted = graph.image.requires_grad and (tensors or uses_gradients(graph.image))
            z = _Attached.apply(link, z, graph.image, *tensors) if wanted else z.detach()  # which may be the start
        return replace(solution, value=z) if plan.throw else with_value(solution, z)


@dataclass(frozen=True, eq=False)
class _Link:
    """The solve of z and the graph at z, as the backward pass needs them; `rows` is the number of samples z was solved as."""

    attempt: Attempt
    graph: Graph
    seen: Seen | None
    rows: int


class _Attached(torch.autograd.Function):
    """(link, z, image, *tensors) → z.

    A cotangent g becomes u = Jᵀu + g, which goes on into the graph of the image; for a second derivative into `tensors`.
    """

    @staticmethod
    def forward(ctx: Any, link: _Link, z: Tensor, image: Tensor, *tensors: Tensor) -> Tensor:  # noqa: ARG004
        out = z.detach()
        ctx.link = link
        ctx.save_for_backward(out, *tensors)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        require_not_batched((g,), "is_grads_batched and vectorize=True do not work through a fixed point")
        link, needed = ctx.link, ctx.needs_input_grad[3:]
        attempt = link.attempt.backward()
        with without_autocast(g.device.type):
            if torch.is_grad_enabled():
                out, *tensors = ctx.saved_tensors  # only here: for a first derivative they may have changed since
                u, grads = None, _second_order(link, attempt, Cotangent(out, g, tensors, needed))
            else:
                u, grads = _adjoint(link, attempt, g), [None for _ in needed]
        link.attempt.report(attempt)
        return (None, None, u, *grads)


def _adjoint(link: _Link, attempt: Attempt, g: Tensor) -> Tensor:
    """u = Jᵀu + g at the state of the graph; 0 for samples that failed, where J means nothing."""
    graph, found = link.graph, link.attempt.box.solution
    if isinstance(attempt.plan.solver, Splitting) and graph.structure is not None:
        parts = graph.structure.adjoint(graph.z.detach(), g.reshape(graph.z.shape))
        return (parts.product(attempt.solve(parts, parts.phi(parts.u))) + parts.u).reshape(g.shape)
    failed = found.failed if attempt.after_failures and found is not None else None
    rows = g.reshape(link.rows, -1)

    def transposed(u: Tensor) -> Tensor:
        image = graph.pull(u) + rows
        return image if failed is None else torch.where(failed[:, None], 0.0, image)

    return attempt.solve(transposed, rows).reshape(g.shape)


def _second_order(link: _Link, attempt: Attempt, cotangent: Cotangent) -> Sequence[Tensor | None]:
    """The gradients of the tensors as differentiable functions of z, g and themselves: f is evaluated again."""
    z, image = cotangent.z, link.graph.image
    require_all_seen(image, cotangent.tensors)
    assert link.seen is not None  # every tensor that needs a gradient was seen
    with torch.no_grad():
        again = link.seen.step(z, *cotangent.tensors)
        gap = float((again - image).norm() / image.norm().clamp(min=torch.finfo(z.dtype).tiny))
    if not gap <= CHANGED_FACTOR * link.attempt.plan.tolerance(z.dtype):
        raise BadInput(
            f"For a second derivative f was evaluated again and is another function now: its image of the solution moved by "
            f"{gap:.1e} (relative). Bind what it closes over when it is made (lambda z, x=x: …), change no tensor in place, "
            "draw no random numbers in it.",
            change=gap,
        )
    return differentiable_gradients(Direct(link.seen.step), attempt, cotangent)
