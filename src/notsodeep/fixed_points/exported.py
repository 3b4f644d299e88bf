"""A fixed point inside an exported graph, which can neither hold a Python loop nor raise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree

from notsodeep.arguments import count
from notsodeep.errors import BadInput
from notsodeep.fixed_points.plan import Plan
from notsodeep.fixed_points.solution import REASONS, Reason, Solution
from notsodeep.fixed_points.splitting import Splitting

MONOTONE_DAMPING = 0.3
"""The damping of the steps in place of a splitting: plain steps of a monotone map need not contract, damped ones do."""


@dataclass(frozen=True)
class Loop:
    """One loop in the graph: it ends when every sample is within tolerance, or after the fixed point's own `max_steps`.

    Its steps are plain ones, z ← f(z), or z ← z + damping·(f(z) − z) where the solver has a damping. A graph cannot raise, so
    samples that have not converged come out as NaN.
    """


@dataclass(frozen=True)
class Steps:
    """A fixed number of such steps, written out one after the other: no loop, no check, and no NaN for want of convergence.

    Args:
        count: How many steps.

    Raises:
        BadInput: `count` is not a whole number ≥ 1.
    """

    count: int

    def __post_init__(self) -> None:
        count(self.count, "The count of Steps")


How = Loop | Steps
_LeafMap = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Written:
    """The record of one fixed point in a graph; its text says the same in words and numbers."""

    how: How
    """`Loop()` or `Steps(count)`."""
    max_steps: int
    """The most steps of a loop."""
    tol: float
    """The tolerance."""
    relative: bool
    """Whether the tolerance is relative."""
    damping: float
    """The damping of the steps."""
    solver: str
    """The name of the solver that the module itself uses."""
    residual: float | None = None
    """The largest residual on the example of a rehearsal; None without one."""
    failed: int = 0
    """How many samples of the example were not within tolerance."""
    samples: int = 0
    """How many samples the example has."""

    @property
    def steps(self) -> str:
        """The kind of steps, in words."""
        return "plain steps" if self.damping == 1.0 else f"steps damped by {self.damping:g}"

    def __str__(self) -> str:
        kind = "relative" if self.relative else "absolute"
        if isinstance(self.how, Steps):
            text = f"{self.how.count} {self.steps}, no check"
        else:
            text = f"loop of {self.steps}, at most {self.max_steps}, {kind} tol {self.tol:.3g}, NaN where that is not reached"
        text += "" if self.solver == "Picard" else f", in place of {self.solver}"
        if self.residual is None:
            return text
        missed = f" ({self.failed} of {self.samples} samples not within {self.tol:.3g})" if self.failed else ""
        return f"{text}; residual on the example {self.residual:.2e}{missed}"


class Exporting:
    """The result of `exporting`: how fixed points are written, and records of those that were.

    Args:
        how: `Loop()` or `Steps(count)`.
    """

    def __init__(self, how: How) -> None:
        self.how = how
        self._written: list[Written] = []
        self._tried: list[Written] = []

    @property
    def written(self) -> tuple[Written, ...]:
        """One record per exported fixed point, in their order, with residuals where there was a rehearsal."""
        if len(self._tried) != len(self._written):
            return tuple(self._written)
        pairs = zip(self._written, self._tried, strict=True)
        return tuple(replace(w, residual=t.residual, failed=t.failed, samples=t.samples) for w, t in pairs)

    def rehearse(self, module: Callable[..., Any], *example: Any) -> tuple[Any, tuple[Written, ...]]:
        """Call `module` on `example` with every fixed point solved as its graph will do it.

        Args:
            module: The module that is, or will be, exported.
            *example: Its arguments.

        Returns:
            The answer of the graph, and one record per fixed point with the residual that it leaves.
        """
        self._tried = []
        token = _REHEARSED.set(self)
        try:
            with torch.no_grad():
                return module(*example), tuple(self._tried)
        finally:
            _REHEARSED.reset(token)


class _Within(IntEnum):
    """Whether the f of a fixed point is being evaluated around us, for the first time or again."""

    none = 0
    first = 1
    again = 2


_ACTIVE: ContextVar[tuple[Exporting, ...]] = ContextVar("active", default=())  # outermost first
_REHEARSED: ContextVar[Exporting | None] = ContextVar("rehearsed", default=None)
_WITHIN: ContextVar[_Within] = ContextVar("within", default=_Within.none)


@contextlib.contextmanager
def exporting(how: How = Loop()) -> Iterator[Exporting]:  # noqa: B008 (a frozen value)
    """A context in which every exported fixed point is written in the chosen way.

    Args:
        how: `Loop()`, or `Steps(count)`.

    Returns:
        A context manager; it gives an object whose ``.written`` holds one record per exported fixed point.

    Raises:
        BadInput: `how` is something else.
    """
    if not isinstance(how, How):
        raise BadInput(f"A fixed point is exported as Loop() or as Steps(count); got {how!r}.")
    here = Exporting(how)
    token = _ACTIVE.set((*_ACTIVE.get(), here))
    try:
        yield here
    finally:
        _ACTIVE.reset(token)


def in_graph() -> bool:
    """Whether a fixed point is now to be solved as an exported graph does it."""
    return _being_exported() or (not torch.compiler.is_compiling() and _REHEARSED.get() is not None)


def _being_exported() -> bool:
    # `is_exporting` says so under a plain torch.compile too in torch 2.11, where this would cost the gradient.
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def steps_damping(plan: Plan) -> float:
    """The damping of the steps that take the place of a plan's solver."""
    return MONOTONE_DAMPING if isinstance(plan.solver, Splitting) else float(getattr(plan.solver, "damping", 1.0))


