"""How far a state is from its image, sample by sample."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from notsodeep.fixed_points.capture import transforms_active
from notsodeep.fixed_points.plan import Plan
from notsodeep.fixed_points.precision import HALF


class Residual:
    """‖f(z) − z‖ of each sample, and the residual that counts: relative to ‖f(z)‖ where the plan says so.

    A fixed point at 0 has no ‖f(z)‖ to be relative to. It counts as reached when nothing is left of the start but rounding; as
    a start may also be far larger than its solution, that is asked for twice, the second time from where the first had led.
    """

    last: tuple[Tensor, Tensor]  # ‖f(z) − z‖ and ‖f(z)‖

    def __init__(self, plan: Plan, like: Tensor) -> None:
        self.relative, self.tol = plan.relative, plan.tolerance(like.dtype)
        self.added = plan.atol / self.tol
        self.floor: Tensor | None = None
        self.careful = self.renewed = False
        self.scratch = None if torch.is_grad_enabled() or transforms_active() else torch.empty_like(like)

    def measure(self, z: Tensor, fz: Tensor) -> tuple[Tensor, Tensor]:
        """‖f(z) − z‖ and the residual that counts, (n,) each."""
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
        """What `measure` gives by stricter means, where its last answer was not to be trusted; None where it was."""
        size, scale = self.last
        floor = torch.zeros_like(scale) if self.floor is None or self.renewed else self.floor
        if len(size) == 1:  # numbers are cheaper than tensors of one
            trusted = size.item() > 0.0 and floor.item() <= scale.item() < torch.inf
        else:
            trusted = bool(((size > 0.0) & (floor <= scale) & (scale < torch.inf)).all())
        if trusted:
            return None
        lost = ((size == 0.0) & (fz != z).any(1)) | ~(scale < torch.inf)
        if not self.careful and bool(lost.any()):  # squares that are no numbers of the dtype any more
            self.careful, self.floor = True, None
            return self.measure(z, fz)
        if bool((floor > scale).any()):
            self.renewed, self.floor = True, self._rounding(z, scale)
            return self.measure(z, fz)
        return None

    def select(self, rows: Tensor) -> Residual:
        """That of some of the samples."""
        some = copy.copy(self)
        some.floor = None if self.floor is None else self.floor[rows]
        some.scratch = None if self.scratch is None else self.scratch[rows]
        return some

    def _rounding(self, z: Tensor, scale: Tensor) -> Tensor:
        limits = torch.finfo(z.dtype)
        largest = torch.maximum(scale, self._length(z)).detach()
        return (limits.eps * largest).clamp(min=torch.finfo(scale.dtype).tiny) + self.added

    def _length(self, v: Tensor) -> Tensor:
        if self.careful:
            largest = v.detach().abs().amax(1, keepdim=True).to(torch.float32 if v.dtype in HALF else v.dtype)
            largest = torch.where((largest > 0.0) & torch.isfinite(largest), largest, 1.0)
            scaled: Tensor = torch.linalg.vector_norm(v / largest, dim=1) * largest[:, 0]
            return scaled
        length: Tensor = torch.linalg.vector_norm(v, dim=1, dtype=torch.float32 if v.dtype in HALF else None)
        return length
