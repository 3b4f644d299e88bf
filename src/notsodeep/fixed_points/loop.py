"""The loop that every solver runs in: tolerance, trace, best-so-far, and telling failures apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.fixed_points.capture import transforms_active
from notsodeep.fixed_points.precision import FullPrecision, Map, Precision, Stage, require_precision
from notsodeep.fixed_points.solution import REASONS, Reason, Solution
from notsodeep.fixed_points.solvers import Anderson, Solver
from notsodeep.numerics.tolerances import DIVERGED_GROWTH, EQUILIBRIUM_RTOL, GROWING, STALL_SHRINK, STALL_STEPS

_CONVERGED, _MAX_STEPS, _STALLED, _DIVERGED, _NAN = (
    REASONS.index(r) for r in (Reason.converged, Reason.max_steps, Reason.stalled, Reason.diverged, Reason.nan)
)

_LOW_STEPS = 30  # a map that does not contract is left to full precision


@dataclass(frozen=True)
class Plan:
    """How to look for a fixed point, and when to stop.

    A sample has converged when ‖f(z) − z‖ ≤ tol·‖f(z)‖ (or ≤ tol where not `relative`). `tol=None` takes the dtype's own:
    1e-10 in float64, 1e-5 in float32.
    """

    solver: Solver = Anderson()  # noqa: RUF009 (frozen values)
    tol: float | None = None
    relative: bool = True
    max_steps: int = 200
    precision: Precision = FullPrecision()  # noqa: RUF009
    throw: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.solver, Solver):
            raise BadInput(f"solver must be Picard(), Anderson(), Broyden() or another Solver, got {self.solver!r}.")
        if self.tol is not None and not 0.0 < self.tol < float("inf"):
            raise BadInput(f"tol must be a positive number, got {self.tol!r}.")
        if isinstance(self.max_steps, bool) or not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise BadInput(f"max_steps must be a whole number ≥ 1, got {self.max_steps!r}.")
        require_precision(self.precision)

    def tolerance(self, dtype: torch.dtype) -> float:
        return default_tolerance(dtype) if self.tol is None else self.tol


def default_tolerance(dtype: torch.dtype) -> float:
    """The relative residual that is asked for in this dtype where nobody says."""
    return EQUILIBRIUM_RTOL[str(dtype).removeprefix("torch.")]


def iterate(f: Map, z0: Tensor, plan: Plan) -> Solution:
    """Iterate z0, (n, d), towards z = f(z), each sample on its own terms.

    A sample that turns NaN or diverges is put back to its best iterate and left there; the others go on. Each sample keeps
    the iterate of its smallest residual.
    """
    tol, limits = plan.tolerance(z0.dtype), torch.finfo(z0.dtype)
    floor: Tensor | None = None
    # The floors of low precision are relative: with an absolute tolerance nothing says when it has done its part.
    precision = plan.precision if plan.relative else FullPrecision()
    stages = list(precision.stages(f, z0, tol))
    z, memory = z0, plan.solver.init(z0)
    progress: _Progress | None = None
    trace: list[Tensor] = []
    low_steps = 0
    scratch = None if torch.is_grad_enabled() or transforms_active() else torch.empty_like(z0)
    for step in range(1, plan.max_steps + 1):
        if step == plan.max_steps:
            stages = stages[-1:]  # whatever happens, the verdict is in full precision
        fz = stages[0].evaluate(z).to(z.dtype)
        size = torch.linalg.vector_norm(fz - z if scratch is None else torch.sub(fz, z, out=scratch), dim=1)
        residual = size
        if plan.relative:
            scale = torch.linalg.vector_norm(fz, dim=1)
            if floor is None:  # a fixed point at 0 is reached when nothing is left of the first image but rounding
                floor = (limits.eps * scale.detach()).clamp(min=limits.tiny)
            residual = size / (scale + floor)
        trace.append(residual.detach())
        if len(stages) > 1:
            low_steps += 1
            worst = float(residual.max())
            if not worst <= 2.0 * float(trace[0].max()) or low_steps > _LOW_STEPS:
                # NaN, or no contraction: begin again in full precision, which keeps the samples apart. (Products in
                # bfloat16 on some processors let a NaN of one row into the next.)
                stages, floor, z, memory = [Stage(f)], None, z0, plan.solver.init(z0)
                continue
            if worst <= stages[0].floor:
                stages.pop(0)
                z, memory = fz, plan.solver.init(fz)  # differences across precisions would be noise
                continue
        else:
            progress = progress or _Progress(z, size.detach(), tol)
            if progress.finished_by(z, residual.detach(), size.detach()):
                break
            if not progress.clean:
                failed = progress.failed[:, None]
                z, fz = torch.where(failed, progress.z, z), torch.where(failed, progress.z, fz)
        z, memory = plan.solver.step(memory, z, fz, size)
    assert progress is not None
    status, steps = progress.outcome(), _first_within(trace, tol, low_steps)
    return Solution(progress.z, steps, progress.residual, torch.stack(trace), status, tol, plan.relative, low_steps)


def _first_within(trace: list[Tensor], tol: float, ignored: int) -> Tensor:
    """For each sample the number of evaluations after which it was within tolerance; all of them where it never was."""
    within = torch.stack(trace) <= tol
    within[:ignored] = False
    return torch.where(within.any(0), within.int().argmax(0) + 1, len(trace))


class _Progress:
    """Each sample's best iterate so far, and what became of it.

    Where every sample improves, as nearly always, one comparison is all that a step costs, and nothing is copied.
    """

    def __init__(self, z: Tensor, size: Tensor, tol: float) -> None:
        self.z, self.tol = z, tol
        self.first = self.last = size
        self.residual = torch.full_like(size, torch.inf)
        self.checkpoint = self.residual, self.residual
        self.status = torch.full_like(size, _MAX_STEPS, dtype=torch.long)
        self.clean = True
        self.count = 0

    def finished_by(self, z: Tensor, residual: Tensor, size: Tensor) -> bool:
        """Take note of a step; True when no sample is left to go on for."""
        # Relative to a state that runs away, residuals may still fall: such an iterate is no better.
        better = (residual < self.residual) & (size <= GROWING * self.first)
        within = torch.where(better, residual, self.residual) <= self.tol
        all_better, all_within = torch.stack([better.all(), within.all()]).tolist()
        if all_better and self.clean:
            self.z, self.residual, self.last = z, residual, size
        else:
            self._update(z, residual, size, better)
        if all_within and self.clean:
            return True
        if self.count % STALL_STEPS == STALL_STEPS - 1:
            self._look_back(size)
        self.count += 1
        return not self.clean and not bool((self._open & (self.residual > self.tol)).any())

    def _look_back(self, size: Tensor) -> None:
        """Every so many steps: has a sample moved on since the last look, relative to ‖f(z)‖ or at all?"""
        residual, before = self.checkpoint
        stuck = self.residual > STALL_SHRINK * residual
        self._fail((size > DIVERGED_GROWTH * self.first) | (stuck & (size > GROWING * self.first)), _DIVERGED)
        self._fail(stuck & (size > STALL_SHRINK * before), _STALLED)
        self.checkpoint = self.residual, size

    def _update(self, z: Tensor, residual: Tensor, size: Tensor, better: Tensor) -> None:
        better = better & (self.status < _DIVERGED)
        self.z = torch.where(better[:, None], z, self.z)
        self.residual = torch.where(better, residual, self.residual)
        finite = torch.isfinite(residual)
        growing = self.last > GROWING * self.first
        self._fail(~finite & ~growing, _NAN)
        if bool((~torch.isfinite(self.residual)).any()):  # never a state at all: zeros, not a NaN to pass on
            self.z = torch.nan_to_num(self.z, nan=0.0, posinf=0.0, neginf=0.0)
        self._fail((~finite & growing) | (size > DIVERGED_GROWTH * self.first), _DIVERGED)
        self.last = torch.where(finite, size, self.last)

    @property
    def _open(self) -> Tensor:
        return self.status == _MAX_STEPS

    def _fail(self, which: Tensor, status: int) -> None:
        """Mark those of the open samples, unless they are within tolerance already."""
        self.status = torch.where(which & self._open & ~(self.residual <= self.tol), status, self.status)
        self.clean = not bool((self.status > _MAX_STEPS).any())

    @property
    def failed(self) -> Tensor:
        return self.status > _STALLED

    def outcome(self) -> Tensor:
        """Each sample's status at the end; out of steps, with a residual well above the first, is slow divergence."""
        self._fail(self.last > GROWING * self.first, _DIVERGED)
        return torch.where(self.residual <= self.tol, _CONVERGED, self.status)
