"""Places of [−64, 64] that the parts of an expression point to: where one of them is 0, or nearest to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from notsodeep.activations.kinks import rounded
from notsodeep.activations.slopes import Function

_REACH, _INTERVALS = 64.0, 1 << 14
_ZERO_RTOL = 1e-9  # of a value to the smaller one of those a step of the grid away
_CLOSE, _FALLS = 1e-6, 1e-3  # of x, how near to a zero a value is not 0, and by how much it then exceeds that at the zero
_THIRDS = 100  # (2/3)^100 of a step is below the spacing of float64
_MANY = 1000  # places: more are waves, which are seen without being pointed to
_QUICK = 0.1  # by which an argument changes in a step of the grid where a function of it may be too narrow to be seen
_NEAREST, _STEPS = 1e-9, 28  # how near to a place it is looked again


def grid(near: Iterable[float] = ()) -> Tensor:
    """Even steps of 1/128 and, around the places `near`, ever shorter ones."""
    even = torch.linspace(-_REACH, _REACH, _INTERVALS + 1, dtype=torch.float64)
    extra = around(near, 2.0 * _REACH / _INTERVALS)
    if not len(extra):
        return even
    found: Tensor = torch.cat([even, extra[extra.abs() <= _REACH]]).unique()
    return found


def around(places: Iterable[float], farthest: float) -> Tensor:
    """The places, and on either side of each those from a billionth to `farthest` away."""
    at = torch.tensor(list(places), dtype=torch.float64)
    steps = torch.cat(
        [torch.zeros(1, dtype=torch.float64), _NEAREST * (farthest / _NEAREST) ** torch.linspace(0, 1, _STEPS).double()]
    )
    found: Tensor = (at[:, None] + torch.cat([-steps, steps])).flatten().unique()
    return found


def zeros(function: Function, near: Iterable[float] = ()) -> list[float]:
    """Where the function crosses or touches 0: its absolute value has a minimum there, found by thirds."""
    x = grid(near)
    with torch.no_grad():
        size = function(x).abs()
    at = torch.nonzero(_lowest(size)).flatten()
    middle = _minima(function, x[at], x[at + 2])
    with torch.no_grad():
        value, beside = function(middle).abs(), torch.minimum(size[at], size[at + 2])
        step = _CLOSE * middle.abs().clamp(min=1.0)
        close = torch.maximum(function(middle - step).abs(), function(middle + step).abs())
        found = middle[(value <= _ZERO_RTOL * beside) & (value <= _FALLS * close) & torch.isfinite(beside)]
    return sorted({rounded(place) + 0.0 for place in found.tolist()})


def narrow_places(arguments: Sequence[Function]) -> tuple[float, ...]:
    """Where functions of `arguments`, the inner ones first, may have features too narrow to be seen on a grid: where an
    argument that changes quickly is nearest to 0."""
    found: set[float] = set()
    for argument in arguments:
        x = grid(found)
        with torch.no_grad():
            value = argument(x)
        size, change = value.abs(), value.diff().abs() / x.diff() * (2.0 * _REACH / _INTERVALS)
        crosses = (value[:-2] * value[2:] <= 0.0) | (size[1:-1] == 0.0)
        enough = _QUICK * torch.where(crosses, 1.0, size[1:-1].clamp(max=1.0))
        at = torch.nonzero(_lowest(size) & (torch.maximum(change[:-1], change[1:]) > enough)).flatten()
        if len(at) <= _MANY:
            found |= {rounded(place) + 0.0 for place in _minima(argument, x[at], x[at + 2]).tolist()}
    return tuple(sorted(found))


def _lowest(size: Tensor) -> Tensor:
    """Which of the inner places have no lower neighbour, and none that is 0."""
    return (size[1:-1] <= size[:-2]) & (size[1:-1] <= size[2:]) & (size[:-2] > 0.0) & (size[2:] > 0.0)


@torch.no_grad()
def _minima(function: Function, lower: Tensor, upper: Tensor) -> Tensor:
    """Where between both the absolute value of the function is least."""
    for _ in range(_THIRDS if len(lower) else 0):
        third = (upper - lower) / 3.0
        left = function(lower + third).abs() <= function(upper - third).abs()
        lower, upper = torch.where(left, lower, lower + third), torch.where(left, upper - third, upper)
    return 0.5 * (lower + upper)
