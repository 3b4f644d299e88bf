"""The panels of a function that nothing is known of."""

import math

import pytest
import torch

from notsodeep.activations import activation, custom, expression
from notsodeep.activations.mesh import mesh_of
from notsodeep.errors import BadInput
from notsodeep.gaussian import dual_map, moments
from notsodeep.gaussian.integral import _tabulated_dual, conditional_dual


def mesh(function, reach, kinks=()):
    return mesh_of(function, "f", kinks, reach)


def test_a_polynomial_is_one_panel_and_a_kink_an_edge():
    assert len(mesh(lambda x: x**3, 1000.0).edges) == 2
    found = mesh(lambda x: torch.relu(x - 300.0) - x, 1000.0)
    assert found.kinks == pytest.approx([300.0], abs=1e-9)
    assert len(found.edges) == 3


def test_jumps_far_out_are_found_with_their_heights():
    found = mesh(lambda x: torch.sign(torch.sin(x)), 100.0)
    assert [place for place, _ in found.jumps] == pytest.approx([math.pi * k for k in range(-31, 32)], abs=1e-9)
    assert [abs(height) for _, height in found.jumps] == pytest.approx([2.0] * 63)


@pytest.mark.parametrize("function", [torch.tanh, torch.sin, lambda x: torch.exp(-((20.0 * (x - 7.0)) ** 2))])
def test_every_panel_is_a_polynomial(function):
    edges = mesh(function, 64.0).edges
    t = torch.linspace(-1.0, 1.0, 33, dtype=torch.float64)
    nodes = torch.cos(math.pi * (torch.arange(16, dtype=torch.float64) + 0.5) / 16.0)
    middle, half = 0.5 * (edges[1:] + edges[:-1])[:, None], 0.5 * edges.diff()[:, None]
    basis = torch.cos(torch.arange(16, dtype=torch.float64) * torch.arccos(t)[:, None])
    transform = torch.linalg.inv(torch.cos(torch.arange(16, dtype=torch.float64) * torch.arccos(nodes)[:, None]))
    read = function(middle + half * nodes) @ (basis @ transform).T
    assert float((read - function(middle + half * t)).abs().max()) <= 1e-11


def test_what_cannot_be_followed_is_refused():
    with pytest.raises(BadInput, match="varies too fast"):
        mesh(lambda x: torch.sin(1e5 * x), 64.0)
    with pytest.raises(BadInput, match="not finite at x = 7"):
        mesh(torch.exp, 1000.0)
    with pytest.raises(BadInput, match="grows too fast"):
        moments(expression("exp(x)"), 17.0)


def test_a_slope_without_bound_is_told():
    assert mesh(lambda x: x.abs().sqrt(), 16.0, (0.0,)).steepness > 1e-3
    assert mesh(lambda x: x.abs() ** 1.5, 16.0, (0.0,)).steepness < 1e-20


@pytest.mark.parametrize("rho", [-0.999, 0.3, 0.9, 1.0 - 1e-8])
@pytest.mark.parametrize("text", ["tanh(4*x)", "abs(tanh(x))", "x*sign(x - 1)"])
def test_the_integral_over_a_line_is_that_over_a_plane(text, rho):
    """One pair by windows, as functions of many panels are integrated, and by the plane, as those of few are."""
    phi, tau_i, tau_j = expression(text), 1.0, 1.5
    lam = rho * tau_i * tau_j
    given = [torch.tensor([each], dtype=torch.float64) for each in (tau_i, tau_j, lam)]
    wanted = [float(each) for each in conditional_dual(phi, *given)]
    found = _tabulated_dual(phi, phi.mesh(18.0), tau_i, tau_j, lam, (0.0, 0.0))
    assert found == pytest.approx(wanted, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("tau", [30.0, 100.0])
def test_waves_have_the_closed_form_of_sin(tau):
    lam = 0.999 * tau * tau
    found, wanted = (dual_map(phi, tau, tau, lam) for phi in (expression("sin(x)"), activation("sin")))
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).abs()) <= 1e-12


def test_a_mesh_made_for_large_inputs_serves_small_ones():
    """Far out cosh is 1e80 times what it is near 0, and rounding there must not count here."""
    text = "tanh(x)*cosh(0.04*x)"
    alone, after = expression(text), expression(text + "+0*x")
    after.mesh(5000.0)
    for one, other in zip(*(vars(moments(phi, 20.0)).values() for phi in (alone, after)), strict=True):
        assert float(one) == pytest.approx(float(other), rel=1e-10, abs=1e-14)


@pytest.mark.parametrize(
    ("noisy", "plain", "digits"),
    [("1-cos(0.001*x)", "2*sin(0.0005*x)**2", 1e-9), ("(x**2+1e6)**0.5-1000", "x**2/((x**2+1e6)**0.5+1000)", 1e-9)],
)
def test_rounding_is_not_followed(noisy, plain, digits):
    found, wanted = (moments(expression(text), 2.0) for text in (noisy, plain))
    assert float(found.gamma2) == pytest.approx(float(wanted.gamma2), rel=digits)
    assert float(found.q) == pytest.approx(float(wanted.q), rel=digits)


def test_a_module_that_has_learnt_is_looked_at_again():
    class Hat(torch.nn.Module):
        place = 0.15

        def forward(self, x):
            return torch.relu(1.0 - 10.0 * (x - self.place).abs())

    hat = Hat()
    phi = custom(hat)
    before = float(moments(phi, 1.0).gamma2)
    hat.place = 0.33
    fresh = custom(lambda x: torch.relu(1.0 - 10.0 * (x - 0.33).abs()))
    assert float(moments(phi, 1.0).gamma2) == pytest.approx(float(moments(fresh, 1.0).gamma2), rel=1e-12)
    assert float(moments(phi, 1.0).gamma2) != pytest.approx(before, rel=1e-3)


def test_a_kink_of_a_steep_function_is_not_infinitely_steep():
    """Waves of slope 2000 bend where they are cut off; E[φ'²] is finite (seed 93 of benchmarks/fuzz.py)."""
    phi = expression("min(sin(x*62.9*(x - 3.62)), sigmoid(cos(-0.243*(x - 2.09))))")
    assert phi.mesh(16.0).steepness == 0.0
    assert float(moments(phi, 0.0764).q) == pytest.approx(23589.4682, rel=1e-8)


@pytest.mark.parametrize("power", [0.6, 0.7, 0.75])
def test_roots_are_infinitely_steep(power):
    assert mesh(lambda x: x.abs() ** power + 10.0 * x, 16.0, (0.0,)).steepness > 1e-9


def test_a_kink_is_no_jump_however_far_out():
    """Its place is known to the rounding of x only, and a steep function is not 0 there."""
    assert not expression("abs(sin(sqrt(1 + (45.7*(x - 0.634))**2)))").mesh(64.0).jumps
    assert len(expression("abs(sin(3*x)) + 1e-5*sign(x - 50)").mesh(64.0).jumps) == 1


def test_a_sign_that_rounding_makes_beyond_what_is_looked_at_first():
    phi = expression("sign(x) + sign(sigmoid(6*x))")
    assert phi.mesh(100.0).jumps
    with pytest.raises(BadInput, match=r"jumps at x = -118\.3 .* underflows"):
        phi.mesh(200.0)