def solve_in_graph(f: Callable[[Any], Any], z0: Any, axes: int, plan: Plan, damping: float | None = None) -> Solution:
    """The fixed point of f from z0, in operations that a graph can hold; no gradient passes through a loop.

    The first `axes` axes of the state count samples; `plan` needs a `tol` unless z0 is one real tensor, and its solver gives
    the damping unless it is given. The trace of the solution is one residual, with `Steps` that before the last step.
    """
    damping = steps_damping(plan) if damping is None else damping
    leaves, spec = pytree.tree_flatten(z0)

    def of_leaves(state: Sequence[Tensor]) -> list[Tensor]:
        image = pytree.tree_leaves(f(pytree.tree_unflatten(list(state), spec)))
        return [new if new.dtype == old.dtype else new.to(old.dtype) for new, old in zip(image, state, strict=True)]

    run = _GraphRun(of_leaves, _copies([leaf.detach() for leaf in leaves]), axes, plan, damping)
    count = _chosen(plan.max_steps, run.tol, plan.relative, damping, type(plan.solver).__name__)
    rehearsed = None if _being_exported() else _REHEARSED.get()
    place = len(rehearsed._tried) - 1 if rehearsed is not None else 0
    with _inside(_Within.first):
        run.begin()
    with _inside(_Within.again):
        solution = run.unrolled(count, judged=rehearsed is not None) if count else run.looped()
    if rehearsed is not None and _WITHIN.get() is not _Within.again:
        worst, failed = float(solution.residual.max()), int((~solution.converged).sum())
        record = replace(rehearsed._tried[place], residual=worst, failed=failed, samples=len(solution.residual))
        rehearsed._tried[place] = record
    return replace(solution, value=pytree.tree_unflatten(solution.value, spec))


def _chosen(max_steps: int, tol: float, relative: bool, damping: float, solver: str) -> int:
    """The number of steps to write out, 0 for a loop; the choice is recorded."""
    rehearsed, active, within = _REHEARSED.get(), _ACTIVE.get(), _WITHIN.get()
    how: How = active[-1].how if active else Loop()
    if rehearsed is not None:
        how = rehearsed.how
    if isinstance(how, Loop) and within is not _Within.none:
        raise BadInput(
            "The f of a fixed point solves for another one, and a loop inside of a loop cannot be exported: write a fixed "
            "number of steps for both, exporting(Steps(count))."
        )
    if within is not _Within.again:
        record = Written(how, max_steps, tol, relative, damping, solver)
        for notes in [each._written for each in active] if rehearsed is None else [rehearsed._tried]:
            notes.append(record)
    return how.count if isinstance(how, Steps) else 0


# The mark of `torch.compiler.assume_constant_result`, set without importing the compiler, which takes a second: a compiler that
# traces a call of this function calls it instead of looking inside.
_chosen._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _inside(within: _Within) -> contextlib.AbstractContextManager[None]:
    # Where the compiler traces a whole module, as torch.export does with strict=True, it cannot follow this.
    return contextlib.nullcontext() if torch.compiler.is_dynamo_compiling() else _evaluating(within)


@contextlib.contextmanager
def _evaluating(within: _Within) -> Iterator[None]:
    token = _WITHIN.set(max(_WITHIN.get(), within))
    try:
        yield
    finally:
        _WITHIN.reset(token)


