"""Piecewise polynomials: recognised, and their closed form against other ways to the same number."""

import pytest
import torch

from notsodeep.activations import activation, expression
from notsodeep.gaussian import dual_map, moments
from notsodeep.gaussian.integral import conditional_dual
from tests.gaussian.scales import ROUND_OFF, float64
from tests.gaussian.test_dual_map import RHOS, assert_same, grid

CUBIC = "max(x,0)**3 - x**2 + 0.5*abs(x-1)"
PIECES = {
    "max(x,0) - 0.2*x": (1, (0.0,), [[0.0, 1.0]]),
    "0.4*max(x,0) - 0.3*abs(x-1) + 0.25*abs(x+0.7)": (1, (-0.7, 0.0, 1.0), [[0.0, 0.5], [0.0, 0.4], [0.0, -0.6]]),
    "x*abs(x)": (2, (0.0,), [[0.0, 0.0, 4.0]]),
    "sign(x - 0.3)": (1, (0.3,), [[2.0, 0.0]]),
    CUBIC: (3, (0.0, 1.0), [[0.0, 0.0, 0.0, 6.0], [0.0, 1.0, 0.0, 0.0]]),
}
TWINS = {"relu": "max(x,0)", "abs": "abs(x)", "leaky_relu:0.3": "max(x, 0.3*x)", "sign": "sign(x)"}


@pytest.mark.parametrize("text", PIECES)
def test_pieces_are_recognised(text):
    degree, places, jumps = PIECES[text]
    found = expression(text).pieces
    assert found is not None
    assert found.degree == degree
    assert found.places == pytest.approx(places, abs=1e-12)
    for one, other in zip(found.jumps, jumps, strict=True):
        assert one == pytest.approx(other, abs=1e-10)


@pytest.mark.parametrize(
    "text", ["tanh(x)*abs(x)", "x**3", "tanh(x)", "sqrt(abs(x))", "max(x,0)**5", "max(x, 0) + 1e-9*sin(x)", "abs(sin(x))"]
)
def test_what_is_no_piecewise_polynomial_is_none(text):
    assert expression(text).pieces is None


@pytest.mark.parametrize("name", TWINS)
def test_it_has_the_closed_form_of_its_named_twin(name):
    phi, twin = expression(TWINS[name]), activation(name)
    tau_i, tau_j, lam = grid(((1.0, 1.0), (0.75, 1.5), (2.0**-10, 1024.0)), [r for r in RHOS if name != "sign" or abs(r) < 1])
    assert_same(twin, tau_i, tau_j, dual_map(phi, tau_i, tau_j, lam), dual_map(twin, tau_i, tau_j, lam))


@pytest.mark.parametrize("text", [CUBIC, "relu(x)*sign(x-1)"])
def test_the_closed_form_is_the_integral(text):
    """Towards |ρ| = 1 too, and next to where one number of nodes gives way to another."""
    phi = expression(text)
    rhos = (-1.0 + 1e-8, -0.97, -0.6001, -0.5999, -0.2501, 0.2499, 0.92, 0.9999)
    tau_i, tau_j, lam = grid(((0.75, 1.5), (0.125, 2.0)), rhos)
    found, wanted = dual_map(phi, tau_i, tau_j, lam), conditional_dual(phi, tau_i, tau_j, lam)
    power = (moments(phi, tau_i).gamma2 * moments(phi, tau_j).gamma2).sqrt()
    assert float(((found[0] - wanted[0]).abs() / power).max()) <= ROUND_OFF
    steepest = wanted[1].abs().max()
    assert float((found[1] - wanted[1]).abs().max() / steepest) <= 10.0 * ROUND_OFF


def test_equal_deviations_give_the_moments():
    tau = float64(0.05, 1.0, 30.0)
    for text in PIECES:
        value, slope = dual_map(expression(text), tau, tau, tau.square())
        at = moments(expression(text), tau)
        assert torch.allclose(value, at.gamma2, rtol=1e-12, atol=0.0)
        if bool(torch.isfinite(at.q).all()):
            assert torch.allclose(slope, at.q, rtol=1e-11, atol=0.0)


@pytest.mark.parametrize("text", ["relu(x) + relu(x)**4", "sign(x) + relu(x)**3"])
def test_a_deviation_of_nothing_does_no_harm(text):
    tau = float64(0.0, 1e-60, 1e-3, 1.0)
    value, _ = dual_map(expression(text), tau[:, None], tau, 0.5 * tau[:, None] * tau)
    assert bool(torch.isfinite(value).all())


def test_what_happens_far_out_does_not_hide_what_is_near():
    """Beside 1e8 (x − 60)⁴ tanh looks like steps; and a ramp of width 0.03, seen from τ = 1000, like a jump."""
    assert expression("tanh(x) + 1e8*relu(x-60)**4").pieces is None
    narrow = expression("clip(0.09*x - 5.56*(x - 0.538), -0.179, 0.00542)**2")
    assert narrow.pieces is not None
    tau, lam = float64(973.0), float64(0.98 * 973.0**2)
    found, wanted = dual_map(narrow, tau, tau, lam)[0], conditional_dual(narrow, tau[None], tau[None], lam[None])[0]
    assert float(found) == pytest.approx(float(wanted), rel=1e-9)
