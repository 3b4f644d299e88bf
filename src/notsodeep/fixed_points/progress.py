"""What has become of each sample so far: its best iterate, and whether it converged, stalled, diverged or turned NaN."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.fixed_points.solution import REASONS, Reason
from notsodeep.numerics.tolerances import DIVERGED_GROWTH, GROWING, STALL_SHRINK, STALL_STEPS

_CONVERGED, _MAX_STEPS, _STALLED, _DIVERGED, _NAN = (
    REASONS.index(r) for r in (Reason.converged, Reason.max_steps, Reason.stalled, Reason.diverged, Reason.nan)
)


@dataclass(frozen=True)
class Verdict:
    """After one evaluation: whether every sample has been within tolerance at some iterate, or has failed; the largest residual
    now."""

    settled: bool
    worst: float


class Progress:
    """Each sample's best iterate so far, `z`, with its residual and status.

    Where every sample improves, as nearly always, one comparison is all that a step costs, and nothing is copied. `mixed`
    tells that the rows of `z` come from different iterates, so that `z` as a whole was never evaluated.
    """

    def __init__(self, z: Tensor, size: Tensor, tol: float) -> None:
        self.z, self.tol = z, tol
        self.first = self.last = size
        self.residual = torch.full_like(size, torch.inf)
        self.least = self.residual  # of the sizes since the last look back
        self.checkpoint = self.residual, self.residual
        self.status = torch.full_like(size, _MAX_STEPS, dtype=torch.long)
        self.clean = True
        self.mixed = False
        self.count = 0

    def note(self, z: Tensor, residual: Tensor, size: Tensor) -> Verdict:
        """Take note of one evaluation."""
        grown = GROWING * self.first
        worst, most, largest = torch.stack([residual, residual / self.residual, size / grown]).amax(1).tolist()
        if self.clean and (worst <= self.tol or (most < 1.0 and largest <= 1.0)):
            # All are better, or all are within tolerance at once: this iterate is the answer so far.
            self.z, self.residual, self.last, self.mixed = z, residual, size, False
            if worst <= self.tol:
                return Verdict(True, worst)
            settled = False
        else:
            # Relative to a state that runs away, residuals may still fall: such an iterate is no better.
            self._update(z, residual, size, (residual < self.residual) & (size <= grown))
            settled = self._settled()
        self.least = torch.minimum(self.least, size)
        if self.count % STALL_STEPS == STALL_STEPS - 1:
            self._look_back(size)
            settled = self._settled()
        self.count += 1
        return Verdict(settled, worst)

    def confirm(self, residual: Tensor) -> Tensor:
        """Take the residuals of `z` evaluated as a whole; the samples, (n,), that were within tolerance and no longer are."""
        claimed = self.residual <= self.tol
        self.residual = torch.where(self.failed, self.residual, residual)
        self.mixed = False
        return claimed & ~self.failed & ~(residual <= self.tol)

    @property
    def open(self) -> Tensor:
        return self.status == _MAX_STEPS

    @property
    def failed(self) -> Tensor:
        return self.status > _STALLED

    def outcome(self) -> Tensor:
        """Each sample's status at the end; out of steps, with a residual well above the first, is slow divergence."""
        self._fail(self.last > GROWING * self.first, _DIVERGED)
        return torch.where(self.residual <= self.tol, _CONVERGED, self.status)

    def select(self, rows: Tensor) -> Progress:
        """The progress of some of the samples."""
        some = Progress(self.z[rows], self.first[rows], self.tol)
        some.last, some.residual, some.status = self.last[rows], self.residual[rows], self.status[rows]
        some.checkpoint = self.checkpoint[0][rows], self.checkpoint[1][rows]
        some.least = self.least[rows]
        some.clean, some.mixed, some.count = self.clean, self.mixed, self.count
        return some

    def put(self, rows: Tensor, some: Progress) -> None:
        """Take over what became of some of the samples in a batch of their own."""
        self.z, self.residual, self.status, self.first, self.last = (
            own.index_copy(0, rows, theirs)
            for own, theirs in (
                (self.z, some.z),
                (self.residual, some.residual),
                (self.status, some.status),
                (self.first, some.first),
                (self.last, some.last),
            )
        )
        self.clean, self.mixed = some.clean, True

    def _settled(self) -> bool:
        return not bool((self.open & ~(self.residual <= self.tol)).any())

    def _look_back(self, size: Tensor) -> None:
        """Every so many steps: has a sample moved on since the last look, relative to ‖f(z)‖ or at all?"""
        residual, before = self.checkpoint
        stuck = self.residual > STALL_SHRINK * residual
        self._fail((size > DIVERGED_GROWTH * self.first) | (stuck & (size > GROWING * self.first)), _DIVERGED)
        self._fail(stuck & (self.least > STALL_SHRINK * before), _STALLED)
        self.checkpoint, self.least = (self.residual, self.least), torch.full_like(size, torch.inf)

    def _update(self, z: Tensor, residual: Tensor, size: Tensor, better: Tensor) -> None:
        if bool(better.any()):
            better = better & (self.status < _DIVERGED)
            self.mixed = len(residual) > 1
            self.z = torch.where(better[:, None], z, self.z)
            self.residual = torch.where(better, residual, self.residual)
        finite = torch.isfinite(size)
        growing = self.last > GROWING * self.first
        self._fail(~finite & ~growing, _NAN)
        if bool((~torch.isfinite(self.residual)).any()):  # never a state at all: zeros, not a NaN to pass on
            self.z = torch.nan_to_num(self.z, nan=0.0, posinf=0.0, neginf=0.0)
        self._fail((~finite & growing) | (size > DIVERGED_GROWTH * self.first), _DIVERGED)
        self.last = torch.where(finite, size, self.last)

    def _fail(self, which: Tensor, status: int) -> None:
        """Mark those that have not failed worse before, unless they are within tolerance already."""
        before = self.open if status == _STALLED else ~self.failed
        self.status = torch.where(which & before & ~(self.residual <= self.tol), status, self.status)
        self.clean = not bool((self.status > _MAX_STEPS).any())
