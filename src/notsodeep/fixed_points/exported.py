"""A fixed point as part of an exported graph, where no Python loop runs and nothing can be raised.

`torch.export` and ONNX know no loop of Python, so what a graph does instead is chosen, and told: one loop node of plain steps
that ends by itself (`Loop`), or a fixed number of steps written out (`Steps`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
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
"""Of the steps that stand for a splitting: steps of a monotone map need not contract, but damped ones do."""


@dataclass(frozen=True)
class Loop:
    """One loop in the graph: it ends when every sample is within tolerance, or after the fixed point's own `max_steps`.

    Its steps are plain ones, z ← f(z), or z ← z + damping·(f(z) − z) where the solver has a damping. A graph cannot raise, so
    samples that have not converged come out as NaN.
    """


@dataclass(frozen=True)
class Steps:
    """A fixed number of such steps, written out one after the other: no loop, no check, nothing is NaN because of it."""

    count: int

    def __post_init__(self) -> None:
        count(self.count, "The count of Steps")


How = Loop | Steps
_Map = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Written:
    """What stands in a graph for one fixed point; its text says so in words and numbers.

    ``solver`` names the one that the module itself uses. ``residual`` is the largest on the example of a rehearsal, ``failed``
    how many of its ``samples`` were not within tolerance; None and 0 where there was none.
    """

    how: How
    max_steps: int
    tol: float
    relative: bool
    damping: float
    solver: str
    residual: float | None = None
    failed: int = 0
    samples: int = 0

    def judged(self, solution: Solution) -> Written:
        """This record with what a rehearsal gave."""
        worst, failed = float(solution.residual.max()), int((~solution.converged).sum())
        return replace(self, residual=worst, failed=failed, samples=len(solution.residual))

    @property
    def steps(self) -> str:
        """Of which kind they are."""
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
    """What `exporting` gives: `how` fixed points are written, and what was `written`."""

    def __init__(self, how: How) -> None:
        self.how = how
        self._written: list[Written] = []
        self._tried: list[Written] = []

    @property
    def written(self) -> tuple[Written, ...]:
        """A record of each fixed point that was exported, in their order, with residuals where there was a rehearsal."""
        if len(self._tried) != len(self._written):
            return tuple(self._written)
        pairs = zip(self._written, self._tried, strict=True)
        return tuple(
            replace(record, residual=tried.residual, failed=tried.failed, samples=tried.samples)
            for record, tried in pairs
        )

    def rehearse(self, module: Callable[..., Any], *example: Any) -> tuple[Any, tuple[Written, ...]]:
        """Call `module` on `example` with every fixed point solved as its graph will do it.

        Args:
            module: What is, or will be, exported.
            *example: Its arguments.

        Returns:
            What the graph will answer, and a record of each fixed point with the residual that it leaves.
        """
        self._tried = []
        token = _REHEARSED.set(self)
        try:
            with torch.no_grad():
                return module(*example), tuple(self._tried)
        finally:
            _REHEARSED.reset(token)


class _Within(Enum):
    """Whether the f of a fixed point is being evaluated around us, for the first time or again."""

    none = 0
    first = 1
    again = 2


_ACTIVE: ContextVar[tuple[Exporting, ...]] = ContextVar("active", default=())  # outermost first
_REHEARSED: ContextVar[Exporting | None] = ContextVar("rehearsed", default=None)
_WITHIN: ContextVar[_Within] = ContextVar("within", default=_Within.none)


@contextlib.contextmanager
def exporting(how: How = Loop()) -> Iterator[Exporting]:  # noqa: B008 (a frozen value)
    """Choose what stands in a graph for every fixed point that is exported inside.

    Args:
        how: `Loop()`, or `Steps(count)`.

    Yields:
        An object whose ``.written`` tells what was chosen, one record for each exported fixed point.

    Raises:
        BadInput: `how` is something else.
    """
    if not isinstance(how, Loop | Steps):
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


def require_exportable(keep: tuple[int, ...]) -> None:
    """`BadInput` where a graph cannot give what is asked of it."""
    if keep:
        raise BadInput(
            f"keep={keep!r} returns states of a Python loop, which an exported graph does not have: leave keep out where "
            "torch.compiler.is_exporting()."
        )


def solve_in_graph(f: Callable[[Any], Any], z0: Any, axes: int, plan: Plan, damping: float | None = None) -> Solution:
    """The fixed point of f from z0, in operations that a graph can hold; no gradient passes through a loop.

    Args:
        f: The map of states; tensors that it closes over become inputs of the loop by themselves.
        z0: Where the steps begin: a tensor, or a nested tuple, list or dict of them.
        axes: How many leading axes of the state are of samples.
        plan: Tolerances, the `tol` given where z0 is not one real tensor, and the most steps; of its solver only the damping
            is used.
        damping: Of the steps, where it is another than the solver's.

    Returns:
        The solution. Its trace is one residual alone, with `Steps` that before the last step, and ``reason`` cannot be asked
        for inside of a graph.

    Raises:
        BadInput: A loop would stand inside of another one.
    """
    if damping is None:
        damping = MONOTONE_DAMPING if isinstance(plan.solver, Splitting) else getattr(plan.solver, "damping", 1.0)
    leaves, spec = pytree.tree_flatten(z0)
    tol = plan.tolerance(leaves[0].dtype)
    count = _chosen(plan.max_steps, tol, plan.relative, damping, type(plan.solver).__name__)
    rehearsed = None if _being_exported() else _REHEARSED.get()
    place = len(rehearsed._tried) - 1 if rehearsed is not None else 0

    def of_leaves(state: Sequence[Tensor]) -> list[Tensor]:
        image = pytree.tree_leaves(f(pytree.tree_unflatten(list(state), spec)))
        return [new if new.dtype == old.dtype else new.to(old.dtype) for new, old in zip(image, state, strict=True)]

    start = [leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in leaves]
    with _inside(_Within.first):
        first = of_leaves(start)
    run = _Run(of_leaves, start, first, axes, plan, tol, damping)
    with _inside(_Within.again):
        solution = run.unrolled(count, judged=rehearsed is not None) if count else run.looped()
    if rehearsed is not None and _WITHIN.get() is not _Within.again:
        rehearsed._tried[place] = rehearsed._tried[place].judged(solution)
    return replace(solution, value=pytree.tree_unflatten(solution.value, spec))


def _chosen(max_steps: int, tol: float, relative: bool, damping: float, solver: str) -> int:
    """How many steps are written out, 0 for a loop; noted down."""
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


# What `torch.compiler.assume_constant_result` does, without importing the compiler, which takes a second: where it traces code
# that comes here, it calls the function instead of looking inside.
_chosen._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _inside(within: _Within) -> contextlib.AbstractContextManager[None]:
    # Where the compiler traces a whole module, as torch.export does with strict=True, it cannot follow this.
    return contextlib.nullcontext() if torch.compiler.is_dynamo_compiling() else _evaluating(within)


@contextlib.contextmanager
def _evaluating(within: _Within) -> Iterator[None]:
    token = _WITHIN.set(max(_WITHIN.get(), within, key=lambda each: each.value))
    try:
        yield
    finally:
        _WITHIN.reset(token)


class _Run:
    """Steps from `start`, whose image is `first`, both lists of the tensors of a state."""

    def __init__(
        self, f: _Map, start: list[Tensor], first: list[Tensor], axes: int, plan: Plan, tol: float, damping: float
    ) -> None:
        self.f, self.start, self.first, self.axes, self.tol, self.damping = f, start, first, axes, tol, damping
        self.max_steps, self.relative = plan.max_steps, plan.relative
        size = torch.maximum(_norms(start, axes), _norms(first, axes)).detach()
        limits = torch.finfo(size.dtype)
        # As outside of a graph: a fixed point at 0 is reached when nothing is left of where it began but rounding.
        self.floor = (limits.eps * size).clamp(min=limits.tiny) + plan.atol / tol

    def unrolled(self, count: int, judged: bool) -> Solution:
        """The state after so many steps; where it is to be `judged`, one more evaluation gives its own residual."""
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
            more: Tensor = (count < self.max_steps) & ((residual > self.tol) & torch.isfinite(residual)).any()
            return more

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
        return size / (_norms(image, self.axes) + self.floor) if self.relative else size

    def _solution(self, value: list[Tensor], steps: Tensor, residual: Tensor) -> Solution:
        steps, residual = steps.reshape(-1), residual.reshape(-1)
        late, nan = (torch.full_like(steps, REASONS.index(reason)) for reason in (Reason.max_steps, Reason.nan))
        status = torch.where(residual <= self.tol, torch.zeros_like(steps), torch.where(residual.isfinite(), late, nan))
        return Solution(value, steps, residual, residual[None], status, self.tol, self.relative)


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
            raise BadInput(
                f"f cannot be written into a loop: {_explanation(error)} Inside of f take sizes from its state, z.shape[0], "
                "not from outside, and change nothing but the state; or write so many steps, exporting(Steps(count)), "
                "which asks less of f."
            ) from error
    while bool(go_on(*state)):
        state = body(*state)
    return state


def _explanation(error: Exception) -> str:
    """The compiler's own, of a long report."""
    lines = [line.strip() for line in str(error).splitlines()]
    found = next((line for line in lines if line.startswith("Explanation: ")), lines[0] if lines else "")
    return found.removeprefix("Explanation: ")[:300]


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What a loop carries on must not be what it was given."""
    return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]


def _norms(state: Sequence[Tensor], axes: int) -> Tensor:
    """The length of each sample of a state, along its leading axes."""
    # Not by vector_norm: in torch 2.11 a graph forgets to drop an axis of length 1.
    lengths = [part[..., None].flatten(axes).abs().square().sum(-1).sqrt() for part in state]
    together: Tensor = lengths[0] if len(lengths) == 1 else torch.stack(lengths).square().sum(0).sqrt()
    return together
