"""The fixed point as a differentiable operation of its arguments: exact gradients of any order, under `torch.func` too.

Ref: docs/theory.md, section 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.errors import BadInput, warn
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.fixed_points.affine import AffineMap, AffineStep
from notsodeep.fixed_points.capture import eager, require_not_batched, transforms_active
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.loop import Context, Independence, iterate
from notsodeep.fixed_points.plan import Plan, without_autocast
from notsodeep.fixed_points.solution import REASONS, Reason, Solution, Subject
from notsodeep.fixed_points.splitting import Splitting

Step = Callable[..., Tensor]
_STATED, _SUBJECT = Context(rows=Independence.stated), Subject()


@eager
def equilibrium(
    f: Step, z0: Tensor, args: Sequence[Tensor], plan: Plan, adjoint: Adjoint, *, what: Subject = _SUBJECT
) -> Solution:
    """The solution of z = f(z, *args) from z0, (n, d), with the gradient of `adjoint`.

    f must use no other tensor that needs a gradient; `graph.followed` takes any f.
    """
    with without_autocast(z0.device.type):
        if isinstance(adjoint, UnrolledAdjoint):
            return unrolled(lambda z: f(z, *args), z0, plan, what)
        implicit = adjoint if isinstance(adjoint, ImplicitAdjoint) else None
        differentiated = torch.is_grad_enabled() and any(arg.requires_grad for arg in args)
        attempt = Attempt(plan, implicit, what, differentiated=differentiated)
        z = _Equilibrium.apply(Direct(f), attempt, z0.detach(), *args)
        assert attempt.box.solution is not None
        if isinstance(adjoint, PhantomAdjoint) and torch.is_grad_enabled():
            z = phantom(lambda z: f(z, *args), z, adjoint)
        return with_value(attempt.box.solution, z)


def unrolled(f: Map, z0: Tensor, plan: Plan, what: Subject, keep: tuple[int, ...] = ()) -> Solution:
    """The solution with the gradient of every step."""
    if transforms_active():
        require_not_batched((z0, f(z0)), "UnrolledAdjoint does not work under vmap")
    if isinstance(plan.solver, Splitting):
        raise BadInput(
            f"The steps of {type(plan.solver).__name__} are those of another map than f, and are not differentiated: use "
            "ImplicitAdjoint(), or UnrolledAdjoint() with Picard(), Anderson() or Broyden()."
        )
    solution = iterate(f, z0, plan, Context(keep=keep))
    if plan.throw:
        solution.raise_unless_converged(what)
    # One step at least, even from a start that is exact.
    return replace(solution, value=_with_gradient(solution.value, f(solution.value)))


def phantom(f: Map, z: Tensor, adjoint: PhantomAdjoint) -> Tensor:
    """z with the gradient of damped steps from it."""
    step = z.detach()
    for _ in range(adjoint.steps):
        step = torch.lerp(step, f(step), adjoint.damping)
    return _with_gradient(z, step)


def _with_gradient(z: Tensor, step: Tensor) -> Tensor:
    return z.detach() + (step - step.detach())


def with_value(solution: Solution, z: Tensor) -> Solution:
    """The solution with value z, and no gradient through samples that failed, which would spoil that of the others."""
    failed = solution.failed
    if not transforms_active() and bool(failed.any()):
        z = torch.where(failed[:, None], z.detach(), z)
    return replace(solution, value=z)


class Box:
    """Carries a solution out of an autograd function, which returns tensors only, and h = W z + u to its backward pass."""

    solution: Solution | None = None
    h: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Attempt:
    """One solve inside of an autograd function, forwards or backwards."""

    plan: Plan
    adjoint: ImplicitAdjoint | None
    what: Subject
    box: Box = field(default_factory=Box)
    is_backward: bool = False
    differentiated: bool = False
    after_failures: bool = False

    def backward(self) -> Attempt:
        """The solve of the backward pass."""
        assert self.adjoint is not None
        what = self.what if self.is_backward else self.what.gradient()
        plan = replace(self.adjoint.plan, precision=self.plan.precision)
        return Attempt(plan, self.adjoint, what, is_backward=True, after_failures=not self.plan.throw)

    def solve(self, step: Map, z0: Tensor, context: Context = _STATED) -> Tensor:
        """The value of the fixed point; raises or warns as planned, and leaves the solution in the box."""
        if isinstance(step, AffineMap):
            context = replace(context, rows=Independence.known)
        solution = iterate(step, z0, self.plan, context)
        value: Tensor = solution.value
        nan = solution.status == REASONS.index(Reason.nan)
        overflown = self.is_backward and bool(nan.any())
        if overflown:  # NaN, not 0, so the overflow is seen further back
            value = torch.where(nan[:, None], torch.nan, value)
        if overflown and (self.what.scaled or not bool(torch.isfinite(z0).all())):
            pass  # the cotangent was not finite, or overflows as gradients in float16 may: a GradScaler deals with that
        elif self.plan.throw:
            solution.raise_unless_converged(self.what)
        elif self.is_backward and solution.reason is not Reason.converged:
            worst = float(solution.residual.max())
            warn(f"{self.what.name} is not exact: {solution.reason}, residual {worst:.1e}.")
        # Without its value: the node of the graph holds the box, and holding its own output it would never be freed.
        self.box.solution = replace(solution, value=None)
        return value

    def report(self, backward: Attempt) -> None:
        """Hand the solution of the backward pass to that of the forward pass and to the adjoint's callback."""
        found = backward.box.solution
        if found is None:
            return
        if self.box.solution is not None:
            self.box.solution.gradient.solution = found
        if self.adjoint is not None and self.adjoint.callback is not None:
            self.adjoint.callback(found)


