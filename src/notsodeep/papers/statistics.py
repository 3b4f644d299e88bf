"""Means and slopes with their spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from notsodeep.papers.records import Record

_LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value and the half width of its 95 % interval, NaN where one number tells nothing of its spread."""

    value: float
    spread: float
    count: int

    @property
    def half_width(self) -> float:
        """`spread`, or 0 where there is none."""
        return self.spread if math.isfinite(self.spread) else 0.0

    def spelt(self, digits: str, noun: str) -> str:
        """ "± 0.0012, 3 seeds", or "1 seed"."""
        many = f"{self.count} {noun}{'s' * (self.count != 1)}"
        return f"± {self.spread:{digits}}, {many}" if math.isfinite(self.spread) else many


def mean(values: Sequence[float]) -> Estimate:
    """The mean and Student's interval for it."""
    n = len(values)
    if n < 2:
        return Estimate(float(values[0]), math.nan, n)
    half = float(student.ppf(0.5 + _LEVEL / 2, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(float(np.mean(values)), half, n)


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """Of log y against log x, by least squares, with Student's interval from the residuals: the exponent of a power law."""
    a, b = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    centred = a - a.mean()
    value = float(centred @ b / (centred @ centred))
    n = len(a)
    if n < 3:
        return Estimate(value, math.nan, n)
    residual = b - b.mean() - value * centred
    half = float(student.ppf(0.5 + _LEVEL / 2, n - 2)) * math.sqrt(
        float(residual @ residual) / (n - 2) / float(centred @ centred)
    )
    return Estimate(value, half, n)


def signed(value: float, digits: int) -> str:
    """With a real minus, and a plus: −0.52, +0.0031."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")  # + 0.0: there is no −0


def format_number(value: float) -> str:
    """Three digits or so: 0.0123, 1.23e-05, 12.3."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"


def of_one_setting(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """Those with these settings as the latest record has them: numbers found under different ones do not mix."""

    def chosen(record: Record) -> tuple[str, ...]:
        return tuple(repr(record.config.get(name)) for name in ("revision", *names))

    return [record for record in records if chosen(record) == chosen(records[-1])]


def of_one_run(records: Sequence[Record], apart: Sequence[str], names: Sequence[str]) -> list[Record]:
    """`of_one_setting`, for each group of records that agree in the settings `apart`."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(repr(record.config.get(name)) for name in apart), []).append(record)
    return [record for group in groups.values() for record in of_one_setting(group, names)]
