"""Hermite coefficients c_k(τ) = E[φ(τξ) h_k(ξ)]."""

import math

import mpmath
import pytest
import torch

from notsodeep.activations import Centred, HardTanh, HermiteSeries, Scaled, activation, custom
from notsodeep.gaussian import dual_map, hermite_coefficients, moments
from notsodeep.gaussian.hermite import _by_quadrature, power_series
from tests.gaussian.scales import ROUND_OFF, float64
from tests.zoo import ACTIVATIONS, JUMPING, OSCILLATING, POLYNOMIAL, SMOOTH, build, each

TAUS = float64(0.05, 0.3, 1.0, 2.0)


@each()
def test_the_first_coefficients_are_moments(name):
    """c_0 = E[φ], c_1 = τ E[φ'], c_2 = τ² E[φ'']/√2, c_3 = τ³ E[φ''']/√6."""
    phi = build(name)
    c, at = hermite_coefficients(phi, TAUS, 4), moments(phi, TAUS)
    expected = [at.mean, TAUS * at.e1, TAUS.square() * at.e2 / 2**0.5, TAUS**3 * at.e3 / 6**0.5]
    expected = torch.stack(expected, dim=-1)
    assert ((c - expected).abs() <= ROUND_OFF * at.gamma2.sqrt()[:, None]).all()


@each(tuple(name for name in SMOOTH if name not in ("erf", "arctan")))
def test_parseval(name):
    """Σ c_k² = E[φ²] and Σ k c_k² = τ² E[φ'²], once the series is complete (τ well below the radius of analyticity)."""
    phi, tau = build(name), float64(0.05, 0.2)
    power = hermite_coefficients(phi, tau, 160).square()
    at = moments(phi, tau)
    degrees = torch.arange(160, dtype=torch.float64)
    torch.testing.assert_close(power.sum(-1), at.gamma2, rtol=1e-12, atol=0.0)
    slope_gap = ((degrees * power).sum(-1) - tau.square() * at.q).abs()
    assert (slope_gap <= ROUND_OFF * at.gamma2.clamp(min=0.0) + ROUND_OFF * tau.square() * at.q).all()


@each()
def test_bessel(name):
    """No sum of squares exceeds E[φ²], and 256 terms hold nearly all of it even for a kink or a jump."""
    phi = build(name)
    tau = TAUS[:3]
    sums = hermite_coefficients(phi, tau, 256).square().cumsum(-1)
    share = sums / moments(phi, tau).gamma2.clamp(min=1e-300)[:, None]
    assert float(share.max()) <= 1.0 + ROUND_OFF
    if name != "uneven_hinge":  # at τ = 0.05 all of it is six deviations out
        # A jump leaves a share of order K^(−1/2), a kink of K^(−3/2).
        assert float(share[..., -1].min()) >= (0.9 if name in JUMPING else 0.999)


