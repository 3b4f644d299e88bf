"""The oracle of the fuzzer itself, against closed forms and mpmath."""

import math

import mpmath
import numpy as np
import pytest

from tests.gaussian.equilibrium_oracle import equilibrium
from tests.gaussian.function_trees import Tree, X, of
from tests.gaussian.oracle import Undecided, pair
from tests.gaussian.random_functions import Setting, setting

RTOL = 1e-10


def relu(s: Setting) -> tuple[float, float]:
    angle = math.atan2(s.c, s.rho)
    tau_i, tau_j = s.norms
    value = tau_i * tau_j * (s.c + (math.pi - angle) * s.rho) / (2.0 * math.pi)
    return value, (math.pi - angle) / (2.0 * math.pi)


def absolute(s: Setting) -> tuple[float, float]:
    angle = math.atan2(s.c, s.rho)
    tau_i, tau_j = s.norms
    return tau_i * tau_j * 2.0 * (s.c + (0.5 * math.pi - angle) * s.rho) / math.pi, 1.0 - 2.0 * angle / math.pi


def sign(s: Setting) -> tuple[float, float]:
    return 1.0 - 2.0 * math.atan2(s.c, s.rho) / math.pi, 0.0


def waves(s: Setting) -> tuple[float, float]:
    """Of e^(iu) and e^(±iv): ½(e^(−E[(u−v)²]/2) ∓ e^(−E[(u+v)²]/2))."""
    tau_i, tau_j = s.norms
    apart = (tau_i - tau_j) ** 2 + 2.0 * tau_i * tau_j * s.c**2 / (1.0 + s.rho) if s.rho > -0.5 else None
    apart = tau_i**2 + tau_j**2 - 2.0 * s.rho * tau_i * tau_j if apart is None else apart
    together = (tau_i - tau_j) ** 2 + 2.0 * tau_i * tau_j * s.c**2 / (1.0 - s.rho) if s.rho < 0.5 else None
    together = tau_i**2 + tau_j**2 + 2.0 * s.rho * tau_i * tau_j if together is None else together
    return math.exp(-0.5 * apart), math.exp(-0.5 * together)


def sine(s: Setting) -> tuple[float, float]:
    minus, plus = waves(s)
    return 0.5 * (minus - plus), 0.5 * (minus + plus)


def cosine(s: Setting) -> tuple[float, float]:
    minus, plus = waves(s)
    return 0.5 * (minus + plus), 0.5 * (minus - plus)


def error_function(s: Setting) -> tuple[float, float]:
    (tau_i, tau_j), lam = s.norms, s.rho * math.prod(s.norms)
    root = math.sqrt(1.0 + 2.0 * tau_i**2 + 2.0 * tau_j**2 + 4.0 * (tau_i * tau_j * s.c) ** 2)
    return 2.0 / math.pi * math.atan2(2.0 * lam, root), 4.0 / (math.pi * root)


def bump(s: Setting) -> tuple[float, float]:
    tau_i, tau_j = s.norms
    lam = s.rho * tau_i * tau_j
    determinant = 1.0 + tau_i**2 + tau_j**2 + (tau_i * tau_j * s.c) ** 2
    return determinant**-0.5, lam * determinant**-1.5


def cubic(s: Setting) -> tuple[float, float]:
    """x³: E[u³v³] = 9 λ τ_i² τ_j² + 6 λ³, E[9u²v²] = 9 (τ_i² τ_j² + 2λ²)."""
    square = math.prod(s.norms) ** 2
    lam = s.rho * math.prod(s.norms)
    return 9.0 * lam * square + 6.0 * lam**3, 9.0 * (square + 2.0 * lam**2)


CLOSED = {
    "relu": (of("relu", X), relu),
    "abs": (of("abs", X), absolute),
    "sign": (of("sign", X), sign),
    "sin": (of("sin", X), sine),
    "cos": (of("cos", X), cosine),
    "erf": (of("erf", X), error_function),
    "bump": (of("exp", -0.5 * X**2), bump),
    "cubic": (X**3, cubic),
}
SETTINGS = (
    setting(1.0, 1.0, 0.0),
    setting(3.0, 0.5, 0.7),
    setting(0.002, 30.0, -0.9),
    setting(30.0, 30.0, 0.999),
    setting(900.0, 900.0, 1.0, distance=1e-5),
    setting(2.0, 5.0, -1.0, distance=1e-4),
    setting(2.0, 2.0, 1.0),
    setting(2.0, 7.0, -1.0),
)


@pytest.mark.parametrize("at", SETTINGS, ids=str)
@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms(name, at):
    tree, closed = CLOSED[name]
    found = pair(tree, tree.places(12.0 * max(at.norms)), *at.norms, at.rho, at.c)
    value, slope = closed(at)
    assert abs(found.value - value) <= RTOL * found.left.norm * found.right.norm
    assert abs(found.slope - slope) <= RTOL * found.left.slope_norm * found.right.slope_norm