@dataclass(frozen=True, eq=False)
class Direct:
    """z = f(z, *args). An equation binds its arguments to a map; the first `states` of them are laid out like z."""

    f: Step
    states = 0

    def bind(self, *args: Tensor) -> Map:
        """The map to iterate; what can be prepared once is prepared here."""
        bind: Callable[..., Map] | None = getattr(self.f, "bind", None)
        return (lambda z: self.f(z, *args)) if bind is None else bind(*args)

    def batched(self, size: int, in_dims: Sequence[int | None]) -> Direct:
        """`size` copies at once, as one state of size·n rows; the arguments past `states` have batch axes `in_dims`."""
        many = torch.vmap(self.f, in_dims=(0, *in_dims))
        return Direct(lambda z, *args: many(z.unflatten(0, (size, -1)), *args).flatten(0, 1))


@dataclass(frozen=True, eq=False)
class Linearised:
    """u = Jᵀu + g, or u = J u + g where `forwards`, J the Jacobian of `inner` at z; its arguments are (z, g, *inner's)."""

    inner: Equation
    forwards: bool = False

    @property
    def states(self) -> int:
        return 2 + self.inner.states

    def bind(self, *args: Tensor) -> Map:
        z, g, *rest = args
        step = self.inner.bind(*rest)
        if self.forwards:
            return lambda u: torch.func.jvp(step, (z,), (u,))[1] + g
        pull = torch.func.vjp(step, z)[1]
        return lambda u: pull(u)[0] + g

    def batched(self, size: int, in_dims: Sequence[int | None]) -> Linearised:
        return replace(self, inner=self.inner.batched(size, in_dims))


Equation = Direct | Linearised


