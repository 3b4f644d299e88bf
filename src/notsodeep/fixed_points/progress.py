"""The residual and the status of each sample, and whether samples depend on each other."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from notsodeep.fixed_points.capture import transforms_active
from notsodeep.fixed_points.layout import HALF, Map
from notsodeep.fixed_points.plan import Plan
from notsodeep.fixed_points.solution import REASONS
from notsodeep.tolerances import DIVERGED_GROWTH, GROWING, STALL_LOOK, STALL_SHRINK, STALL_STEPS

TRIALS = 3  # each finds a row that depends on one other with probability 1/4, on most others nearly surely
_ROUNDING = 1e3  # changes of a row, in units of its rounding, that other rows' values in one product may cause
_CONVERGED, _MAX_STEPS, _STALLED, _DIVERGED, _NAN = range(len(REASONS))
_PER_SAMPLE = ("z", "first", "reach", "last", "residual", "least", "status", "moved")


class Residual:
    """‖f(z) − z‖ of each sample, and the residual that is compared with the tolerance: relative to ‖f(z)‖ if the plan says so.

    A fixed point at 0 has no ‖f(z)‖ to be relative to. It counts as reached when only rounding is left of the start; as a
    start may also be far larger than its solution, this is required twice, the second time from the first end point.
    """

    last: tuple[Tensor, Tensor]  # ‖f(z) − z‖ and ‖f(z)‖

    def __init__(self, plan: Plan, like: Tensor) -> None:
        self.relative, self.tol = plan.relative, plan.tolerance(like.dtype)
        self.added = plan.atol / self.tol
        self.floor: Tensor | None = None
        self.careful = self.renewed = False
        self.scratch = None if torch.is_grad_enabled() or transforms_active() else torch.empty_like(like)

    def measure(self, z: Tensor, fz: Tensor) -> tuple[Tensor, Tensor]:
        """‖f(z) − z‖ and the residual, (n,) each."""
        size = self._length(fz - z if self.scratch is None else torch.sub(fz, z, out=self.scratch))
        if not self.relative:
            self.last = size, size
            return size, size
        scale = self._length(fz)
        if self.floor is None:
            self.floor = self._rounding(z, scale)
        self.last = size, scale
        return size, size / (scale + self.floor)

    def recheck(self, z: Tensor, fz: Tensor) -> tuple[Tensor, Tensor] | None:
        """`measure` by stricter means where its last answer could be wrong; None where it could not."""
        size, scale = self.last
        floor = torch.zeros_like(scale) if self.floor is None or self.renewed else self.floor
        if len(size) == 1:  # numbers are cheaper than tensors of one
            trusted = size.item() > 0.0 and floor.item() <= scale.item() < torch.inf
        else:
            trusted = bool(((size > 0.0) & (floor <= scale) & (scale < torch.inf)).all())
        if trusted:
            return None
        lost = ((size == 0.0) & (fz != z).any(1)) | ~(scale < torch.inf)
        if not self.careful and bool(lost.any()):  # squares under- or overflowed
            self.careful, self.floor = True, None
            return self.measure(z, fz)
        if bool((floor > scale).any()):
            self.renewed, self.floor = True, self._rounding(z, scale)
            return self.measure(z, fz)
        return None

    def select(self, rows: Tensor) -> Residual:
        """The residuals of some of the samples."""
        some = copy.copy(self)
        some.floor = None if self.floor is None else self.floor[rows]
        some.scratch = None if self.scratch is None else self.scratch[rows]
        return some

    def _rounding(self, z: Tensor, scale: Tensor) -> Tensor:
        """The floor that stands for rounding at the size of z and f(z), and for atol."""
        largest = torch.maximum(scale, self._length(z)).detach()
        return (torch.finfo(z.dtype).eps * largest).clamp(min=torch.finfo(scale.dtype).tiny) + self.added

    def _length(self, v: Tensor) -> Tensor:
        wide = torch.float32 if v.dtype in HALF else None
        if not self.careful:
            length: Tensor = torch.linalg.vector_norm(v, dim=1, dtype=wide)
            return length
        largest = v.detach().abs().amax(1, keepdim=True).to(wide or v.dtype)
        largest = torch.where((largest > 0.0) & torch.isfinite(largest), largest, 1.0)
        scaled: Tensor = torch.linalg.vector_norm(v / largest, dim=1) * largest[:, 0]
        return scaled


@torch.no_grad()
def repeats(f: Map, z: Tensor, fz: Tensor) -> bool:
    """Whether f gives fz at z once more, so has neither noise nor memory."""
    return not bool(_changed(f(z), fz, torch.isfinite(fz).all(1)).any())


@torch.no_grad()
def rows_depend(f: Map, z: Tensor, fz: Tensor, trials: int = TRIALS) -> bool:
    """Whether some rows of fz = f(z), (n, d), change when other rows of z do.

    Each trial moves a random half of the rows and costs one evaluation; rows that are not finite are left out.
    """
    draw = torch.Generator().manual_seed(0)
    usable = torch.isfinite(z).all(1) & torch.isfinite(fz).all(1)
    scale = max((float(v[usable].abs().max()) for v in (fz, z) if bool(usable.any())), default=1.0) or 1.0
    for _ in range(trials):
        moved = torch.randperm(len(z), generator=draw).to(z.device) % 2 == 0
        noise = torch.randn(z.shape, generator=draw, dtype=torch.float32).to(z) * scale
        image = f(torch.where(moved[:, None], torch.nan_to_num(z) + noise, torch.nan_to_num(z)))
        if bool(_changed(image, fz, usable & ~moved).any()):
            return repeats(f, z, fz)  # otherwise it is noise
    return False


def _changed(image: Tensor, before: Tensor, rows: Tensor) -> Tensor:
    """Mask of those `rows` that moved by more than rounding."""
    change, size = (torch.linalg.vector_norm(v, dim=1) for v in (image - before, before))
    moved: Tensor = rows & ~(change <= _ROUNDING * torch.finfo(before.dtype).eps * size)
    return moved


class Progress:
    """Each sample's best iterate so far, `z`, with its residual and status.

    Where every sample improves, as nearly always, a step costs one comparison and no copy. `mixed` means that the rows of `z`
    come from different iterates, so `z` as a whole was never evaluated.
    """

    def __init__(self, z: Tensor, size: Tensor, tol: float) -> None:
        self.z, self.tol = z, tol
        self.first = self.last = size
        self.reach = 1.0 / (GROWING * size)
        self.residual = self.least = torch.full_like(size, torch.inf)
        self.sizes: list[Tensor] = []  # since the last look
        self.status = torch.full_like(size, _MAX_STEPS, dtype=torch.long)
        # Both as they were when a sample was last seen to improve, and the step at which that was.
        self.marks = self.residual, self.least
        self.moved = torch.zeros_like(self.status)
        self.clean = True
        self.mixed = self.done = False
        self.count = 0

    def note(self, z: Tensor, residual: Tensor, size: Tensor) -> tuple[bool, float]:
        """Record one evaluation.

        Returns:
            Whether every sample has been within tolerance at some iterate or has failed, and the largest residual now.
        """
        worst, most, largest = self._extremes(residual, size)
        if self.clean and (worst <= self.tol or (most < 1.0 and largest <= 1.0)):
            # All are better, or all are within tolerance at once: this iterate is the answer so far.
            self.z, self.residual, self.last, self.mixed = z, residual, size, False
            if worst <= self.tol:
                self.done = True
                return True, worst
            settled = False
        else:
            # Relative to a state that diverges, residuals may still fall: such an iterate is not better.
            within = (size <= GROWING * self.first) | (residual <= self.tol)
            self._update(z, residual, size, (residual < self.residual) & within)
            settled = self._settled()
        self.sizes.append(size)
        self.count += 1
        if self.count % STALL_LOOK == 0:
            self._look_back()
            settled = self._settled()
        return settled, worst

    def forget(self) -> None:
        """Drop the best residuals after a wrong measurement."""
        self.residual = torch.where(self.failed, self.residual, torch.inf)
        self.done = False

    def confirm(self, residual: Tensor) -> Tensor:
        """Take the residuals of `z` evaluated as a whole; mask (n,) of samples that were within tolerance and no longer are."""
        claimed = self.residual <= self.tol
        self.residual = torch.where(self.failed, self.residual, residual)
        self.mixed = False
        return claimed & ~self.failed & ~(residual <= self.tol)

    @property
    def failed(self) -> Tensor:
        """(n,) mask of the samples that diverged or turned NaN."""
        return self.status > _STALLED

    def outcome(self) -> Tensor:
        """Each sample's status at the end; out of steps, with a residual well above the first, counts as divergence."""
        if self.done:
            return torch.full_like(self.status, _CONVERGED)
        self._look_back()
        self._fail(self.last > GROWING * self.first, _DIVERGED)
        return torch.where(self.residual <= self.tol, _CONVERGED, self.status)

    def select(self, rows: Tensor) -> Progress:
        """The progress of some of the samples."""
        some = copy.copy(self)
        for name in _PER_SAMPLE:
            setattr(some, name, getattr(self, name)[rows])
        some.marks = self.marks[0][rows], self.marks[1][rows]
        some.sizes = [size[rows] for size in self.sizes]
        return some

    def put(self, rows: Tensor, some: Progress) -> None:
        """Take over the progress of samples that went on in a smaller batch; the others are within tolerance."""
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
        return not bool(((self.status == _MAX_STEPS) & ~(self.residual <= self.tol)).any())

    def _look_back(self) -> None:
        """Find when each sample last improved, relative to ‖f(z)‖ or absolutely, and fail those that have stalled."""
        self.least = torch.stack([self.least, *self.sizes]).amin(0)
        self.sizes = []
        residual, least = self.marks
        ahead = (self.residual < STALL_SHRINK * residual) | (self.least < STALL_SHRINK * least)
        self.moved = torch.where(ahead, self.count, self.moved)
        stuck = self.count - self.moved >= STALL_STEPS
        anew = ahead | stuck
        self.marks = torch.where(anew, self.residual, residual), torch.where(anew, self.least, least)
        if not self.clean or bool(stuck.any()):
            # A stalled sample that improves again while others go on is open again.
            self.status = torch.where(~stuck & (self.status == _STALLED), _MAX_STEPS, self.status)
            self._fail(stuck & (self.last > GROWING * self.first), _DIVERGED)
            self._fail(stuck, _STALLED)

    def _update(self, z: Tensor, residual: Tensor, size: Tensor, better: Tensor) -> None:
        if bool(better.any()):
            better = better & ~self.failed
            self.mixed = len(residual) > 1
            self.z = torch.where(better[:, None], z, self.z)
            self.residual = torch.where(better, residual, self.residual)
        finite = torch.isfinite(size)
        growing = self.last > GROWING * self.first
        self._fail(~finite & ~growing, _NAN)
        if bool((~torch.isfinite(self.residual)).any()):  # no finite iterate yet: zeros, to pass no NaN on
            self.z = torch.nan_to_num(self.z, nan=0.0, posinf=0.0, neginf=0.0)
        self._fail((~finite & growing) | (size > DIVERGED_GROWTH * self.first), _DIVERGED)
        self.last = torch.where(finite, size, self.last)

    def _fail(self, which: Tensor, status: int) -> None:
        """Mark those that have not failed worse before, unless they are within tolerance already."""
        before = self.status == _MAX_STEPS if status == _STALLED else ~self.failed
        self.status = torch.where(which & before & ~(self.residual <= self.tol), status, self.status)
        self.clean = not bool((self.status > _MAX_STEPS).any())
