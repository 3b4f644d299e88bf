"""A solve by our loop, reported as torchdeq reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.fixed_points.loop import Plan, iterate
from notsodeep.fixed_points.precision import Map
from notsodeep.fixed_points.torchdeq_options import Method

_UNKNOWN = 1e8  # what torchdeq calls a residual that was never measured
_NONZERO = 1e-9  # added to a norm that something is divided by


@dataclass(frozen=True, eq=False)
class Found:
    """What a solve returns, the states after the numbers of evaluations asked for, and the statistics."""

    value: Tensor
    kept: list[Tensor]
    info: dict[str, Tensor]


def solve(f: Map, z0: Tensor, method: Method, keep: Sequence[int] = ()) -> Found:
    """z = f(z) from z0, (n, d), as far as `method` goes: never an error, and no gradient.

    Args:
        f: The map.
        z0: The start, a sample in each row.
        method: The solver, its budget and its tolerance.
        keep: Numbers of evaluations after which the best state so far is wanted too.

    Returns:
        What torchdeq returns. Where the solve ends before one of `keep`, its result stands in for that state.
    """
    with torch.no_grad(), torch.autocast(z0.device.type, enabled=False):
        if method.name == "simple_fixed_point_iter":
            return _every_step(f, z0, method, keep)
        evaluations = method.max_iter + method.uncounted
        if method.max_iter < 1:
            return Found(z0, [z0] * len(keep), _statistics(z0.new_empty(0, len(z0)), z0.new_empty(0, len(z0)), method))
        watched = _Watched(f, method, keep)
        tol = max(method.tol, torch.finfo(z0.dtype).tiny)  # 0, in torchdeq, is for "all steps"
        found = iterate(watched, z0, Plan(method.solver, tol, method.relative, evaluations, throw=False))
        value = found.value
        if method.returns_image:
            # Most often the best iterate is the last one, whose image is there.
            value = watched.result(value, watched.image if value is watched.z else f(value))
        kept = watched.kept + [value] * (len(keep) - len(watched.kept))
        return Found(value, kept, _statistics(found.residuals, torch.stack(watched.scales), method))


def _every_step(f: Map, z0: Tensor, method: Method, keep: Sequence[int]) -> Found:
    """All the steps and the last state, without a look at residuals on the way."""
    before = z = z0
    kept = []
    for step in range(1, method.max_iter + 1):
        before, z = z, torch.lerp(z, f(z), method.tau) if method.tau != 1.0 else f(z)
        if step in keep:
            kept.append(z)
    size = torch.linalg.vector_norm(z - before, dim=1)
    share = size / (torch.linalg.vector_norm(z, dim=1) + _NONZERO)
    count = torch.full_like(size, float(method.max_iter))
    traces = {"abs_trace": size[:, None], "rel_trace": share[:, None]}
    return Found(z, kept, {"abs_lowest": size, "rel_lowest": share, **traces, "nstep": count, **_no_radius(z)})


class _Watched:
    """f, with a record of ‖f(z)‖, of the last evaluation and, where states are to be kept, of the best one so far."""

    def __init__(self, f: Map, method: Method, keep: Sequence[int]) -> None:
        self.f, self.method, self.keep = f, method, frozenset(keep)
        self.scales: list[Tensor] = []
        self.kept: list[Tensor] = []
        self.lowest: Tensor | None = None

    def __call__(self, z: Tensor) -> Tensor:
        self.z, self.image = z, self.f(z)
        self.scales.append(torch.linalg.vector_norm(self.image, dim=1))
        if self.keep:
            self._compare()
        return self.image

    def result(self, z: Tensor, image: Tensor) -> Tensor:
        """What torchdeq returns for the iterate z."""
        if not self.method.returns_image:
            return z
        damped = self.method.name == "fixed_point_iter" and self.method.tau != 1.0
        return torch.lerp(z, image, self.method.tau) if damped else image

    def _compare(self) -> None:
        residual = torch.linalg.vector_norm(self.image - self.z, dim=1)
        if self.method.relative:
            residual = residual / (self.scales[-1] + _NONZERO)
        here = self.result(self.z, self.image)
        if self.lowest is None:
            self.lowest, self.best = residual.nan_to_num(nan=torch.inf), here
        better = residual < self.lowest
        self.best = torch.where(better[:, None], here, self.best)
        self.lowest = torch.where(better, residual, self.lowest)
        if len(self.scales) in self.keep:
            self.kept.append(self.best)


def _statistics(residuals: Tensor, scales: Tensor, method: Method) -> dict[str, Tensor]:
    """torchdeq's statistics from the residuals and ‖f(z)‖, (evaluations, n).

    Its traces begin with a column of 1e8, leave out what each solver does not record, and are filled up to the length that
    they would have after all steps.
    """
    size = residuals * scales if method.relative else residuals
    share = residuals if method.relative else residuals / (scales + _NONZERO)
    info = {}
    length = max(method.max_iter + method.uncounted - method.unrecorded, 0)
    for name, trace in (("abs", size), ("rel", share)):
        unknown = trace.new_full((1, trace.shape[1]), _UNKNOWN)
        measured = torch.cat([unknown, trace.nan_to_num(nan=_UNKNOWN).clamp(max=_UNKNOWN)])
        lowest = measured.amin(0)
        shown = trace[method.unrecorded :]
        filled = lowest.expand(length - len(shown), -1) if len(shown) < length else shown[:0]
        info[f"{name}_lowest"], info[f"{name}_trace"] = lowest, torch.cat([unknown, shown, filled]).mT
        if method.relative == (name == "rel"):
            step = (measured.argmin(0) - method.uncounted).clamp(min=0)
            info["nstep"] = step.to(trace.dtype)
    return {**info, **_no_radius(residuals)}


def _no_radius(like: Tensor) -> dict[str, Tensor]:
    return {"sradius": like.new_full((1,), -1.0)}
