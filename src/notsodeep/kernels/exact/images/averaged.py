"""Equations that couple neighbours through patch averages: v = a P f(v) + d, and the linear one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from notsodeep.errors import NotConverged
from notsodeep.tolerances import PATCH_RTOL

Average = Callable[[Tensor], Tensor]
_NEWTON_STEPS, _PICARD_STEPS, _SWEEPS = 30, 20_000, 20_000
_ENOUGH = 1e-3  # of a residual: what a Newton step may leave of its linear equation
_STEEPEST = 0.99  # of a f', for the sweeps to converge next to a place where f' has no bound
_SLOW = 0.5  # a Newton step that leaves more than this of the residual is followed by plain ones


def solve_averaged(
    f: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    drive: Tensor,
    a: float,
    average: Average,
    confined: Callable[[Tensor], Tensor],
    scale: Tensor | None = None,
    newton: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The root of v = a P f(v) + d, with f and f' at it; what is returned was evaluated there.

    Newton's method, whose linear equation δ = r + a P(f' δ) is solved by sweeps that evaluate no f; where it gains little, or
    where there may be several roots (`newton` False), the network's own iteration v ← a P f(v) + d.

    Args:
        f: v ↦ (f(v), f'(v)).
        start: Where to begin.
        drive: d.
        a: σ_a².
        average: P.
        confined: Brings v back to where f is defined.
        scale: What a residual is relative to; v itself by default.
        newton: Whether to try Newton's method.

    Raises:
        NotConverged: No root within the steps allowed; the error carries the residual.
    """
    v, before, smooth, settled = start, torch.inf, newton, False
    for step in range(_PICARD_STEPS):
        value, slope = f(v)
        residual = a * average(value) + drive - v
        whole = torch.maximum(v, v + residual) if scale is None else scale
        size = float(torch.where(residual == 0.0, 0.0, residual.abs() / whole).max())
        if size <= PATCH_RTOL and settled:
            return v, value, slope
        settled = settled or size <= PATCH_RTOL  # one more step: next to ρ = 1 a kinked φ has a slope of √(1 − ρ²)
        if not size < torch.inf:
            break
        newton = newton and step < _NEWTON_STEPS and size < _SLOW * before
        direct = newton or (settled and smooth)
        before = size
        gentle = (a * slope).nan_to_num(0.0, 0.0, 0.0).clamp(-_STEEPEST, _STEEPEST) / a
        v = confined(v + (linear_averaged(residual, gentle, a, average, _ENOUGH) if direct else residual))
    raise NotConverged(
        f"The equation of patches did not settle: its residual is {size:.1e} after {step + 1} steps.", residual=size
    )


def linear_averaged(right: Tensor, slope: Tensor, a: float, average: Average, rtol: float = PATCH_RTOL) -> Tensor:
    """The solution of t = right + a P(slope ∘ t), by sweeps: they converge where gradients of the network do.

    Raises:
        NotConverged: They do not.
    """
    found, weights = right, a * slope
    largest = float(right.abs().max())
    for _ in range(_SWEEPS):
        following = right + average(weights * found)
        change = float((following - found).abs().max())
        found = following
        if change <= rtol * largest:
            return found
        if not change <= 1e12 * largest:
            break
    raise NotConverged(f"Gradients grow from step to step: a sweep changes them by {change:.1e}.", residual=change)
