"""Whether what a `Solution` says is true: residuals of one evaluation outside of the library, reasons by other means.

- converged: ‖f(z) − z‖ ≤ 3·tol·‖f(z)‖ at the returned z, for each sample that is said to have converged, and for the whole
  state where all are.
- nan: f must have returned something that is not finite, from a finite state.
- diverged: the residual must have grown; f must be no contraction by its norm; and plain steps must not converge, unless the
  solver never takes any (engage=0).
- stalled: it must not have grown, and in its last 80 evaluations neither the best relative residual nor the residual itself
  may have fallen by 1 %. The same iteration, let go on to twice as many steps, must not converge either, but for one that
  wanders or creeps through a bottleneck, its residuals of these 80 not within a factor of 1.2: such a one may come upon a
  solution in the end.
- max_steps: in the last 100 evaluations, a look's 20 more, either must have fallen by 1 %.

A relative residual counts as fallen only where the residual itself has not grown: that of a state that runs away may fall too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.fixed_points.solution import REASONS

from .random_problems import Problem

SLACK = 3.0  # a residual is evaluated in another batch or order, and tolerances end near rounding
_GREW = 10.0
_WINDOW, _LOOK, _FELL = 80, 20, 0.99
_WANDERS = 1.2
# Two computations of a residual: squares may be lost in one, and where f(z) is 0, one has a floor that the other has not.
_SAME, _SMALL, _LARGE = 1e-2, 1e-15, 1e3
_REFERENCE_STEPS = 1000


@dataclass
class Watched:
    """f, and every state that it was asked at."""

    f: Callable[[Tensor], Tensor]
    states: list[Tensor] = field(default_factory=list)
    images: list[Tensor] = field(default_factory=list)

    def __call__(self, z: Tensor) -> Tensor:
        image = self.f(z)
        self.states.append(z.detach().clone())
        self.images.append(image.detach().clone())
        return image

    def trace(self, entries: int) -> tuple[Tensor, Tensor, Tensor]:
        """(evaluations, entries): ‖f(z) − z‖, that relative to ‖f(z)‖, and whether f made NaN of a finite state."""
        z, fz = torch.stack(self.states).double(), torch.stack(self.images).double()
        z, fz = z.reshape(len(z), entries, -1), fz.reshape(len(fz), entries, -1)
        finite_state = torch.isfinite(z).flatten(1).all(1)[:, None]
        spoilt = finite_state & ~torch.isfinite(fz).all(2)
        size = (fz - z).norm(dim=2)
        return torch.nan_to_num(size, nan=torch.inf), torch.nan_to_num(size / fz.norm(dim=2), nan=torch.inf), spoilt


@dataclass(frozen=True)
class Verdict:
    """One solve: how many samples claim to have converged, the worst residual/tol of those, and what is named wrongly."""

    problem: Problem
    told: bool
    found: nsd.fixed_points.Solution
    claims: int
    false: int
    worst: float
    misnamed: tuple[tuple[int, str, str], ...]


def judge(problem: Problem, *, told: bool, patience: bool = True) -> Verdict:
    """`patience`: whether stalls are checked too, for which the iteration goes on; that takes longer than all the rest."""
    f = problem.map(problem.dtype)
    watched = Watched(f)
    found = problem.solve(watched, told=told)
    entries = len(found.converged)
    with torch.no_grad():
        z = found.value.reshape(problem.start.shape)
        start = problem.start.to(problem.dtype)
        fz, first = f(z), (start, f(start))
        ratios = relative(z, fz, first, entries) / problem.tol
        claimed = ratios[found.converged]
        # NaN is no convergence either: written so that it counts.
        false = int((~(claimed <= SLACK)).sum())
        if bool(found.converged.all()) and entries > 1:
            claimed = torch.cat([claimed, relative(z, fz, first, 1) / problem.tol])
            false = max(false, int(not claimed[-1] <= SLACK))
        worst = float(claimed.max()) if len(claimed) else 0.0
        return Verdict(
            problem, told, found, int(found.converged.sum()), false, worst, _misnamed(problem, found, watched, patience)
        )


def relative(z: Tensor, fz: Tensor, first: tuple[Tensor, Tensor], entries: int) -> Tensor:
    """‖f(z) − z‖/‖f(z)‖ for each entry. A fixed point may be 0 (rows that relu puts out): next to it the rounding of the start
    or of its image, `first`, takes ‖f(z)‖'s place, and a length whose square is no number of the dtype any more is 0.
    """
    limits = torch.finfo(z.dtype)
    z, fz, start, image = (t.double().reshape(entries, -1) for t in (z, fz, *first))
    size = (fz - z).norm(dim=1)
    begun = torch.maximum(start.norm(dim=1), image.norm(dim=1))
    scale = fz.norm(dim=1) + (limits.eps * begun).clamp(min=limits.tiny)
    return torch.where(size <= limits.tiny**0.5, 0.0, size / scale)


def _misnamed(
    problem: Problem, found: nsd.fixed_points.Solution, watched: Watched, patience: bool
) -> tuple[tuple[int, str, str], ...]:
    ignored = {"converged"} if patience else {"converged", "stalled"}
    failures = [k for k, status in enumerate(found.status.tolist()) if REASONS[status] not in ignored]
    if not failures:
        return ()
    entries = len(found.converged)
    size, residual, spoilt = watched.trace(entries)
    first, steps = size[0], _steps(residual, found.residuals)
    assert steps, f"seed {problem.seed}: no evaluation seen is one told of"
    size, residual = size[steps], residual[steps]
    residual = torch.where(size <= _GREW * first, residual, torch.inf)
    references = _References(problem, entries, found.evaluations)
    wrong = []
    for k in failures:
        reason = REASONS[int(found.status[k])]
        why = _why(reason, first[k], size[:, k], residual[:, k], bool(spoilt[:, k].any()), references, k)
        if why:
            wrong.append((k, str(reason), why))
    return tuple(wrong)


def _why(reason, first, size, residual, spoilt, references, k) -> str:
    """What is wrong with the name; nothing where it is right."""
    late = size[-max(1, len(size) // 4) :]
    if reason == "nan":
        return "" if spoilt else "f was finite at every finite state"
    if spoilt and reason != "diverged":
        return "f returned NaN from a finite state"
    if reason == "diverged":
        if bool((size <= _GREW * first).all()):
            return "the residual never grew"
        if references.problem.lipschitz < 0.999:
            return f"a contraction by norm, {references.problem.lipschitz:.2f}"
        at_once = getattr(references.problem.solver, "engage", 1.0) == 0.0
        return "plain steps converge" if not at_once and references.plain[k] else ""
    if bool(late.min() > _GREW * first):
        return "the residual grew"
    if reason == "stalled":
        if len(size) < _WINDOW:
            return f"only {len(size)} evaluations were seen"
        if _fell(size, _WINDOW) or _fell(residual, _WINDOW):
            return "a residual still fell"
        wanders = bool(size[-_WINDOW:].max() > _WANDERS * size[-_WINDOW:].min())
        return "going on converges" if not wanders and references.going_on[k] else ""
    if len(size) > 2 * _WINDOW and not (_fell(size, _WINDOW + _LOOK) or _fell(residual, _WINDOW + _LOOK)):
        return "no residual fell any more"
    return ""


def _steps(seen: Tensor, told: Tensor) -> list[int]:
    """Which of the evaluations seen are those told of, and not looks at whether rows depend on each other. Of a state that was
    taken for many samples at first, those since it is one.
    """
    k, steps = len(seen) - 1, []
    for row in torch.nan_to_num(told.double(), nan=torch.inf).flip(0):
        while k >= 0 and not bool(((seen[k] - row).abs() <= _SAME * row + _SMALL).logical_or(~(seen[k] < _LARGE)).all()):
            k -= 1
        if k < 0:
            break
        steps.append(k)
        k -= 1
    return steps[::-1]


def _fell(trace: Tensor, last: int) -> bool:
    """Whether it has come lower in its `last` entries than ever before."""
    return len(trace) > last and bool(trace[-last:].min() <= _FELL * trace[:-last].min())


class _References:
    """Long iterations of the same problem without the library's loop, computed where they are asked for."""

    def __init__(self, problem: Problem, entries: int, evaluations: int) -> None:
        self.problem, self.entries, self.evaluations = problem, entries, evaluations
        self._plain: Tensor | None = None
        self._going_on: Tensor | None = None

    @property
    def plain(self) -> Tensor:
        """Which entries plain steps (with the problem's own damping, where it has one) solve, in float64."""
        if self._plain is None:
            solver = self.problem.solver if isinstance(self.problem.solver, nsd.Picard) else nsd.Picard()
            self._plain = self._reached(solver, torch.float64, _REFERENCE_STEPS)
        return self._plain

    @property
    def going_on(self) -> Tensor:
        if self._going_on is None:
            self._going_on = self._reached(self.problem.solver, self.problem.dtype, 2 * self.evaluations + 40)
        return self._going_on

    def _reached(self, solver: nsd.fixed_points.Solver, dtype: torch.dtype, steps: int) -> Tensor:
        f, shape = self.problem.map(dtype), self.problem.start.shape
        z = self.problem.start.to(dtype).reshape(self.entries, -1)
        reached, memory, first = torch.zeros(self.entries, dtype=torch.bool), solver.init(z), None
        for _ in range(steps):
            fz = f(z.reshape(shape)).reshape(self.entries, -1)
            size = (fz - z).norm(dim=1)
            first = size if first is None else first
            within = (size <= self.problem.tol * fz.norm(dim=1)) & (size <= _GREW * first)
            # A coupled sample is only done together with the others.
            reached = reached | (within if self.problem.samples else within.all())
            if bool(reached.all()) or not bool((size < 1e30).any()):
                break
            z, memory = solver.step(memory, z, fz, size)
        return reached
