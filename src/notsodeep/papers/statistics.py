"""Means and slopes with Student's interval, and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from notsodeep.approximation.interval import half_width, student
from notsodeep.papers.records import Record

X = TypeVar("X", int, float)


@dataclass(frozen=True)
class Interval:
    """A value and the half width of its 95 % interval; NaN where there are too few numbers for an interval."""

    value: float
    spread: float
    count: int

    @property
    def half_width(self) -> float:
        """`spread`, or 0 where it is NaN."""
        return self.spread if math.isfinite(self.spread) else 0.0

    def above(self, other: Interval) -> bool:
        """Whether this interval lies above the other one; never for single numbers, which have no interval."""
        return min(self.count, other.count) > 1 and self.value - self.spread > other.value + other.spread

    def spelt(self, digits: str, noun: str) -> str:
        """ "± 0.0012, 3 seeds", or "1 seed"."""
        many = f"{self.count} {noun}{'s' * (self.count != 1)}"
        return f"± {self.spread:{digits}}, {many}" if math.isfinite(self.spread) else many


def mean(values: Sequence[float]) -> Interval:
    """The mean with Student's interval."""
    return Interval(float(np.mean(values)), half_width(values) if len(values) > 1 else math.nan, len(values))


def line(x: Sequence[float], y: Sequence[float]) -> Interval:
    """The slope of the least-squares line through (x, y), with Student's interval from the residuals."""
    n = len(x)
    if n < 3:
        return Interval(float(np.polyfit(x, y, 1)[0]), math.nan, n)
    (value, _), covariance = np.polyfit(x, y, 1, cov=True)
    return Interval(float(value), student(n - 2) * math.sqrt(covariance[0, 0]), n)


def slope(x: Sequence[float], y: Sequence[float]) -> Interval:
    """The slope of log y against log x: the exponent of a power law."""
    return line(np.log(np.asarray(x, dtype=float)).tolist(), np.log(np.asarray(y, dtype=float)).tolist())


def over_seeds(
    records: Iterable[Record], x: Callable[[Record], X], y: Callable[[Record], float | None]
) -> dict[X, list[float]]:
    """The numbers y of all records at every x, in the order of x; records whose y is None are left out."""
    found: dict[X, list[float]] = {}
    for record in records:
        value = y(record)
        if value is not None:
            found.setdefault(x(record), []).append(value)
    return dict(sorted(found.items()))


def signed(value: float, digits: int) -> str:
    """With a real minus, and a plus: −0.52, +0.0031."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")  # + 0.0: there is no −0


def format_number(value: float) -> str:
    """Three digits or so: 0.0123, 1.23e-05, 12.3."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"
