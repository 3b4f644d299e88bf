"""The loop that every solver runs in: tolerance, trace, best-so-far, and telling failures apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.numerics.precision import FullPrecision, Precision, require_precision
from notsodeep.numerics.solution import REASONS, Reason, Solution
from notsodeep.numerics.solvers import Anderson, Solver
from notsodeep.numerics.tolerances import DIVERGED_GROWTH, EQUILIBRIUM_RTOL, STALL_SHRINK, STALL_STEPS

Map = Callable[[Tensor], Tensor]
_CONVERGED, _MAX_STEPS, _STALLED, _DIVERGED, _NAN = (
    REASONS.index(r) for r in (Reason.converged, Reason.max_steps, Reason.stalled, Reason.diverged, Reason.nan)
)


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
        if self.tol is not None:
            return self.tol
        return EQUILIBRIUM_RTOL.get(str(dtype).removeprefix("torch."), 1e-5)


def iterate(f: Map, z0: Tensor, plan: Plan) -> Solution:
    """Iterate z0, (n, d), towards z = f(z), each sample on its own terms.

    A sample that turns NaN or diverges is put back to its best iterate and left there; the others go on. Each sample keeps
    the iterate of its smallest residual.
    """
    tol = plan.tolerance(z0.dtype)
    levels = list(plan.precision.levels(z0.device, z0.dtype))
    z, memory = z0, plan.solver.init(z0)
    best: _Best | None = None
    trace: list[Tensor] = []
    low_steps = 0
    for step in range(1, plan.max_steps + 1):
        with levels[0].context():
            fz = f(z)
        fz = fz.to(z.dtype)
        size, scale = _norms(z, fz)
        residual = size / (scale + torch.finfo(z.dtype).eps) if plan.relative else size
        trace.append(residual.detach())
        if len(levels) > 1:
            low_steps += 1
            if _spent(trace, max(levels[0].floor, tol if plan.relative else 0.0)):
                levels.pop(0)
                memory = plan.solver.init(z)  # differences across precisions would be noise
            z, memory = plan.solver.step(memory, z, fz, size)
            continue
        if best is None:
            best = _Best(z, residual, size, step)
        else:
            best.update(z, residual, size, step)
        best.judge(tol, step)
        if best.finished:
            break
        if best.any_failed:
            failed = best.failed[:, None]
            z, fz = torch.where(failed, best.z, z), torch.where(failed, best.z, fz)
        z, memory = plan.solver.step(memory, z, fz, size)
    if best is None:
        raise BadInput(f"max_steps = {plan.max_steps} ended before the first step in full precision; raise it.")
    return best.solution(trace, tol, plan.relative, low_steps)


def _norms(z: Tensor, fz: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.vector_norm(fz - z, dim=1), torch.linalg.vector_norm(fz, dim=1)


def _spent(trace: list[Tensor], floor: float) -> bool:
    """Whether the present precision has given what it can: below its floor, or no longer shrinking well."""
    worst = float(trace[-1].max())
    return not worst > floor or (len(trace) > 1 and worst > 0.8 * float(trace[-2].max()) and len(trace) > 30)


class _Best:
    """Each sample's best iterate so far, and what became of it."""

    def __init__(self, z: Tensor, residual: Tensor, size: Tensor, step: int) -> None:
        self.z, self.residual = z, residual.detach()
        self.first = self.last = size.detach()
        self.started = step
        self.checkpoint = self.residual
        self.status = torch.full_like(size, _MAX_STEPS, dtype=torch.long)
        self.steps = torch.zeros_like(self.status)
        bad = ~torch.isfinite(self.residual)
        self._fail(bad, _NAN)
        self.finished = False

    def update(self, z: Tensor, residual: Tensor, size: Tensor, step: int) -> None:
        residual, size = residual.detach(), size.detach()
        open_ = self.status != _NAN
        better = residual < self.residual
        if bool((better | ~open_).all()) and bool(open_.all()):
            self.z, self.residual = z, residual  # the common case: no copy
        elif bool(better.any()):
            better = better & open_
            self.z = torch.where(better[:, None], z, self.z)
            self.residual = torch.where(better, residual, self.residual)
        waiting = self.status == _MAX_STEPS
        grown = size > DIVERGED_GROWTH * self.first
        bad = ~torch.isfinite(residual) & waiting
        if bool((bad | (grown & waiting)).any()):
            growing = self.last > 10 * self.first
            self._fail(waiting & (grown | (bad & growing)) & ~(bad & ~growing), _DIVERGED)
            self._fail(bad & ~growing, _NAN)
        self.last = torch.where(torch.isfinite(size), size, self.last)
        if (step - self.started) % STALL_STEPS == 0:
            waiting = self.status == _MAX_STEPS
            self._fail(waiting & (self.residual > STALL_SHRINK * self.checkpoint), _STALLED)
            self.checkpoint = self.residual

    def judge(self, tol: float, step: int) -> None:
        """Mark what is within tolerance; all is finished when nothing waits."""
        within = self.residual <= tol
        self.steps = torch.where((self.status == _MAX_STEPS) & (self.steps == 0) & within, step, self.steps)
        self.status = torch.where(within & (self.status != _NAN), _CONVERGED, self.status)
        self.finished = not bool((self.status == _MAX_STEPS).any())

    def _fail(self, which: Tensor, status: int) -> None:
        self.status = torch.where(which, status, self.status)

    @property
    def failed(self) -> Tensor:
        return self.status > _STALLED

    @property
    def any_failed(self) -> bool:
        return bool(self.failed.any())

    def solution(self, trace: list[Tensor], tol: float, relative: bool, low_steps: int) -> Solution:
        # Out of steps with a residual above where it began: slow divergence.
        self._fail((self.status == _MAX_STEPS) & (self.last > 10 * self.first), _DIVERGED)
        steps = torch.where(self.steps == 0, len(trace), self.steps)
        return Solution(
            value=self.z,
            steps=steps,
            residual=self.residual,
            residuals=torch.stack(trace),
            status=self.status,
            tol=tol,
            relative=relative,
            low_precision_steps=low_steps,
        )