def test_the_closest_pairs():
    at = setting(7.0, 7.0, 1.0, distance=1e-8)
    found = pair(of("relu", X), [], *at.norms, at.rho, at.c)
    value, slope = relu(at)
    assert found.value == pytest.approx(value, rel=RTOL)
    assert found.slope == pytest.approx(slope, rel=RTOL)


def test_far_masses():
    """E[e^(au) e^(bv)] = e^(Var[au + bv]/2), of which nothing is where the density is."""
    at = setting(20.0, 18.0, 0.9)
    found = pair(of("exp", 0.5 * X), [], *at.norms, at.rho, at.c)
    power = 0.125 * (20.0**2 + 18.0**2 + 2.0 * 0.9 * 20.0 * 18.0)
    assert found.value == pytest.approx(math.exp(power), rel=RTOL)
    assert found.slope == pytest.approx(0.25 * math.exp(power), rel=RTOL)


def test_where_nothing_tells_it_of_kinks():
    tree = of("where", of("cos", -15.0 * (X - 0.0879)), of("abs", X), of("atan", 0.0685 * X))
    told = pair(tree, tree.places(40.0), 3.0, 1.0, 0.6, 0.8)
    untold = pair(tree, [], 3.0, 1.0, 0.6, 0.8)
    assert told.value == pytest.approx(untold.value, rel=1e-12)
    assert told.left.jumps
    assert untold.left.jumps


@pytest.mark.parametrize(
    ("tree", "spelt"),
    [
        (of("sigmoid", 50.0 * (X - 3.0)), lambda x: 1 / (1 + mpmath.exp(-50 * (x - 3)))),
        (X * of("tanh", X) - 0.3 * of("sin", 2.0 * X), lambda x: x * mpmath.tanh(x) - 0.3 * mpmath.sin(2 * x)),
    ],
)
def test_one_variable_by_mpmath(tree: Tree, spelt):
    found = pair(tree, tree.places(24.0), 2.0, 2.0, 1.0, 0.0)
    ends = [-18, -6, 0, 2, 2.9, 3, 3.1, 4, 6, 18]
    density = lambda x: mpmath.exp(-(x**2) / 8) / mpmath.sqrt(8 * mpmath.pi)  # noqa: E731
    value = mpmath.quad(lambda x: spelt(x) ** 2 * density(x), ends)
    slope = mpmath.quad(lambda x: mpmath.diff(spelt, x) ** 2 * density(x), ends, maxdegree=5)
    assert found.value == pytest.approx(float(value), rel=RTOL)
    assert found.slope == pytest.approx(float(slope), rel=1e-8)


def test_two_variables_by_mpmath():
    tree, rho = of("tanh", X) + of("gelu", X), 0.6
    found = pair(tree, [0.0], 1.0, 1.0, rho, 0.8)

    def phi(x):
        return mpmath.tanh(x) + x * mpmath.ncdf(x)

    # The sum over a grid: of an analytic function its error is e^(−2π·(distance of the poles)/step).
    step = mpmath.mpf(0.25)
    grid = [step * k for k in range(-32, 33)]
    weight = {p: step * mpmath.npdf(p) for p in grid}
    value = mpmath.fsum(weight[p] * phi(p) * mpmath.fsum(weight[q] * phi(rho * p + 0.8 * q) for q in grid) for p in grid)
    assert found.value == pytest.approx(float(value), rel=RTOL)


def test_what_has_no_value():
    with pytest.raises(Undecided, match="finite"):
        pair(of("exp", X), [0.0], 500.0, 500.0, 0.5, math.sqrt(0.75))


def test_slopes_of_trees():
    x = np.linspace(-3.0, 3.0, 41) + 0.0123
    for op in ("tanh", "sinh", "cosh", "sin", "cos", "exp", "abs", "erf", "atan", "relu", "sigmoid", "softplus", "gelu"):
        for tree in (of(op, X), of(op, 0.5 * X**2) / (1.0 + of("silu", X) ** 2), of("log", 2.0 + of("elu", of(op, X)))):
            h = 1e-6
            with np.errstate(invalid="ignore"):
                expected = (tree(x + h)[0] - tree(x - h)[0]) / (2.0 * h)
            known = np.isfinite(expected)
            np.testing.assert_allclose(tree(x)[1][known], expected[known], rtol=1e-6, atol=1e-7)


def test_an_equilibrium_next_to_nothing_is_told():
    """Of a bump 36 deviations out k is 1e-270, and the product of two such numbers is 0."""
    far = of("exp", -((13.0 * (X + 5.13)) ** 2.0))
    assert equilibrium(far, 0.883, 2.95, (0.0816, 0.0816), 0.5).hidden == (True, True)


def test_a_slope_that_begins_far_out_is_next_to_nothing():
    """clip(x, 70, 90) is 70 on [−64, 64]: E[φ'²] is 1e-35, and φ' is 1 where it is not 0."""
    found = pair(of("clip", X, 70.0, 90.0), [70.0, 90.0], 5.7, 5.7, 0.5, math.sqrt(0.75)).left
    assert found.hidden == (False, True)
