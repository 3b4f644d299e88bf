"""Closed forms of the dual map against the same formulas in 50 digits: where do they lose digits?"""

import math

import mpmath
import pytest

from notsodeep.gaussian import dual_map
from notsodeep.gaussian.moments import moments_at
from tests.gaussian.scales import ROUND_OFF
from tests.zoo import build

PAIRS = [(1e-3, 1e-3), (0.7, 1.9), (1.0, 1.0), (3e-3, 300.0), (31.0, 30.0), (1e3, 1e3), (1001.0, 999.7)]
EPS = 2.0**-52


def trigonometric(tau_i, tau_j, lam):
    """(E[sin u sin v], E[cos u cos v])."""
    spread = (tau_i**2 + tau_j**2) / 2
    return (mpmath.exp(lam - spread) - mpmath.exp(-lam - spread)) / 2, (
        mpmath.exp(lam - spread) + mpmath.exp(-lam - spread)
    ) / 2


def rectifier(alpha, beta):
    def value_and_slope(tau_i, tau_j, lam):
        product = tau_i * tau_j
        slope = alpha**2 + beta**2 * 2 / mpmath.pi * mpmath.asin(lam / product)
        return lam * slope + beta**2 * 2 / mpmath.pi * mpmath.sqrt(product**2 - lam**2), slope

    return value_and_slope


def erf(tau_i, tau_j, lam):
    determinant = (1 + 2 * tau_i**2) * (1 + 2 * tau_j**2)
    return 2 / mpmath.pi * mpmath.asin(2 * lam / mpmath.sqrt(determinant)), 4 / mpmath.pi / mpmath.sqrt(
        determinant - 4 * lam**2
    )


def gaussian(tau_i, tau_j, lam):
    determinant = (1 + tau_i**2) * (1 + tau_j**2) - lam**2
    return determinant ** mpmath.mpf(-0.5), lam * determinant ** mpmath.mpf(-1.5)


def gelu(tau_i, tau_j, lam):
    """k = E[uv Φ(u)Φ(v)] by Stein, and Q = dk/dλ by numerical differentiation in 50 digits."""

    def value(covariance):
        a, b = 1 + tau_i**2, 1 + tau_j**2
        gap = a * b - covariance**2
        orthant = mpmath.mpf(1) / 4 + mpmath.asin(covariance / mpmath.sqrt(a * b)) / (2 * mpmath.pi)
        bump = 1 / (2 * mpmath.pi * mpmath.sqrt(gap))
        return covariance * orthant + bump * ((tau_i * tau_j) ** 2 - covariance**2 + (1 / a + 1 / b) * covariance**2)

    return value(lam), mpmath.diff(value, lam)


EXACT = {
    "sin": trigonometric,
    "cos": lambda *at: trigonometric(*at)[::-1],
    "relu": rectifier(mpmath.mpf("0.5"), mpmath.mpf("0.5")),
    "abs": rectifier(0, 1),
    "leaky_relu:0.1": rectifier((1 + mpmath.mpf(0.1)) / 2, (1 - mpmath.mpf(0.1)) / 2),
    "erf": erf,
    "gaussian": gaussian,
    "gelu": gelu,
}


def gap_to_exact(name, tau_i, tau_j, lam):
    """Errors of k and Q relative to √(E[φ²]E[φ²]) and √(E[φ'²]E[φ'²])."""
    phi = build(name)
    found = dual_map(phi, tau_i, tau_j, lam)
    with mpmath.workdps(50):
        exact = EXACT[name](*map(mpmath.mpf, (tau_i, tau_j, lam)))
        gaps = [abs(float(mpmath.mpf(float(one)) - mpmath.re(other))) for one, other in zip(found, exact, strict=True)]
    at_i, at_j = moments_at(phi, tau_i), moments_at(phi, tau_j)
    return gaps[0] / math.sqrt(at_i.gamma2 * at_j.gamma2), gaps[1] / math.sqrt(at_i.q * at_j.q)


@pytest.mark.parametrize("rho", [-0.999, -0.5, 0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize(("tau_i", "tau_j"), PAIRS)
@pytest.mark.parametrize("name", EXACT)
def test_closed_forms(name, tau_i, tau_j, rho):
    value, slope = gap_to_exact(name, tau_i, tau_j, rho * tau_i * tau_j)
    # One rounding of τ_i τ_j moves the exponent of sin and cos by ε τ_i τ_j: no float64 formula can do better.
    rounding = EPS * tau_i * tau_j if name in ("sin", "cos") else 0.0
    assert value <= ROUND_OFF + rounding
    assert slope <= ROUND_OFF + rounding


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", ["relu", "abs", "leaky_relu:0.1", "erf", "gaussian", "gelu"])
def test_values_keep_their_digits_close_to_full_correlation(name, sign):
    """Two almost equal samples. dk/dλ = Q is finite, so k is well conditioned up to |ρ| = 1; Q need not be."""
    worst = max(
        gap_to_exact(name, tau_i, tau_j, sign * tau_i * tau_j * (1.0 - gap))[0]
        for tau_i, tau_j in ((0.7, 1.9), (1.1, 1.3), (0.3, 7.7))
        for gap in (1e-6, 1e-9, 1e-11, 1e-13)
    )
    assert worst <= 1e-14


@pytest.mark.parametrize("rho", [-1.0, 1.0])
@pytest.mark.parametrize("name", EXACT)
def test_closed_forms_at_full_correlation(name, rho):
    for tau_i, tau_j in ((1.0, 1.0), (0.5, 4.0), (2.0**-10, 2.0**10), (1024.0, 1024.0)):
        value, slope = gap_to_exact(name, tau_i, tau_j, rho * tau_i * tau_j)
        assert value <= ROUND_OFF
        assert slope <= ROUND_OFF


@pytest.mark.parametrize("rho", [-0.99, -0.5, 0.0, 0.3, 0.9])
def test_sign(rho):
    """(2/π) arcsin ρ, with slope 2/(π √(τ_i²τ_j² − λ²))."""
    value, slope = dual_map(build("sign"), 0.7, 1.9, rho * 0.7 * 1.9)
    assert float(value) == pytest.approx(2.0 / math.pi * math.asin(rho), rel=1e-13, abs=1e-15)
    assert float(slope) == pytest.approx(2.0 / math.pi / (0.7 * 1.9 * math.sqrt(1.0 - rho**2)), rel=1e-13)
