"""Kinked functions that are no piecewise polynomials: long series and short ones against integration, and against mpmath."""

from unittest import mock

import mpmath
import pytest
import torch

from notsodeep.activations import activation, expression
from notsodeep.gaussian import dual_map, moments
from notsodeep.gaussian.hermite import hermite_coefficients, long_series
from notsodeep.gaussian.integral import conditional_dual

KINKED = (
    "tanh(x)*abs(x)",
    "gelu(x) + abs(x-0.3)",
    "max(sin(x), 0.2*x)",
    "exp(-abs(x))",
    "softplus(abs(x))",
    "max(exp(-x**2), 0.4)",
)
RHO = torch.tensor([0.3, -0.8, 0.93, -0.96, 0.975, 1 - 1e-4, 1 - 1e-8], dtype=torch.float64)
MODULE = "notsodeep.gaussian.dual"


@pytest.mark.parametrize("text", KINKED)
@pytest.mark.parametrize("taus", [(0.1, 0.1), (1.0, 1.2), (5.0, 0.3)])
def test_agrees_with_integration(text, taus):
    phi = expression(text)
    tau_i, tau_j = (torch.full_like(RHO, tau) for tau in taus)
    lam = RHO * tau_i * tau_j
    found, expected = dual_map(phi, tau_i, tau_j, lam), conditional_dual(phi, tau_i, tau_j, lam)
    at = [moments(phi, tau) for tau in taus]
    scales = [(at[0].gamma2 * at[1].gamma2).sqrt(), (at[0].q * at[1].q).sqrt()]
    for given, wanted, scale in zip(found, expected, scales, strict=True):
        assert float((given - wanted).abs().max() / scale) < 2e-13


@pytest.mark.parametrize("rho", [0.95, -0.98])
def test_agrees_with_mpmath(rho):
    """E[e^(−|u|) e^(−|v|)] of u = v's deviations 1: over the four quadrants, in thirty digits."""
    with mpmath.workdps(30):
        c = mpmath.sqrt(1 - mpmath.mpf(rho) ** 2)

        def given(u):  # E[e^(−|v|) | u], v ~ N(ρu, c²), in closed form
            m = rho * u
            upper = mpmath.exp(-m + c**2 / 2) * mpmath.ncdf((m - c**2) / c)
            return upper + mpmath.exp(m + c**2 / 2) * mpmath.ncdf((-m - c**2) / c)

        places = [-12, -6, -3, -1.5, -0.5, 0, 0.5, 1.5, 3, 6, 12]
        expected = mpmath.quad(lambda u: mpmath.exp(-abs(u)) * given(u) * mpmath.npdf(u), places)
    value, _ = dual_map(expression("exp(-abs(x))"), 1.0, 1.0, rho)
    assert abs(float(value) - float(expected)) < 1e-14


def test_long_coefficients_are_those_of_the_closed_form():
    tau = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)
    found = hermite_coefficients(expression("clip(x, -1, 1)"), tau, 2048)
    expected = hermite_coefficients(activation("hard_tanh"), tau, 2048)
    assert float((found - expected).abs().max()) < 1e-14


def test_few_pairs_are_integrated():
    """None of correlation up to 0.98, and all the rest."""
    phi, rho = expression("tanh(x)*abs(x)"), torch.linspace(-0.999, 0.999, 201, dtype=torch.float64)
    asked = []

    def seen(core, tau_i, tau_j, lam, means):
        asked.extend((lam / (tau_i * tau_j)).abs().tolist())
        return conditional_dual(core, tau_i, tau_j, lam, means)

    with mock.patch(f"{MODULE}.conditional_dual", seen):
        dual_map(phi, 1.0, 1.1, 1.1 * rho)
    assert asked
    assert min(asked) > 0.98


def test_what_is_not_sound_is_left_to_integration():
    """Coefficients that add up to more than E[φ²] are not believed."""
    one = torch.ones(1, dtype=torch.float64)
    phi = expression("exp(-abs(x))")
    assert bool(long_series(phi, one, one, 0.95 * one, 0.1 * one)[2])
    wrong = lambda core, tau, terms: 1.001 * hermite_coefficients(core, tau, terms)  # noqa: E731
    with mock.patch("notsodeep.gaussian.hermite.hermite_coefficients", wrong):
        assert not bool(long_series(phi, one, one, 0.95 * one, 0.1 * one)[2])


def test_too_close_to_one_is_left_to_integration():
    one = torch.ones(3, dtype=torch.float64)
    rho = torch.tensor([0.9, 0.97, 0.9999], dtype=torch.float64)
    assert long_series(expression("exp(-abs(x))"), one, one, rho, 0.1 * one)[2].tolist() == [True, True, False]
