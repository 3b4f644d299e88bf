"""A safeguarded Newton iteration for many scalar equations at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from notsodeep.errors import NotConverged

MAX_STEPS = 200
ROUND_OFF = 4.0 * torch.finfo(torch.float64).eps


def bracketed_newton(
    value_and_slope: Callable[[Tensor], tuple[Tensor, Tensor]],
    lower: Tensor,
    upper: Tensor,
    start: Tensor,
    rtol: float,
    *,
    scale: Tensor | None = None,
) -> Tensor:
    """The root of an f with f(lower) ≤ 0 ≤ f(upper), entry by entry.

    A Newton step that leaves the bracket is replaced by bisection, so the iteration cannot diverge; near a simple
    root it is Newton's and converges quadratically. An entry is done when it moves by no more than rtol·scale (its own
    size unless given), or when f is the round-off of its argument.
    """
    x = start.clamp(lower, upper)
    step = size = x.abs()
    for _ in range(MAX_STEPS):
        f, slope = value_and_slope(x)
        lower = torch.where(f <= 0, x, lower)
        upper = torch.where(f >= 0, x, upper)
        newton = x - f / slope
        inside = (newton >= lower) & (newton <= upper) & slope.isfinite()  # false for NaN too
        following = torch.where(inside, newton, 0.5 * (lower + upper))
        step = (following - x).abs()
        x = following
        size = x.abs() if scale is None else scale
        if bool((f.isfinite() & ((step <= rtol * size) | (f.abs() <= ROUND_OFF * size))).all()):
            return x
    worst = float((step / size).max())
    raise NotConverged(
        f"Newton still moved by {worst:.1e} (relative) after {MAX_STEPS} steps: there is hardly a root left. Lower var_a.",
        residual=worst,
        steps=MAX_STEPS,
    )
