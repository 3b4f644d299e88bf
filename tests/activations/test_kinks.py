"""Where a user's function is not smooth, found by looking."""

import math
import warnings

import pytest
import torch

from notsodeep.activations import custom, expression
from notsodeep.activations.custom import find_kinks
from notsodeep.errors import NumericsWarning
from notsodeep.gaussian import moments

THIRD = 1.0 / 3.0


@pytest.mark.parametrize(
    ("function", "places"),
    [
        (torch.relu, [0.0]),
        (lambda x: torch.relu(x - 0.3) + (x + 2.0).abs(), [-2.0, 0.3]),
        (lambda x: x.clamp(-0.7, 1.9), [-0.7, 1.9]),
        (lambda x: (x > 0.25).to(x.dtype), [0.25]),
        (lambda x: torch.where(x > 0.25, x + 1.0, 0.5 * x), [0.25]),
        (lambda x: x / (1.0 + x.abs()), [0.0]),
        (lambda x: torch.relu(x - 0.4).square(), [0.4]),
        (lambda x: torch.tanh(x) + 0.01 * (x - 1.5).abs(), [1.5]),
        (lambda x: (x - 50.0).abs(), [50.0]),
        (lambda x: (x + THIRD).abs() + torch.relu(x - math.pi), [-THIRD, math.pi]),
        (lambda x: torch.relu(x - 0.3) - torch.relu(x - 0.5), [0.3, 0.5]),
        (torch.nn.Hardshrink(), [-0.5, 0.5]),
        (torch.nn.ReLU6(), [0.0, 6.0]),
    ],
)
def test_kinks_are_found_to_round_off(function, places):
    found = find_kinks(function)
    assert len(found) == len(places)
    assert max(abs(f - p) for f, p in zip(found, places, strict=True)) <= 1e-13 * max(1.0, *map(abs, places))


@pytest.mark.parametrize(
    "function",
    [
        torch.tanh,
        torch.sin,
        lambda x: torch.tanh(50.0 * x),
        lambda x: torch.tanh(1000.0 * x),
        lambda x: torch.sigmoid(30.0 * (x - THIRD)),
        lambda x: x**3 - x,
        lambda x: torch.exp(-x.square()),
        lambda x: 1.0 / (1.0 + 100.0 * x.square()),
        torch.ones_like,
        torch.zeros_like,
        lambda x: x,
    ],
)
def test_smooth_functions_have_none(function):
    """Steep is not kinked."""
    assert find_kinks(function) == ()


def test_a_staircase_has_one_a_step():
    found = find_kinks(torch.floor)
    assert found == tuple(float(k) for k in range(-63, 65))


def test_a_jump_is_measured_exactly():
    """Also where the function has a slope next to its jump."""
    phi = custom(lambda x: torch.where(x > 0.25, x + 1.0, 0.5 * x))
    ((place, size),) = phi.jumps
    assert place == pytest.approx(0.25, abs=1e-14)
    assert size == pytest.approx(1.125, abs=1e-13)
    assert phi.lipschitz == math.inf


def test_kinks_without_a_jump_are_no_jumps():
    assert custom(torch.relu).jumps == ()
    assert custom(lambda x: x.clamp(-0.7, 1.9)).jumps == ()


def test_kinks_that_are_given_are_used():
    phi = custom(torch.relu, kinks=[2.0, -1.0])
    assert phi.kinks == (-1.0, 2.0)
    assert custom(torch.relu, kinks=[]).kinks == ()


@pytest.mark.parametrize("gap", [1e-3, 4e-3, 8e-3, 0.012, 0.016, 0.02, 0.024, 0.03])
def test_two_close_kinks_are_found_or_warned_about(gap):
    """What must not happen is a wrong moment without a word: E[φ'] is P(0.3 < ξ < 0.3 + gap)."""
    exact = 0.5 * (math.erfc(0.3 / math.sqrt(2.0)) - math.erfc((0.3 + gap) / math.sqrt(2.0)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        phi = custom(lambda x: torch.relu(x - 0.3) - torch.relu(x - 0.3 - gap))
    found = float(moments(phi, torch.ones((), dtype=torch.float64)).e1)
    assert any(issubclass(w.category, NumericsWarning) for w in said) or found == pytest.approx(exact, rel=1e-10)


def test_a_kink_of_third_order_is_found_or_warned_about():
    """The fourth derivative jumps; E[φ'] = 3 E[max(ξ − 0.3, 0)²] = 3((1 + a²) P(ξ > a) − a N(a)), a = 0.3."""
    a = 0.3
    density = math.exp(-0.5 * a * a) / math.sqrt(2.0 * math.pi)
    exact = 3.0 * ((1.0 + a * a) * 0.5 * math.erfc(a / math.sqrt(2.0)) - a * density)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        phi = custom(lambda x: torch.relu(x - a) ** 3)
    found = float(moments(phi, torch.ones((), dtype=torch.float64)).e1)
    assert any(issubclass(w.category, NumericsWarning) for w in said) or found == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("slope", [10.0, 1e3, 1e5])
def test_a_steep_kink_is_no_jump(slope):
    phi = custom(lambda x: torch.relu(slope * x))
    assert phi.jumps == ()
    assert phi.lipschitz == pytest.approx(slope)
    assert float(moments(phi, torch.ones((), dtype=torch.float64)).e1) == pytest.approx(0.5 * slope, rel=1e-13)


def test_given_kinks_make_a_difference():
    """Two kinks in one interval of the search grid cannot be found; given, the moments are exact."""
    step = 1e-4
    phi = custom(lambda x: (torch.relu(x - 0.3) - torch.relu(x - 0.3 - step)) / step, kinks=[0.3, 0.3 + step])
    one = torch.ones((), dtype=torch.float64)
    upper = [0.5 * math.erfc(place / math.sqrt(2.0)) for place in phi.kinks]
    assert float(moments(phi, one).e1) == pytest.approx((upper[0] - upper[1]) / step, rel=1e-11)


def test_a_kink_at_an_odd_place_costs_no_digits():
    """E[φ'] of max(x − 1/3, 0) is P(ξ > 1/3)."""
    one = torch.ones((), dtype=torch.float64)
    exact = 0.5 * math.erfc(THIRD / math.sqrt(2.0))
    assert float(moments(custom(lambda x: torch.relu(x - THIRD)), one).e1) == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize("text", ["relu(x)**1.2", "relu(x) + relu(x - 1.5e-6)", "sign(x)*abs(x)**0.9"])
def test_what_is_only_steep_is_no_jump(text):
    assert expression(text).jumps == ()


@pytest.mark.parametrize("text", ["abs(log(1 + (0.05*x)**2))", "abs(log(1 + (0.3*x)**4))", "abs(1 - cos(0.1*x))"])
def test_a_step_of_rounding_is_no_jump(text):
    """log(1 + u) is 0 up to u = 1.1e-16, and 2.2e-16 from there on."""
    phi = expression(text)
    assert phi.jumps == phi.mesh(64.0).jumps == ()
    assert phi.lipschitz < 4.0


def test_a_jump_counts_among_others():
    """Where φ scatters about a polynomial because it jumps elsewhere, not because it is rounded."""
    assert len(expression("sign(sin(1000*x)) + 1e-3*sign(x - 0.0004)").mesh(0.5).jumps) > 100


def test_a_jump_counts_however_small_the_function():
    assert expression("1e-9*sign(x)").jumps == ((0.0, pytest.approx(2e-9)),)
