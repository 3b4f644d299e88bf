"""The loop that every solver runs in: tolerance, trace, the check of the whole answer, and the kinds of failure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from notsodeep.errors import BadInput, warn
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.plan import FullPrecision, Plan, Stage
from notsodeep.fixed_points.progress import TRIALS, Progress, Residual, repeats, rows_depend
from notsodeep.fixed_points.solution import REASONS, Reason, Solution
from notsodeep.fixed_points.solvers import Solver, selected
from notsodeep.fixed_points.splitting import ActivatedRows, Splitting
from notsodeep.tolerances import COUPLED_GROWTH

_EARLY = 16  # evaluations after which one more tests whether rows depend on each other
_LEAST_AIM = 1e-9  # of the tolerance
_LOW_STEPS = 30  # a map that does not contract is left to full precision


class _End(Enum):
    """How a run over independent samples ended."""

    done = "done"
    thinned = "most samples are done, and the rest can go on without them"
    coupled = "the samples depend on each other"


class Independence(Enum):
    """Why the rows of a state are treated as independent problems."""

    known = "by construction: never tested"
    stated = "the caller says so: tested when the first sample fails"
    assumed = "by default: tested early too"


@dataclass(frozen=True, eq=False)
class Context:
    """Facts about the start that the loop can use, and evaluations to keep."""

    tracked: Map | None = None  # evaluates f with a graph, where one is wanted
    first: Tensor | None = None  # f(z0), where it is known
    rows: Independence = Independence.assumed
    keep: tuple[int, ...] = ()  # evaluations, counted from 1, whose (z, f(z)) become the solution's states
    begun: Tensor | None = None  # ‖f(z) − z‖ of each sample at an earlier start: growth is measured from there


_ALONE = Context(rows=Independence.known)


def iterate(f: Map, z0: Tensor, plan: Plan, context: Context = Context()) -> Solution:  # noqa: B008 (a frozen value)
    """Iterate z0, (n, d), towards z = f(z), each sample on its own terms.

    A sample that turns NaN or diverges is put back to its best iterate and left there; the others go on. Each sample keeps
    the iterate of its smallest residual, and a state is called converged only after it was evaluated as a whole: where rows of
    different iterates do not fit together, the samples depend on each other, and the state is solved as one. Where f is
    `selectable`, samples that are done leave the batch.
    """
    if isinstance(plan.solver, Splitting):
        return _by_splitting(f, z0, plan, plan.solver, context.tracked)
    run = _Iteration(f, z0, plan, plan.solver, context)
    end: _End | None = run.advance()
    while end is _End.thinned:
        run.finish_rest()
        end = run.confirm() or run.go_on()
    if end is not _End.coupled:
        return run.solution()
    return _as_one(run)


def _as_one(run: _Iteration) -> Solution:
    """The solution of a run whose samples depend on each other: the whole state as one sample, from the last image on."""
    n, used, tracked = len(run.z0), len(run.trace), run.context.tracked
    warn(f"The {n} rows of the state depend on each other, so they are one problem from evaluation {used} on. Pass samples=0.")
    whole = iterate(
        lambda z: run.f(z.reshape(n, -1)).reshape(1, -1),
        run.fz.reshape(1, -1),
        replace(run.plan, max_steps=max(run.plan.max_steps - used, 1), precision=FullPrecision()),
        Context(
            tracked=None if tracked is None else lambda z: tracked(z.reshape(n, -1)).reshape(1, -1),
            keep=tuple(k - used for k in run.context.keep),
            begun=torch.linalg.vector_norm(run.progress.first, keepdim=True),
        ),
    )
    trace = torch.stack(run.trace).amax(1, keepdim=True)
    return replace(
        whole,
        value=whole.value.reshape(n, -1),
        steps=whole.steps + used,
        residuals=torch.cat([trace, whole.residuals]),
        low_precision_steps=run.low_steps,
        coupled=True,
        extra=run.extra,
        states=tuple(
            before if after is None else (after[0].reshape(n, -1), after[1].reshape(n, -1))
            for before, after in zip(run.kept(), whole.states, strict=True)
        ),
    )


def _by_splitting(f: Map, z0: Tensor, plan: Plan, splitting: Splitting, tracked: Map | None) -> Solution:
    """Iterate the split map, and evaluate f itself at its solutions, until f agrees."""
    structure = f if isinstance(f, ActivatedRows) else getattr(f, "structure", None)
    if structure is None:
        raise BadInput(
            f"{type(splitting).__name__} splits maps of the form φ(W z + u): give f as Activated(phi, W, u), outside of "
            "autocast and of torch.func's transforms."
        )
    (step, state), v, measure = splitting.split(structure, z0), z0, Residual(plan, z0)
    plan = replace(plan, precision=FullPrecision())
    inner = replace(plan, solver=splitting.solver, throw=False)
    traces: list[Tensor] = []
    tol = aim = plan.tolerance(z0.dtype)
    least = Reason.max_steps
    while True:
        used = sum(map(len, traces))
        found = iterate(step, v, replace(inner, tol=aim, max_steps=max(plan.max_steps - used, 1)), _ALONE)
        v = found.value
        check = _Iteration(f, state(v), plan, splitting.solver, replace(_ALONE, tracked=tracked))
        check.measure = measure
        residual = check.evaluate().detach()
        traces += [found.residuals, residual[None]]
        # Both maps have the same fixed points: with a smaller residual of the split map, that of f becomes small enough.
        worst = float(torch.where(found.converged, residual, 0.0).max())
        if worst <= tol or sum(map(len, traces)) >= plan.max_steps:
            break
        aim *= 0.5 * tol / worst
        if aim < _LEAST_AIM * tol:  # f is too steep for its residual to follow that of the split map
            least = Reason.stalled
            break
    status = torch.where(residual <= tol, 0, found.status.clamp(min=REASONS.index(least)))
    trace = torch.cat(traces)
    steps = torch.full_like(status, len(trace))
    return Solution(check.z, steps, residual, trace, status=status, tol=tol, relative=plan.relative)


class _Iteration:
    """The loop over samples that are treated as independent."""

    progress: Progress
    size: Tensor

    def __init__(self, f: Map, z0: Tensor, plan: Plan, solver: Solver, context: Context) -> None:
        self.f, self.z0, self.plan, self.solver, self.context = f, z0, plan, solver, context
        self.first = context.first
        self.probe = len(z0) > 1 and context.rows is not Independence.known
        self.early = self.probe and context.rows is Independence.assumed
        self.tol = plan.tolerance(z0.dtype)
        # The floors of low precision are relative, so they do not say when to leave it with an absolute tolerance.
        precision = plan.precision if plan.relative and not plan.atol else FullPrecision()
        self.stages = list(precision.stages(f, z0, self.tol))
        self.z = self.fz = z0
        self.memory = solver.init(z0)
        self.measure = Residual(plan, z0)
        self.trace: list[Tensor] = []
        self.states: dict[int, tuple[Tensor, Tensor]] = {}
        self.judged = self.low_steps = self.extra = 0
        self.worst, self.expected = torch.inf, 0.0
        self.rates: deque[float] = deque(maxlen=3)

    def advance(self) -> _End:
        """Iterate until every sample is done, most are, coupling shows, or the steps are used up."""
        while len(self.trace) < self.plan.max_steps:
            last = len(self.trace) + 1 == self.plan.max_steps
            if last:
                self.stages = self.stages[-1:]  # the verdict is in full precision in any case
            residual = self.evaluate()
            if len(self.stages) > 1:
                if self._leaves_stage(residual):
                    continue
            else:
                end = self._judge(self.trace[-1], last)
                if end is not None:
                    return end
                if not self.progress.clean:
                    failed = self.progress.failed[:, None]
                    self.z, self.fz = (torch.where(failed, self.progress.z, v) for v in (self.z, self.fz))
            self.z, self.memory = self.solver.step(self.memory, self.z, self.fz, self.size)
        return _End.done

    def go_on(self) -> _End:
        """Iterate on with the whole batch, after the rest was put back and some samples turned out not to be done."""
        self.memory = self.solver.init(self.z)
        self.z, self.memory = self.solver.step(self.memory, self.z, self.fz, self.size)
        return self.advance()

    def confirm(self) -> _End | None:
        """Evaluate rows of different iterates as one state; None where some of them must go on."""
        if not self.progress.mixed:
            return _End.done
        self.z, self.expected = self.progress.z, 0.0
        self.evaluate()
        self._recheck()
        residual = self.trace[-1]
        wrong = self.progress.confirm(residual)
        if not bool(wrong.any()):
            return _End.done
        apart = bool((residual[wrong] > COUPLED_GROWTH * self.tol).any())
        return _End.coupled if self.probe and apart and repeats(self._probed, self.z, self.fz) else None

    def finish_rest(self) -> None:
        """Solve for the samples that are not done in a smaller batch, with their history, and put them back."""
        rows = (~(self.trace[-1] <= self.tol)).nonzero().flatten()
        some: Any = self.f
        plan = replace(self.plan, max_steps=self.plan.max_steps - len(self.trace), precision=FullPrecision())
        rest = _Iteration(some.select(rows), self.z[rows], plan, self.solver, _ALONE)
        rest.measure = self.measure.select(rows)
        rest.progress, rest.judged = self.progress.select(rows), self.judged
        memory = selected(self.memory, rows)
        rest.z, rest.memory = self.solver.step(memory, self.z[rows], self.fz[rows], self.size[rows])
        if rest.advance() is _End.thinned:
            rest.finish_rest()
        for residual in rest.trace:
            self.trace.append(self.trace[-1].index_copy(0, rows, residual))
        self.progress.put(rows, rest.progress)

    def kept(self) -> tuple[tuple[Tensor, Tensor] | None, ...]:
        return tuple(self.states.get(k) for k in self.context.keep)

    def solution(self) -> Solution:
        progress, trace = self.progress, torch.stack(self.trace)
        return Solution(
            progress.z,
            _first_within(trace, self.tol, self.low_steps),
            progress.residual,
            trace,
            status=progress.outcome(),
            tol=self.tol,
            relative=self.plan.relative,
            low_precision_steps=self.low_steps,
            states=self.kept(),
            extra=self.extra,
        )

    def evaluate(self) -> Tensor:
        """Evaluate f at z, keep f(z) and ‖f(z) − z‖, and return every sample's residual."""
        z, full, tracked = self.z, len(self.stages) == 1, self.context.tracked
        if full and self.first is not None and z is self.z0:
            self.fz, self.first = self.first, None
        elif full and tracked is not None and self.expected <= self.tol:
            self.fz = tracked(z)
        else:
            self.fz = self.stages[0].evaluate(z).to(z.dtype)
        self.size, residual = self.measure.measure(z, self.fz)
        self.trace.append(residual.detach() if residual.requires_grad else residual)
        if len(self.trace) in self.context.keep:
            self.states[len(self.trace)] = z, self.fz.clone()  # f may write into the same tensor every time
        return residual

    def _recheck(self) -> bool:
        """Measure the last evaluation by stricter means where that is needed; whether it was."""
        again = self.measure.recheck(self.z, self.fz)
        if again is not None:
            self.size, self.trace[-1] = again[0], again[1].detach()
        return again is not None

    def _probed(self, z: Tensor) -> Tensor:
        self.extra += 1
        return self.f(z)

    def _leaves_stage(self, residual: Tensor) -> bool:
        """After a step in low precision: whether to go on in a higher one, from here or from the start."""
        self.low_steps += 1
        worst = float(residual.max())
        if not worst <= 2.0 * float(self.trace[0].max()) or self.low_steps > _LOW_STEPS:
            # NaN, or no contraction: begin again in full precision, which keeps the samples apart. (Products in
            # bfloat16 on some processors let a NaN of one row into the next.)
            self.stages, self.measure.floor, self.z = [Stage(self.f)], None, self.z0
        elif worst <= self.stages[0].floor:
            self.stages.pop(0)
            self.z = self.fz
        else:
            return False
        self.memory = self.solver.init(self.z)  # differences across precisions would be noise
        return True

    def _judge(self, residual: Tensor, last: bool) -> _End | None:
        """Decide after one evaluation in full precision; None to go on."""
        size = self.size.detach()
        if not self.judged:
            self.progress = Progress(self.z, size if self.context.begun is None else self.context.begun, self.tol)
        self.judged += 1
        was_clean = self.progress.clean
        settled, worst = self.progress.note(self.z, residual, size)
        if self.progress.clean and worst <= self.tol:
            if not self._recheck():
                return _End.done
            if self.judged == 1:  # the first size was wrong too
                self.judged = 0
            else:
                self.progress.forget()
            return self._judge(self.trace[-1], last)
        failing = was_clean and not self.progress.clean
        if (self.probe and failing) or (self.early and self.judged == _EARLY):
            self.probe = self.probe and not failing
            if rows_depend(self._probed, self.z, self.fz, trials=TRIALS if failing else 1):
                return _End.coupled
        if settled or last:
            return self.confirm()
        if self._can_thin() and 2 * int((residual <= self.tol).sum()) >= len(residual):
            return _End.thinned
        if 0.0 < self.worst < torch.inf:
            self.rates.append(worst / self.worst)
        # The best rate of the last few steps: a graph made in vain costs less than one more evaluation at the end.
        self.worst, self.expected = worst, worst * min(self.rates, default=1.0)
        return None

    def _can_thin(self) -> bool:
        """Whether samples that are done may leave the batch."""
        able = getattr(self.f, "selectable", False) and self.solver.rowwise
        return able and self.progress.clean and not self.context.keep


def _first_within(trace: Tensor, tol: float, ignored: int) -> Tensor:
    """Each sample's number of evaluations until it was within tolerance; all of them where it never was."""
    if trace.shape[1] == 1:  # the loop ends there
        return torch.full_like(trace[0], len(trace), dtype=torch.long)
    within = trace[ignored:] <= tol
    first = within.int().argmax(0)  # 0 where it never was
    return torch.where(within.any(0), first + (1 + ignored), len(trace))