def rectifier_coefficient(k: int) -> float:
    """E[max(ξ, 0) h_k(ξ)]: 1/√(2π), 1/2, then He_{k−2}(0)/√(2π k!), which is 0 for odd k."""
    if k == 0:
        return 1.0 / math.sqrt(2.0 * math.pi)
    if k == 1:
        return 0.5
    if k % 2:
        return 0.0
    with mpmath.workdps(30):
        double = mpmath.fac2(k - 3)
        return float((-1) ** ((k - 2) // 2) * double / mpmath.sqrt(2 * mpmath.pi * mpmath.factorial(k)))


@pytest.mark.parametrize("terms", [2, 40, 256])
def test_relu(terms):
    tau = float64(1e-3, 1.0, 1e3)
    expected = float64(*(rectifier_coefficient(k) for k in range(terms)))
    found = hermite_coefficients(build("relu"), tau, terms) / tau[:, None]
    torch.testing.assert_close(found, expected.expand(3, -1), rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("terms", [8, 128])
def test_sign(terms):
    """c_k = 2 He_{k−1}(0)/√(2π k!) for odd k, whatever τ."""
    with mpmath.workdps(30):
        exact = [
            float((-1) ** ((k - 1) // 2) * 2 * mpmath.fac2(k - 2) / mpmath.sqrt(2 * mpmath.pi * mpmath.factorial(k)))
            if k % 2
            else 0.0
            for k in range(terms)
        ]
    found = hermite_coefficients(build("sign"), float64(0.01, 30.0), terms)
    torch.testing.assert_close(found, float64(*exact).expand(2, -1), rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("tau", [0.1, 1.0, 3.0])
def test_sine_and_cosine(tau):
    """E[e^{iτξ} h_k] = e^{−τ²/2} (iτ)^k/√k!."""
    size = [math.exp(-0.5 * tau**2) * tau**k / math.sqrt(math.factorial(k)) for k in range(60)]
    sine = float64(*(size[k] * (0.0, 1.0, 0.0, -1.0)[k % 4] for k in range(60)))
    cosine = float64(*(size[k] * (1.0, 0.0, -1.0, 0.0)[k % 4] for k in range(60)))
    torch.testing.assert_close(hermite_coefficients(build("sin"), float64(tau), 60), sine, rtol=0.0, atol=1e-14)
    torch.testing.assert_close(hermite_coefficients(build("cos"), float64(tau), 60), cosine, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("degree", [1, 3, 7, 20])
def test_tanh(degree):
    """From the definition, by mpmath."""
    with mpmath.workdps(30):
        norm = mpmath.sqrt(mpmath.factorial(degree))
        exact = mpmath.quad(
            lambda x: mpmath.tanh(x) * mpmath.hermite(degree, x / mpmath.sqrt(2)) * mpmath.npdf(x),
            [-14, -8, -4, -2, -1, 0, 1, 2, 4, 8, 14],
        ) / (norm * mpmath.mpf(2) ** (mpmath.mpf(degree) / 2))
    found = hermite_coefficients(build("tanh"), float64(1.0), degree + 1)[-1]
    assert float(found) == pytest.approx(float(exact), rel=0.0, abs=1e-14)


@pytest.mark.parametrize("degree", [1, 3, 7, 20, 21])
@pytest.mark.parametrize(("a", "c", "tau"), [(1.0, 1.0, 1.0), (0.7, 0.3, 2.0), (-2.0, 4.0, 0.9)])
def test_hard_tanh(degree, a, c, tau):
    """From the definition, by mpmath."""
    with mpmath.workdps(30):
        norm = mpmath.sqrt(mpmath.factorial(degree) * mpmath.mpf(2) ** degree)
        at = c / tau
        exact = mpmath.quad(
            lambda x: a * max(min(tau * x, c), -c) * mpmath.hermite(degree, x / mpmath.sqrt(2)) * mpmath.npdf(x) / norm,
            sorted({-14, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 14, at, -at}),
        )
    found = hermite_coefficients(HardTanh(a, c), float64(tau), degree + 1)[-1]
    assert float(found) == pytest.approx(float(exact), rel=0.0, abs=1e-14 * abs(a) * max(c, tau))


@pytest.mark.parametrize("terms", [1, 2, 3, 16, 256])
def test_hard_tanh_is_as_quadrature_has_it(terms):
    phi, tau = HardTanh(1.3, 0.8), torch.logspace(-2, 2, 41, dtype=torch.float64)
    by_quadrature = _by_quadrature(phi, tau, terms)
    found = hermite_coefficients(phi, tau, terms)
    assert found.shape == (41, terms)
    assert float((found - by_quadrature).abs().max()) <= 4e-15


def test_hard_tanh_of_thresholds_out_of_reach():
    """Linear where the threshold is far away, and nothing left of a deviation that stands for 0."""
    found = hermite_coefficients(HardTanh(2.0, 1e200), float64(1e-150, 1.0, 1e3), 64)
    torch.testing.assert_close(found[:, 1], float64(2e-150, 2.0, 2e3), rtol=1e-15, atol=0.0)
    assert float(found[:, 2:].abs().max()) == 0.0


@each(("tanh", "erf", "sin", "softsign", "sign", "hard_tanh"))
def test_odd_activations_have_odd_coefficients(name):
    even = hermite_coefficients(build(name), TAUS, 64)[..., ::2]
    assert float(even.abs().max()) == 0.0


@pytest.mark.parametrize("terms", [4, 60, 150, 200, 300])
def test_a_hermite_series_has_its_own_coefficients(terms):
    """Also long ones: a design may ask for hundreds of terms."""
    own = torch.randn(terms, dtype=torch.float64, generator=torch.Generator().manual_seed(terms))
    own = own / (1.0 + torch.arange(terms)) ** 1.5
    phi = HermiteSeries(tuple(own.tolist()), scale=0.8)
    torch.testing.assert_close(hermite_coefficients(phi, float64(0.8), terms), own, rtol=0.0, atol=1e-12)
    rho = 0.7
    expected = float((own.square() * rho ** torch.arange(terms, dtype=torch.float64)).sum())
    assert float(dual_map(phi, 0.8, 0.8, rho * 0.64)[0]) == pytest.approx(expected, rel=1e-12)


@each(POLYNOMIAL)
def test_a_polynomial_has_no_coefficient_beyond_its_degree(name):
    phi = build(name)
    c = hermite_coefficients(phi, TAUS, 12)
    scale = moments(phi, TAUS).gamma2.sqrt()
    assert float((c[..., phi.degree + 1 :].abs().amax(-1) / scale).max()) <= 1e-13


@each(tuple(name for name in ACTIVATIONS if name not in OSCILLATING))
def test_wrappers_are_affine_in_the_coefficients(name):
    phi = build(name)
    plain = hermite_coefficients(phi, TAUS, 9)
    wrapped = hermite_coefficients(Centred(Scaled(phi, -2.0), 0.3), TAUS, 9)
    expected = -2.0 * plain
    expected[..., 0] -= 0.3
    torch.testing.assert_close(wrapped, expected, rtol=1e-13, atol=1e-15)


def test_shapes():
    tau = TAUS.reshape(2, 2)
    assert hermite_coefficients(build("gelu"), tau, 5).shape == (2, 2, 5)
    assert hermite_coefficients(build("gelu"), tau[0, 0], 1).shape == (1,)


@pytest.mark.parametrize("odd", [False, True])
def test_power_series_is_the_sum(odd):
    generator = torch.Generator().manual_seed(3)
    left, right = torch.randn(2, 4, 11, dtype=torch.float64, generator=generator)
    if odd:  # summed in powers of ρ²
        left[:, ::2] = right[:, ::2] = 0.0
    rho = float64(-1.0, -0.3, 0.0, 0.8)
    degrees = torch.arange(11, dtype=torch.float64)
    powers = rho[:, None] ** degrees
    lower = rho[:, None] ** (degrees - 1.0).clamp(min=0.0)
    value, slope = power_series(left, right, rho)
    torch.testing.assert_close(value, (left * right * powers).sum(-1), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(slope, (degrees * left * right * lower).sum(-1), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("small", [1e-8, 1e-13, 1e-18])
def test_a_function_that_hardly_varies_has_the_slopes_of_what_varies(small):
    """φ = 1 + ε tanh in float64 has few digits of ε tanh left, or none; φ' has all of them."""
    tau, rho = torch.tensor([0.7, 1.3], dtype=torch.float64), 0.6
    phi, tanh = custom(lambda x: 1.0 + small * torch.tanh(x)), activation("tanh")
    found, expected = (hermite_coefficients(each, tau, 24)[:, 1:] for each in (phi, tanh))
    assert torch.allclose(found, small * expected, rtol=0.0, atol=1e-13 * small)
    lam = rho * tau[0] * tau[1]
    slopes = [float(dual_map(each, tau[0], tau[1], lam)[1]) for each in (phi, tanh)]
    assert slopes[0] == pytest.approx(small**2 * slopes[1], rel=1e-11)


@pytest.mark.parametrize("terms", [300, 400, 512])
def test_long_hermite_series_have_their_own_coefficients(terms):
    """From some 370 terms on weights of the quadrature underflow, and what they are to be multiplied with does not."""
    given = (
        torch.randn(terms, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / (1.0 + torch.arange(terms)) ** 1.5
    )
    phi = HermiteSeries(tuple(given.tolist()), scale=1.3)
    found = hermite_coefficients(phi, torch.tensor([1.3], dtype=torch.float64), terms)[0]
    assert float((found - given).abs().max()) <= 1e-13
