"""Newton within a bracket, for many equations at once."""

import pytest
import torch

from notsodeep.approximation.newton import MAX_STEPS, bracketed_newton
from notsodeep.errors import NotConverged

RTOL = 1e-11


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def solve(function, lower, upper, start, rtol=RTOL):
    lower, upper, start = (torch.atleast_1d(torch.as_tensor(t, dtype=torch.float64)) for t in (lower, upper, start))
    return bracketed_newton(function, lower, upper, start, rtol)


def test_many_equations_at_once():
    """x² = c for c over twelve decades."""
    c = torch.logspace(-6, 6, 13, dtype=torch.float64)
    root = bracketed_newton(lambda x: (x.square() - c, 2.0 * x), torch.zeros_like(c), 1.0 + c, 1.0 + c, RTOL)
    torch.testing.assert_close(root, c.sqrt(), rtol=1e-10, atol=0.0)


def test_it_is_newton_near_a_simple_root():
    calls = []

    def function(x):
        calls.append(x)
        return x.square() - 2.0, 2.0 * x

    assert float(solve(function, 0.0, 2.0, 1.5)) == pytest.approx(2.0**0.5, rel=1e-15)
    assert len(calls) <= 6


def test_several_roots():
    """x³ − x on [−2, 2]: one of −1, 0, 1, whichever; on [0.5, 2] it is 1."""

    def cubic(x):
        return x**3 - x, 3.0 * x.square() - 1.0

    assert float(solve(cubic, 0.5, 2.0, 1.9)) == pytest.approx(1.0, rel=1e-14)
    for start in (-1.9, -0.6, 0.1, 0.577, 1.5):
        root = float(solve(cubic, -2.0, 2.0, start))
        assert min(abs(root - r) for r in (-1.0, 0.0, 1.0)) <= 1e-12


def test_a_flat_slope_falls_back_to_bisection():
    def flat(x):
        return torch.tanh(x - 1.0), torch.zeros_like(x)

    assert float(solve(flat, -10.0, 10.0, 0.0)) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("slope", [float("nan"), -1.0, 1e-300])
def test_a_wrong_slope_does_not_mislead(slope):
    def steep(x):
        return x**3 - 8.0, torch.full_like(x, slope)

    assert float(solve(steep, 0.0, 10.0, 5.0)) == pytest.approx(2.0, rel=1e-8)


def test_newton_that_would_leave_the_bracket():
    """arctan diverges under plain Newton from |x| > 1.39."""
    root = solve(lambda x: (torch.atan(x - 0.3), 1.0 / (1.0 + (x - 0.3).square())), -1e3, 1e3, 900.0)
    assert float(root) == pytest.approx(0.3, abs=1e-8)


def test_a_root_at_an_end_of_the_bracket():
    assert float(solve(lambda x: (x - 1.0, torch.ones_like(x)), 1.0, 5.0, 3.0)) == 1.0
    assert float(solve(lambda x: (x - 5.0, torch.ones_like(x)), 1.0, 5.0, 3.0)) == 5.0


def test_an_empty_bracket():
    """Lower = upper = 0: the equilibrium of no drive."""
    assert float(solve(lambda x: (0.5 * x, torch.full_like(x, 0.5)), 0.0, 0.0, 0.0)) == 0.0


def test_a_start_outside_the_bracket_is_moved_in():
    assert float(solve(lambda x: (x - 2.0, torch.ones_like(x)), 1.0, 3.0, 50.0)) == pytest.approx(2.0)


def test_arguments_are_left_alone():
    lower, upper, start = float64(0.0), float64(4.0), float64(3.0)
    bracketed_newton(lambda x: (x.square() - 2.0, 2.0 * x), lower, upper, start, RTOL)
    assert (float(lower), float(upper), float(start)) == (0.0, 4.0, 3.0)


def test_no_equations():
    nothing = torch.zeros(0, dtype=torch.float64)
    assert bracketed_newton(lambda x: (x, torch.ones_like(x)), nothing, nothing, nothing, RTOL).shape == (0,)


def test_giving_up_says_how_far_it_came():
    """A slope that claims a hundred times too much makes Newton gain a hundredth of the way a step."""
    with pytest.raises(NotConverged) as raised:
        solve(lambda x: (x - 1.0, torch.full_like(x, 100.0)), 0.0, 3.0, 2.9)
    error = raised.value
    assert error.steps == MAX_STEPS
    assert RTOL < error.residual < 1.0
    assert isinstance(error, ArithmeticError)


def test_a_function_without_a_value_is_not_a_root():
    """NaN everywhere must not come back as the middle of the bracket."""
    with pytest.raises(NotConverged):
        solve(lambda x: (x * float("nan"), torch.ones_like(x)), 0.0, 1.0, 0.7)


def test_an_infinite_slope_is_not_convergence():
    """Newton stands still there; the bracket is still wide open."""
    root = solve(lambda x: (x**3 - 8.0, torch.full_like(x, float("inf"))), 0.0, 10.0, 5.0)
    assert float(root) == pytest.approx(2.0, rel=1e-8)
