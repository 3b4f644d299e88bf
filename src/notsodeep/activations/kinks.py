"""Slopes of any function, and the places where it, its slope or its curvature jumps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]

_PLACE_RTOL = 1e-11  # of x, how far off the place of a kink may be


def derivative(function: Function, x: Tensor, keep: bool = False) -> Tensor:
    """φ'(x) by automatic differentiation; where `keep`, with the graph that a second derivative needs."""
    with torch.enable_grad():
        point = x if keep and x.requires_grad else x.detach().requires_grad_()
        value = function(point)
        if not value.requires_grad:
            return torch.zeros_like(x)
        (slope,) = torch.autograd.grad(value.sum(), point, create_graph=keep)
    return slope if keep else slope.detach()


def rounded(place: float) -> float:
    """A place that was found within a rounding error of a short number is that number."""
    short = round(place, 6)
    return short if abs(place - short) < 1e-12 else place


def at_order(function: Function, x: Tensor, order: int) -> Tensor:
    """φ, φ' or φ''."""
    if order == 0:
        with torch.no_grad():
            return function(x)
    return derivative(function if order == 1 else lambda u: derivative(function, u, keep=True), x)


def pinned_down(function: Function, lower: Tensor, upper: Tensor, orders: tuple[int, ...] = (0, 1, 2)) -> Tensor:
    """Where in each interval φ, φ' or φ'' jumps; NaN where none of them does.

    Halved sixty times towards the larger change: a jump keeps its size, a steep but smooth piece shrinks with the interval.
    """
    place = torch.full_like(lower, torch.nan)
    for order in orders:
        try:
            a, b = lower.clone(), upper.clone()
            between = a[:, None] + (b - a)[:, None] * torch.linspace(0.0, 1.0, 9, dtype=a.dtype)
            least, most = torch.aminmax(at_order(function, between, order), dim=1)
            for _ in range(60):
                middle = 0.5 * (a + b)
                at_a, at_middle, at_b = (at_order(function, x, order) for x in (a, middle, b))
                left = (at_middle - at_a).abs() >= (at_b - at_middle).abs()
                a, b = torch.where(left, a, middle), torch.where(left, middle, b)
        except RuntimeError:  # torch knows no second derivative of some of its functions
            break
        # Compared a little apart, not at the limit of the arithmetic, where a difference of neighbours is noise.
        apart = torch.minimum(1e-9 * a.abs().clamp(min=1.0), 1e-3 * (upper - lower))
        last = (at_order(function, b + apart, order) - at_order(function, a - apart, order)).abs()
        jumps = place.isnan() & (last > 0.3 * (most - least)) & (most > least)
        place = torch.where(jumps, 0.5 * (a + b), place)
    return place


def find_jumps(function: Function, places: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    """(place, φ(place+) − φ(place−)) wherever that is not 0."""
    if not places:
        return ()
    at = torch.tensor(places, dtype=torch.float64)
    (heights, rise), (nearer, _) = (_heights(function, at, h) for h in (1e-6, 1e-9))
    with torch.no_grad():
        size = function(at[:, None] + at.new_tensor([-1e-6, 1e-6])).abs().amax(1)
    # Next to a kink whose place is off by next to nothing, the sides are apart by what the slopes make of that.
    least = torch.maximum(1e-8 * size, _PLACE_RTOL / 1e-6 * rise)
    # A jump is as high from nearer by; what is only steep is not.
    real = (heights.abs() > least) & ((nearer - heights).abs() <= 0.1 * heights.abs())
    return tuple(zip(at[real].tolist(), heights[real].tolist(), strict=True))


def _heights(function: Function, at: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """φ(place+) − φ(place−), extrapolated from h and 2h off on each side, and the larger change of φ between those."""
    step = h * at.abs().clamp(min=1.0)[:, None]
    with torch.no_grad():
        below2, below, above, above2 = function(at[:, None] + step * at.new_tensor([-2.0, -1.0, 1.0, 2.0])).unbind(1)
    return (2.0 * above - above2) - (2.0 * below - below2), torch.maximum((above2 - above).abs(), (below - below2).abs())
