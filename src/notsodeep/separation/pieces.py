"""How many linear pieces a ReLU network has on a line: its breakpoints one after another, not a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from torch import nn

from notsodeep.arguments import number
from notsodeep.errors import BadInput
from notsodeep.separation.equilibrium_path import EquilibriumPath
from notsodeep.separation.ordered_units import OrderedUnits
from notsodeep.separation.units import ROUND_OFF, Array, Path, Units


def count_pieces(module: nn.Module, low: float, high: float) -> int:
    """The number of linear pieces on [low, high] of a network of one input: neighbours differ in slope.

    `module` is a `ReluDEQ`, a ReLU `ENN`, or a Sequential of Linear and ReLU. Each of its units is an affine function of x as
    long as none turns on or off; the nearest zero of one is the next breakpoint.

    Where W is not strictly lower triangular the equilibrium must be unique, that is I − W a P-matrix (‖W‖₂ < 1 suffices).
    Its minors of one unit and of two are looked at, and those of every active set on the way; `NotContractive` where one is
    not positive.
    """
    low, high = number(low, "low"), number(high, "high")
    if not high > low:
        raise BadInput(f"The interval [{low!r}, {high!r}] is empty or endless; low must lie below high, both finite.")
    units = Units.of(module)
    return _different(OrderedUnits(units) if units.in_order else EquilibriumPath(units), low, high)


def _different(path: Path, low: float, high: float) -> int:
    """How many slopes in a row differ from the one before."""
    pieces = 0
    before: Array = np.array([np.inf])
    blur_before: Array = np.zeros(1)
    for slope, blur in _slopes(path, low, high):
        if (np.abs(slope - before) > np.maximum(blur, blur_before)).any():
            pieces += 1
        before, blur_before = slope, blur
    return pieces


def _slopes(path: Path, low: float, high: float) -> Iterator[tuple[Array, Array]]:
    """The slopes of the outputs between one breakpoint and the next, and what round-off leaves open of them."""
    x, end = low, high - ROUND_OFF * max(abs(low), abs(high))
    while x < end or x == low:
        slope, blur, ahead = path.right_of(x)
        yield slope, blur
        # A breakpoint nearer than the spacing of numbers at x would be found again and again.
        x = max(x + ahead, math.nextafter(x, math.inf))
