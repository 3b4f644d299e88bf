"""Places where a function, its slope or its curvature jumps."""

from __future__ import annotations

import torch
from torch import Tensor

from notsodeep.activations.slopes import Function, derivative

_PLACE_RTOL = 1e-11  # of x, how far off the place of a kink may be
_STRETCH, _SCATTER = 1e-2, 8.0  # beside a jump, where φ shows its rounding; how much larger than seen that may be
_BESIDE, _TINY = 8.0, 1e-13  # how far from a jump |φ| is looked at, and what of the largest its rounding may be


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
    least = torch.maximum(torch.maximum(1e-8 * size, _PLACE_RTOL / 1e-6 * rise), _rounding(function, at))
    # A jump is as high from nearer by; what is only steep is not.
    real = (heights.abs() > least) & ((nearer - heights).abs() <= 0.1 * heights.abs())
    return tuple(zip(at[real].tolist(), heights[real].tolist(), strict=True))


def _heights(function: Function, at: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """φ(place+) − φ(place−), extrapolated from h and 2h off on each side, and the larger change of φ between those."""
    step = h * at.abs().clamp(min=1.0)[:, None]
    with torch.no_grad():
        below2, below, above, above2 = function(at[:, None] + step * at.new_tensor([-2.0, -1.0, 1.0, 2.0])).unbind(1)
    return (2.0 * above - above2) - (2.0 * below - below2), torch.maximum((above2 - above).abs(), (below - below2).abs())


def _rounding(function: Function, at: Tensor) -> Tensor:
    """What φ may jump by at each place because it is rounded, as log(1 + x²) is to steps of 2e-16 next to 0: as much as it
    scatters by on either side about a polynomial of degree 5, as far as that is tiny."""
    size = at.abs().clamp(min=1.0)[:, None]
    t = torch.linspace(1.0, 2.0, 16, dtype=at.dtype)
    basis = torch.linalg.qr(torch.stack([t**k for k in range(6)], dim=1))[0]
    away = torch.logspace(-3.0, 0.0, 25, dtype=at.dtype)
    with torch.no_grad():
        beside = torch.stack([function(at[:, None] + side * _STRETCH * size * t) for side in (-1.0, 1.0)])
        around = torch.stack([function(at[:, None] + side * _BESIDE * size * away) for side in (-1.0, 1.0)])
    scatter = (beside - beside @ basis @ basis.T).abs().amax((0, 2)).nan_to_num(0.0)
    largest = around.nan_to_num(0.0, 0.0, 0.0).abs().amax((0, 2))
    return torch.minimum(_SCATTER * scatter, _TINY * largest)
