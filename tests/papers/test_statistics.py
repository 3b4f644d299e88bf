"""Means and slopes: against scipy, and against what they are for."""

import math

import numpy as np
import pytest
from scipy import stats

from notsodeep.papers.records import Record
from notsodeep.papers.statistics import Interval, format_number, line, mean, over_seeds, signed, slope


def test_mean_has_student_s_interval():
    values = np.random.default_rng(0).normal(size=7)
    low, high = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    found = mean(values)
    assert found.value - found.spread == pytest.approx(low)
    assert found.value + found.spread == pytest.approx(high)


def test_one_number_has_no_spread():
    found = mean([3.0])
    assert found.value == 3.0
    assert math.isnan(found.spread)
    assert found.half_width == 0.0
    assert found.spelt(".2f", "seed") == "1 seed"


def test_slope_is_scipy_s():
    draw = np.random.default_rng(1)
    x = np.geomspace(100, 3200, 12)
    y = 3.0 * x**-0.6 * np.exp(0.05 * draw.normal(size=12))
    reference = stats.linregress(np.log(x), np.log(y))
    found = slope(x, y)
    assert found.value == pytest.approx(reference.slope)
    assert found.spread == pytest.approx(stats.t.ppf(0.975, 10) * reference.stderr)


def test_intervals_cover():
    draw = np.random.default_rng(2)
    hits = sum(abs(found.value) <= found.spread for found in (mean(draw.normal(size=5)) for _ in range(1000)))
    assert 930 <= hits <= 968


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.01234, "0.0123"), (1.2e-5, "1.20e-05"), (42.42, "42.4"), (math.inf, "inf")]
)
def test_numbers_are_short(value, text):
    assert format_number(value) == text


def test_signs_are_real():
    assert signed(-0.5, 2) == "−0.50"
    assert signed(0.0123, 3) == "+0.012"


def test_a_line_is_scipy_s():
    draw = np.random.default_rng(3)
    x = draw.normal(size=9)
    y = 0.3 * x + draw.normal(size=9)
    reference = stats.linregress(x, y)
    found = line(x, y)
    assert found.value == pytest.approx(reference.slope)
    assert found.spread == pytest.approx(stats.t.ppf(0.975, 7) * reference.stderr)
    assert math.isnan(line([1.0, 2.0], [3.0, 4.0]).spread)


def test_an_interval_lies_above_another():
    low, high = Interval(1.0, 0.1, 3), Interval(1.3, 0.1, 3)
    assert high.above(low)
    assert not low.above(high)
    assert not Interval(1.3, 0.2, 3).above(low)
    assert not Interval(9.0, math.nan, 1).above(low)


def test_numbers_over_seeds_are_in_order():
    records = [Record("L1", {"n": n, "seed": s}, {"gap": gap}, 0.0) for n, s, gap in ((4, 0, 1.0), (2, 0, None), (2, 1, 3.0))]
    assert list(over_seeds(records, lambda r: r.config["n"], lambda r: r.values["gap"]).items()) == [(2, [3.0]), (4, [1.0])]
