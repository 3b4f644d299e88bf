"""What has become of each sample so far: its best iterate, and whether it converged, stalled, diverged or turned NaN."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.fixed_points.solution import REASONS, Reason
from notsodeep.tolerances import DIVERGED_GROWTH, GROWING, STALL_LOOK, STALL_SHRINK, STALL_STEPS

_CONVERGED, _MAX_STEPS, _STALLED, _DIVERGED, _NAN = (
    REASONS.index(r) for r in (Reason.converged, Reason.max_steps, Reason.stalled, Reason.diverged, Reason.nan)
)

_PER_SAMPLE = ("z", "first", "reach", "last", "residual", "least", "status", "moved")


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
        self.reach = 1.0 / (GROWING * size)
        self.residual = self.least = torch.full_like(size, torch.inf)
        self.sizes: list[Tensor] = []  # since the last look
        self.status = torch.full_like(size, _MAX_STEPS, dtype=torch.long)
        self.marks = (
            self.residual,
            self.least,
        )  # what they were when a sample was last seen to move on, and when that was
        self.moved = torch.zeros_like(self.status)
        self.clean = True
        self.mixed = self.done = False
        self.count = 0

    def note(self, z: Tensor, residual: Tensor, size: Tensor) -> Verdict:
        """Take note of one evaluation."""
        worst, most, largest = self._extremes(residual, size)
        if self.clean and (worst <= self.tol or (most < 1.0 and largest <= 1.0)):
            # All are better, or all are within tolerance at once: this iterate is the answer so far.
            self.z, self.residual, self.last, self.mixed = z, residual, size, False
            if worst <= self.tol:
                self.done = True
                return Verdict(True, worst)
            settled = False
        else:
            # Relative to a state that runs away, residuals may still fall: such an iterate is no better.
            within = (size <= GROWING * self.first) | (residual <= self.tol)
            self._update(z, residual, size, (residual < self.residual) & within)
            settled = self._settled()
        self.sizes.append(size)
        self.count += 1
        if self.count % STALL_LOOK == 0:
            self._look_back()
            settled = self._settled()
        return Verdict(settled, worst)

    def forget(self) -> None:
        """Let go of the best residuals, which were not measured rightly."""
        self.residual = torch.where(self.failed, self.residual, torch.inf)
        self.done = False

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
        if self.done:
            return torch.full_like(self.status, _CONVERGED)
        self._look_back()
        self._fail(self.last > GROWING * self.first, _DIVERGED)
        return torch.where(self.residual <= self.tol, _CONVERGED, self.status)

    def select(self, rows: Tensor) -> Progress:
        """The progress of some of the samples."""
        some = Progress(self.z[rows], self.first[rows], self.tol)
        for name in _PER_SAMPLE:
            setattr(some, name, getattr(self, name)[rows])
        some.marks = self.marks[0][rows], self.marks[1][rows]
        some.sizes = [size[rows] for size in self.sizes]
        some.clean, some.mixed, some.count = self.clean, self.mixed, self.count
        return some

    def put(self, rows: Tensor, some: Progress) -> None:
        """Take over what became of some of the samples in a batch of their own; the others are within tolerance."""
        for name in _PER_SAMPLE:
            setattr(self, name, getattr(self, name).index_copy(0, rows, getattr(some, name)))
        residual, least = (own.index_copy(0, rows, new) for own, new in zip(self.marks, some.marks, strict=True))
        self.marks = residual, least
        self.clean, self.mixed, self.count, self.sizes = some.clean, True, some.count, []

    def _extremes(self, residual: Tensor, size: Tensor) -> tuple[float, float, float]:
        """The largest residual now, over the best so far (below 1 where all are better), and of ‖f(z) − z‖ over growth."""
        if len(residual) == 1:  # numbers are cheaper than tensors of one
            worst = residual.item()
            return worst, float(not worst < self.residual.item()), size.item() * self.reach.item()
        worst, most, largest = torch.stack([residual, residual / self.residual, size * self.reach]).amax(1).tolist()
        return worst, most, largest

    def _settled(self) -> bool:
        return not bool((self.open & ~(self.residual <= self.tol)).any())

    def _look_back(self) -> None:
        """Every so many steps, and at the end: when did a sample move on last, relative to ‖f(z)‖ or at all?"""
        self.least = torch.stack([self.least, *self.sizes]).amin(0)
        self.sizes = []
        residual, least = self.marks
        ahead = (self.residual < STALL_SHRINK * residual) | (self.least < STALL_SHRINK * least)
        self.moved = torch.where(ahead, self.count, self.moved)
        stuck = self.count - self.moved >= STALL_STEPS
        anew = ahead | stuck
        self.marks = torch.where(anew, self.residual, residual), torch.where(anew, self.least, least)
        if not self.clean or bool(stuck.any()):
            # One that had stalled, and moves again beside others that go on, is open again.
            self.status = torch.where(~stuck & (self.status == _STALLED), _MAX_STEPS, self.status)
            self._fail(stuck & (self.last > GROWING * self.first), _DIVERGED)
            self._fail(stuck, _STALLED)

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