class _Equilibrium(torch.autograd.Function):
    """(equation, attempt, z0, *args) → z, with z = equation(z, *args)."""

    @staticmethod
    def forward(equation: Equation, attempt: Attempt, z0: Tensor, *args: Tensor) -> Tensor:
        step = equation.bind(*args)
        if isinstance(step, AffineMap):
            step.remember = attempt.differentiated  # otherwise one state less competes for the cache
        z = attempt.solve(step, z0)
        if isinstance(step, AffineMap) and attempt.differentiated and step.latest is not None and step.latest[0] is z:
            attempt.box.h = step.latest[1]
        return z.clone() if z is z0 else z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        equation, attempt, _, *args = inputs
        ctx.equation, ctx.attempt = equation, attempt
        if attempt.adjoint is None:
            ctx.mark_non_differentiable(output)
        else:
            ctx.save_for_backward(output, *args)
            ctx.save_for_forward(output, *args)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        if ctx.attempt.adjoint is None:
            return (None,) * len(ctx.needs_input_grad)
        z, *args = ctx.saved_tensors
        if not transforms_active():
            require_not_batched((g,), "is_grads_batched and vectorize=True do not work through a fixed point")
        with without_autocast(z.device.type):
            attempt, cotangent = ctx.attempt.backward(), Cotangent(z, g, args, ctx.needs_input_grad[3:])
            step = ctx.equation.f if isinstance(ctx.equation, Direct) else None
            grads: Sequence[Tensor | None]
            if isinstance(step, AffineStep) and not (torch.is_grad_enabled() or transforms_active()):
                grads = _affine_gradients(step, attempt, cotangent, ctx.attempt.box.h)
            else:
                grads = differentiable_gradients(ctx.equation, attempt, cotangent)
        ctx.attempt.report(attempt)
        return (None, None, None, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:  # type: ignore[override]
        if ctx.attempt.adjoint is None:
            return None
        z, *args = ctx.saved_tensors
        changes = [torch.zeros_like(a) if t is None else t for a, t in zip(args, tangents[3:], strict=True)]
        with without_autocast(z.device.type):
            r = torch.func.jvp(lambda *others: ctx.equation.bind(*others)(z), tuple(args), tuple(changes))[1]
            tangent = Linearised(ctx.equation, forwards=True)
            dz: Tensor = _Equilibrium.apply(tangent, ctx.attempt.backward(), r.detach(), z, r, *args)
        return dz

    @staticmethod
    def vmap(  # type: ignore[override]
        info: Any, in_dims: Any, equation: Equation, attempt: Attempt, *tensors: Tensor
    ) -> tuple[Tensor, int]:
        size, states = info.batch_size, 1 + equation.states  # z0 first
        dims = in_dims[2:]
        stacked = [_stacked(state, dim, size) for state, dim in zip(tensors[:states], dims[:states], strict=True)]
        many = equation.batched(size, dims[states:])
        z = _Equilibrium.apply(many, attempt, *stacked, *tensors[states:])
        return z.unflatten(0, (size, -1)), 0


def _stacked(state: Tensor, dim: int | None, size: int) -> Tensor:
    """(size·n, d) from a state with, or without, a batch axis."""
    moved = state.expand(size, *state.shape) if dim is None else state.movedim(dim, 0)
    return moved.flatten(0, 1).contiguous()


@dataclass(frozen=True, eq=False)
class Cotangent:
    """The cotangent g of a solution z, the tensors that z depends on, and which of them need a gradient."""

    z: Tensor
    g: Tensor
    tensors: Sequence[Tensor]
    needed: Sequence[bool]


def _without_underflow(g: Tensor) -> tuple[Tensor, Tensor | float]:
    """Cotangents (n, d), each divided by its largest number where the squares of some would underflow, and what undoes it.

    Samples that a network is sure of have such gradients, and no residual of theirs can be told from 0.
    """
    if transforms_active():
        return g, 1.0
    largest = g.detach().abs().amax(1, keepdim=True)
    info = torch.finfo(largest.dtype)
    if not bool(((largest > 0.0) & (largest < math.sqrt(info.tiny) / info.eps)).any()):
        return g, 1.0
    factor = torch.where(largest > 0.0, largest, 1.0)
    return g / factor, factor


def _affine_gradients(step: AffineStep, attempt: Attempt, cotangent: Cotangent, h: Tensor | None) -> Sequence[Tensor | None]:
    """The same numbers as `differentiable_gradients`, without an evaluation of f and without a graph."""
    z, (weight, u) = cotangent.z, cotangent.tensors
    h = functional.linear(z, weight) + u if h is None else h
    h = torch.nan_to_num(h) if attempt.after_failures else h  # samples that failed have cotangent 0
    g, factor = _without_underflow(cotangent.g)
    adjoint = step.adjoint(h, weight, g)
    t = attempt.solve(adjoint, adjoint.phi(g))
    t = t if isinstance(factor, float) else t * factor
    return (t.mT @ z if cotangent.needed[0] else None), t


def differentiable_gradients(equation: Equation, attempt: Attempt, cotangent: Cotangent) -> Sequence[Tensor | None]:
    """u = Jᵀu + g as an equilibrium of its own, then (∂f/∂args)ᵀu: differentiable functions of z, g and the arguments."""
    z, args, needed = cotangent.z, cotangent.tensors, cotangent.needed
    g, factor = _without_underflow(cotangent.g)
    if isinstance(attempt.plan.solver, Splitting):  # seen through torch.func, f has no parts to split by
        attempt = replace(attempt, plan=replace(attempt.plan, solver=attempt.plan.solver.solver))
    u = _Equilibrium.apply(Linearised(equation), attempt, g.detach(), z, g, *args)
    u = u if isinstance(factor, float) else u * factor
    chosen = [k for k, need in enumerate(needed) if need]

    def image(*some: Tensor) -> Tensor:
        merged = list(args)
        for k, other in zip(chosen, some, strict=True):
            merged[k] = other
        return equation.bind(*merged)(z)

    pull = torch.func.vjp(image, *(args[k] for k in chosen))[1]
    found = iter(pull(u))
    return [next(found) if need else None for need in needed]