class _GraphRun:
    """Steps from `start`, a list of the tensors of a state, on which `f` acts."""

    first: list[Tensor]
    floor: Tensor

    def __init__(self, f: _LeafMap, start: list[Tensor], axes: int, plan: Plan, damping: float) -> None:
        self.f, self.start, self.axes, self.plan, self.damping = f, start, axes, plan, damping
        self.tol = plan.tolerance(start[0].dtype)

    def begin(self) -> None:
        """Evaluate f at the start."""
        self.first = self.f(self.start)
        size = torch.maximum(_norms(self.start, self.axes), _norms(self.first, self.axes)).detach()
        limits = torch.finfo(size.dtype)
        # As outside of a graph: a fixed point at 0 is reached when only rounding is left of the start.
        self.floor = (limits.eps * size).clamp(min=limits.tiny) + self.plan.atol / self.tol

    def unrolled(self, count: int, judged: bool) -> Solution:
        """The state after `count` steps; where it is to be `judged`, one more evaluation gives its own residual."""
        s, image = self.start, self.first
        for step in range(count):
            if step:
                image = self.f(s)
            before, s = s, self._next(s, image)
        residual = self._residual(s, self.f(s)) if judged else self._residual(before, image)
        return self._solution(s, torch.full_like(residual, count, dtype=torch.int64), residual)

    def looped(self) -> Solution:
        """The state where the loop ended, NaN where it has not converged."""
        k = len(self.start)

        def go_on(count: Tensor, *both: Tensor) -> Tensor:
            residual = self._residual(both[:k], both[k:])
            # A plain step from a state that is not finite leads nowhere else.
            return (count < self.plan.max_steps) & ((residual > self.tol) & torch.isfinite(residual)).any()

        def body(count: Tensor, *both: Tensor) -> tuple[Tensor, ...]:
            after = self._next(both[:k], both[k:])
            return count + 1, *after, *_copies(self.f(after))

        begin = torch.ones((), dtype=torch.int64, device=self.start[0].device)
        count, *both = (t.detach() for t in _repeat(go_on, body, (begin, *self.start, *_copies(self.first))))
        residual = self._residual(both[:k], both[k:])
        done = residual <= self.tol
        value = [torch.where(done[(..., *(None,) * (s.ndim - self.axes))], s, torch.nan) for s in both[:k]]
        return self._solution(value, count.expand(residual.shape), residual)

    def _next(self, s: Sequence[Tensor], image: Sequence[Tensor]) -> list[Tensor]:
        if self.damping == 1.0:
            return _copies(image)
        return [torch.lerp(old, new, self.damping) for old, new in zip(s, image, strict=True)]

    def _residual(self, s: Sequence[Tensor], image: Sequence[Tensor]) -> Tensor:
        """‖f(s) − s‖ of each sample, over ‖f(s)‖ where the tolerance is relative."""
        size = _norms([new - old for old, new in zip(s, image, strict=True)], self.axes)
        return size / (_norms(image, self.axes) + self.floor) if self.plan.relative else size

    def _solution(self, value: list[Tensor], steps: Tensor, residual: Tensor) -> Solution:
        steps, residual = steps.reshape(-1), residual.reshape(-1)
        late, nan = (torch.full_like(steps, REASONS.index(reason)) for reason in (Reason.max_steps, Reason.nan))
        status = torch.where(residual <= self.tol, torch.zeros_like(steps), torch.where(residual.isfinite(), late, nan))
        return Solution(value, steps, residual, residual[None], status, tol=self.tol, relative=self.plan.relative)


def _repeat(go_on: Callable[..., Tensor], body: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...]) -> Any:
    """state ← body(state) while go_on(state): one node of a graph, or a loop of Python in a rehearsal."""
    if torch.compiler.is_dynamo_compiling():
        return while_loop(go_on, body, state)
    if _being_exported():
        try:
            return while_loop(go_on, body, state)
        except Exception as error:
            if not type(error).__module__.startswith("torch._dynamo"):
                raise
            lines = [line.strip() for line in str(error).splitlines()] or [""]  # a long report
            cause = next((line for line in lines if line.startswith("Explanation: ")), lines[0])
            raise BadInput(
                f"f cannot be written into a loop: {cause.removeprefix('Explanation: ')[:300]} Inside of f take sizes from its "
                "state, z.shape[0], not from outside, and change nothing but the state; or write so many steps, "
                "exporting(Steps(count)), which asks less of f."
            ) from error
    while bool(go_on(*state)):
        state = body(*state)
    return state


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies, as a loop may not return its own inputs."""
    return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]


def _norms(state: Sequence[Tensor], axes: int) -> Tensor:
    """The length of each sample of a state, along its leading axes."""
    # Not by vector_norm: in torch 2.11 a graph forgets to drop an axis of length 1.
    lengths = [part[..., None].flatten(axes).abs().square().sum(-1).sqrt() for part in state]
    return lengths[0] if len(lengths) == 1 else torch.stack(lengths).square().sum(0).sqrt()
