"""The loop that every solver runs in: tolerance, trace, the check of the answer as a whole, and telling failures apart."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from notsodeep.errors import BadInput, warn
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.plan import FullPrecision, Plan, Stage
from notsodeep.fixed_points.progress import Progress, Residual, repeats, rows_depend
from notsodeep.fixed_points.solution import REASONS, Reason, Solution
from notsodeep.fixed_points.solvers import Solver, selected
from notsodeep.fixed_points.splitting import Splitting
from notsodeep.tolerances import COUPLED_GROWTH

_TRIALS = 3  # looks at rows; each sees one that depends on a single other with probability 1/4, on many nearly surely
_EARLY = 16  # evaluations after which one more is spent on looking whether rows depend on each other
_LEAST_AIM = 1e-9  # of the tolerance
_LOW_STEPS = 30  # a map that does not contract is left to full precision


class _End(Enum):
    """How a run over independent samples ended."""

    done = "done"
    thinned = "most samples are done, and the rest can go on without them"
    coupled = "the samples depend on each other"


class Rows(Enum):
    """What is known of the rows of a state."""

    independent = "problems of their own, by construction"
    said = "problems of their own, as somebody said"
    taken = "taken for problems of their own"


def iterate(
    f: Map,
    z0: Tensor,
    plan: Plan,
    *,
    tracked: Map | None = None,
    first: Tensor | None = None,
    rows: Rows = Rows.taken,
    keep: tuple[int, ...] = (),
    begun: Tensor | None = None,
) -> Solution:
    """Iterate z0, (n, d), towards z = f(z), each sample on its own terms.

    A sample that turns NaN or diverges is put back to its best iterate and left there; the others go on. Each sample keeps
    the iterate of its smallest residual, and what is called converged was evaluated as one whole: where rows of different
    iterates do not fit together, the samples depend on each other, and the state is solved as one.

    Args:
        f: The map of (n, d) matrices; where it is `selectable`, samples that are done leave the batch.
        z0: The start.
        plan: Solver, tolerances and limits.
        tracked: Evaluates f with a graph, where one is wanted.
        first: f(z0), where it is known.
        rows: Whether rows may turn out to depend on each other, and are to be looked at before a failure makes one do so.
        keep: Evaluations, counted from 1, whose (z, f(z)) become the solution's states; None for those that did not happen.
        begun: ‖f(z) − z‖ of each sample, (n,), at an earlier start: growth is measured from there.

    Returns:
        The solution, its value (n, d).
    """
    if isinstance(plan.solver, Splitting):
        return _by_splitting(f, z0, plan, plan.solver, tracked)
    run = _Run(f, z0, plan, plan.solver, tracked, first, rows if len(z0) > 1 else Rows.independent, keep)
    run.begun = begun
    end: _End | None = run.advance()
    while end is _End.thinned:
        run.finish_rest()
        end = run.confirm() or run.go_on()
    if end is not _End.coupled:
        return run.solution()
    warn(
        f"The {len(z0)} rows of the state depend on each other, so they are solved as one problem from evaluation "
        f"{len(run.trace)} on. Pass samples=0 to do so from the start.",
    )
    return _as_one(run)


def _as_one(run: _Run) -> Solution:
    """The solution of a run whose samples depend on each other, from its last image on, with the whole state as one sample."""
    n, used, tracked = len(run.z0), len(run.trace), run.tracked
    whole = iterate(
        lambda z: run.f(z.reshape(n, -1)).reshape(1, -1),
        run.fz.reshape(1, -1),
        replace(run.plan, max_steps=max(run.plan.max_steps - used, 1), precision=FullPrecision()),
        tracked=None if tracked is None else lambda z: tracked(z.reshape(n, -1)).reshape(1, -1),
        keep=tuple(k - used for k in run.keep),
        begun=torch.linalg.vector_norm(run.progress.first, keepdim=True),
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
    """Iterate the split map, and evaluate f itself at what that gives, until f agrees."""
    structure = getattr(f, "structure", None)
    if structure is None:
        raise BadInput(
            f"{type(splitting).__name__} splits maps of the form φ(W z + u): give f as Activated(phi, W, u), outside of "
            "autocast and of torch.func's transforms."
        )
    split, v, measure = splitting.split(structure, z0), z0, Residual(plan, z0)
    plan = replace(plan, precision=FullPrecision())
    inner = replace(plan, solver=splitting.solver, throw=False)
    traces: list[Tensor] = []
    tol = aim = plan.tolerance(z0.dtype)
    least = Reason.max_steps
    while True:
        used = sum(map(len, traces))
        found = iterate(
            split.step, v, replace(inner, tol=aim, max_steps=max(plan.max_steps - used, 1)), rows=Rows.independent
        )
        v = found.value
        check = _Run(f, split.state(v), plan, splitting.solver, tracked, None, Rows.independent)
        check.measure = measure
        residual = check.evaluate().detach()
        traces += [found.residuals, residual[None]]
        # What the split map has a fixed point for, f has: with a smaller residual of the one, the other's is small enough.
        worst = float(torch.where(found.converged, residual, 0.0).max())
        out_of_steps = sum(map(len, traces)) >= plan.max_steps
        if worst <= tol or out_of_steps:
            break
        aim *= 0.5 * tol / worst
        if aim < _LEAST_AIM * tol:  # f is too steep for its residual to follow that of the split map
            least = Reason.stalled
            break
    status = torch.where(residual <= tol, 0, found.status.clamp(min=REASONS.index(least)))
    trace = torch.cat(traces)
    steps = torch.full_like(status, len(trace))
    return Solution(check.z, steps, residual, trace, status, tol, plan.relative)


class _Run:
    """The loop over samples that are taken for independent."""

    progress: Progress
    size: Tensor
    begun: Tensor | None = None

    def __init__(
        self,
        f: Map,
        z0: Tensor,
        plan: Plan,
        solver: Solver,
        tracked: Map | None,
        first: Tensor | None,
        rows: Rows,
        keep: tuple[int, ...] = (),
    ) -> None:
        self.f, self.z0, self.plan, self.solver, self.tracked, self.first = f, z0, plan, solver, tracked, first
        self.keep = keep
        self.probe, self.early = rows is not Rows.independent, rows is Rows.taken
        self.tol = plan.tolerance(z0.dtype)
        # The floors of low precision are relative: with an absolute tolerance nothing says when it has done its part.
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
                self.stages = self.stages[-1:]  # whatever happens, the verdict is in full precision
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
        """Iterate on with the whole batch, after the rest of it was put back and some samples turned out not to be done."""
        self.memory = self.solver.init(self.z)
        self.z, self.memory = self.solver.step(self.memory, self.z, self.fz, self.size)
        return self.advance()

    def confirm(self) -> _End | None:
        """Evaluate rows that are of different iterates as one whole; None where some of them must go on."""
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
        """Solve for the samples that are not done in a smaller batch, with what is known of them, and put them back."""
        rows = (~(self.trace[-1] <= self.tol)).nonzero().flatten()
        some: Any = self.f
        plan = replace(self.plan, max_steps=self.plan.max_steps - len(self.trace), precision=FullPrecision())
        rest = _Run(some.select(rows), self.z[rows], plan, self.solver, None, None, Rows.independent)
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
        return tuple(self.states.get(k) for k in self.keep)

    def solution(self) -> Solution:
        progress, trace = self.progress, torch.stack(self.trace)
        steps = _first_within(trace, self.tol, self.low_steps)
        return Solution(
            progress.z,
            steps,
            progress.residual,
            trace,
            progress.outcome(),
            self.tol,
            self.plan.relative,
            self.low_steps,
            states=self.kept(),
            extra=self.extra,
        )

    def evaluate(self) -> Tensor:
        """The residual that counts of every sample; f(z) and ‖f(z) − z‖ are kept."""
        z, full = self.z, len(self.stages) == 1
        if full and self.first is not None and z is self.z0:
            self.fz, self.first = self.first, None
        elif full and self.tracked is not None and self.expected <= self.tol:
            self.fz = self.tracked(z)
        else:
            self.fz = self.stages[0].evaluate(z).to(z.dtype)
        self.size, residual = self.measure.measure(z, self.fz)
        self.trace.append(residual.detach() if residual.requires_grad else residual)
        if len(self.trace) in self.keep:
            self.states[len(self.trace)] = z, self.fz.clone()  # f may write into the same tensor every time
        return residual

    def _recheck(self) -> bool:
        """Whether the last evaluation was to be measured by stricter means, and was."""
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
        """What follows from one evaluation in full precision; None to go on."""
        size = self.size.detach()
        if not self.judged:
            self.progress = Progress(self.z, size if self.begun is None else self.begun, self.tol)
        self.judged += 1
        was_clean = self.progress.clean
        verdict = self.progress.note(self.z, residual, size)
        if self.progress.clean and verdict.worst <= self.tol:
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
            if rows_depend(self._probed, self.z, self.fz, trials=_TRIALS if failing else 1):
                return _End.coupled
        if verdict.settled or last:
            return self.confirm()
        can_leave = (
            getattr(self.f, "selectable", False) and self.solver.rowwise and self.progress.clean and not self.keep
        )
        if can_leave and 2 * int((residual <= self.tol).sum()) >= len(residual):
            return _End.thinned
        if 0.0 < self.worst < torch.inf:
            self.rates.append(verdict.worst / self.worst)
        # Of the last few steps the best: a graph that is made in vain costs less than an evaluation for it at the end.
        self.worst, self.expected = verdict.worst, verdict.worst * min(self.rates, default=1.0)
        return None


def _first_within(trace: Tensor, tol: float, ignored: int) -> Tensor:
    """For each sample the number of evaluations after which it was within tolerance; all of them where it never was."""
    if trace.shape[1] == 1:  # the loop ends there
        return torch.full_like(trace[0], len(trace), dtype=torch.long)
    within = trace[ignored:] <= tol
    first = within.int().argmax(0)  # 0 where it never was
    return torch.where(within.any(0), first + (1 + ignored), len(trace))
