"""Fixed points inside of modules, seen and answered from outside: records of their solves, and rules in a solver's place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from notsodeep.fixed_points.exported import steps_damping
from notsodeep.fixed_points.plan import Plan
from notsodeep.fixed_points.solution import REASONS, Reason, Solution
from notsodeep.fixed_points.splitting import Activated

LeafMap = Callable[[Sequence[Tensor]], list[Tensor]]
"""f on the tensors of a state, in order."""
Change = Callable[[Plan], Plan]
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Problem:
    """z = f(z) inside of a module."""

    f: LeafMap
    """the map"""
    start: list[Tensor]
    """the tensors of the state that its solver begins with"""
    axes: int
    """how many leading axes of them count independent samples"""
    damping: float
    """the damping of plain steps that come nearer"""
    structure: Activated | None = None
    """f as φ(W z + u), where it is known in these parts"""

    @staticmethod
    def of(f: Callable[[Any], Any], z0: Any, axes: int, plan: Plan) -> Problem:
        """The problem of a map of nested states."""
        start, spec = pytree.tree_flatten(z0)

        def of_leaves(state: Sequence[Tensor]) -> list[Tensor]:
            image = pytree.tree_leaves(f(pytree.tree_unflatten(list(state), spec)))
            return [new if new.dtype == old.dtype else new.to(old.dtype) for new, old in zip(image, state, strict=True)]

        return Problem(of_leaves, start, axes, steps_damping(plan), f if isinstance(f, Activated) else None)


class StandIn(Protocol):
    """What answers in place of a solver."""

    def answer(self, problem: Problem) -> list[Tensor]:
        """The tensors of a state that is taken for the fixed point."""


@dataclass(frozen=True, eq=False)
class Solved:
    """A fixed point that was solved while somebody watched."""

    problem: Problem
    value: list[Tensor]
    """the tensors of the solution"""
    solution: Solution
    """evaluations, residuals and the status of the samples"""


@dataclass(eq=False)
class Watch:
    """The fixed points that were solved inside of a `watching` context, in their order, without those inside of another's f."""

    change: Change | None = None
    solves: list[Solved] = field(default_factory=list)

    def plan(self, plan: Plan) -> Plan:
        """The plan to solve by."""
        return plan if self.change is None else self.change(plan)


_STAND_IN: ContextVar[StandIn | None] = ContextVar("stand_in", default=None)
_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def answered_by(rule: StandIn) -> Iterator[None]:
    """A context in which `rule` answers for every fixed point.

    Gradients pass through the answer as through any other computation. Fixed points inside of f are solved.
    """
    token = _STAND_IN.set(rule)
    try:
        yield
    finally:
        _STAND_IN.reset(token)


@contextlib.contextmanager
def watching(change: Change | None = None) -> Iterator[Watch]:
    """A context that records the solves of fixed points inside of it.

    Args:
        change: The plan to solve by, as a function of a fixed point's own.

    Returns:
        A context manager; it gives the `Watch` whose ``.solves`` fills.
    """
    watch = Watch(change)
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)


def answered(problem: Callable[[], Problem]) -> list[Tensor] | None:
    """The answer of the rule that stands in for solvers here; None where there is none."""
    rule = None if torch.compiler.is_dynamo_compiling() else _STAND_IN.get()
    return None if rule is None else apart(lambda: rule.answer(problem()))


def watched(
    problem: Callable[[], Problem], plan: Plan, solve: Callable[[Plan], Solution], leaves: Callable[[Any], list[Tensor]]
) -> Solution:
    """solve(plan), recorded where somebody watches, with the tensors that `leaves` makes of its value."""
    watch = None if torch.compiler.is_dynamo_compiling() else _WATCH.get()
    if watch is None:
        return solve(plan)
    found = apart(lambda: solve(watch.plan(plan)))
    watch.solves.append(Solved(problem(), [leaf.detach() for leaf in leaves(found.value)], found))
    return found


def apart(work: Callable[[], Result]) -> Result:
    """work(), in which nobody watches or answers: fixed points inside of f belong to f."""
    if torch.compiler.is_dynamo_compiling():
        return work()
    tokens = _WATCH.set(None), _STAND_IN.set(None)
    try:
        return work()
    finally:
        _WATCH.reset(tokens[0])
        _STAND_IN.reset(tokens[1])


def planned(plan: Plan) -> Plan:
    """The plan that somebody who watches asks for."""
    watch = None if torch.compiler.is_dynamo_compiling() else _WATCH.get()
    return plan if watch is None else watch.plan(plan)


def unchecked(value: Any, samples: int, like: Tensor, plan: Plan) -> Solution:
    """A solution that nobody has compared with its image: with residuals that are not known, and called converged, as a module
    may answer for such samples alone."""
    residual = like.new_full((samples,), torch.nan, dtype=like.dtype.to_real())
    steps = torch.zeros(samples, dtype=torch.int64, device=like.device)
    status = torch.full_like(steps, REASONS.index(Reason.converged))
    tol = plan.tolerance(like.dtype.to_real())
    return Solution(value, steps, residual, residual[None], status, tol=tol, relative=plan.relative)
