"""The dual map: closed form = Hermite series = integration = brute force = Monte Carlo."""

import math

import pytest
import torch

from notsodeep.activations import Centred, custom
from notsodeep.gaussian import dual_map, moments
from notsodeep.gaussian.closed_forms import CLOSED_FORMS
from notsodeep.gaussian.hermite import hermite_coefficients, power_series
from notsodeep.gaussian.integral import conditional_dual
from notsodeep.gaussian.moments import moments_at
from tests.gaussian.brute import brute_dual
from tests.gaussian.scales import ROUND_OFF, float64
from tests.zoo import ACTIVATIONS, CONTINUOUS, CUSTOM, JUMPING, OSCILLATING, build, each

# Powers of two and their like: τ_i τ_j is exact, so that every method is asked for the same ρ, even 1e-9 from 1.
PAIRS = ((2.0**-10, 2.0**-10), (1.0, 1.0), (0.75, 1.5), (1024.0, 768.0), (2.0**-10, 1024.0))
MODERATE = ((2.0**-10, 2.0**-10), (1.0, 1.0), (0.75, 1.5))
RHOS = (-1.0, -0.999, -0.5, 0.0, 0.3, 0.9, 0.99, 1.0 - 1e-9, 1.0)
NATIVE = tuple(name for name in CONTINUOUS if name not in CUSTOM and name != "swish")
WRAPPED_AGAIN = ("leaky_relu", "hard_tanh", "−1.5·tanh", "2·silu − 0.3", "quadratic:0.5,-1,0.25")
DISTINCT = tuple(name for name in NATIVE if name not in WRAPPED_AGAIN)
"""One of each kind: what costs a second each is not asked twice of the same core."""


def grid(pairs, rhos):
    tau_i, tau_j, rho = (float64(*column) for column in zip(*((*pair, rho) for pair in pairs for rho in rhos), strict=True))
    return tau_i, tau_j, tau_i * tau_j * rho


def value_scale(phi, tau_i, tau_j):
    return (moments(phi, tau_i).gamma2 * moments(phi, tau_j).gamma2).sqrt()


def slope_scale(phi, tau_i, tau_j):
    return (moments(phi, tau_i).q * moments(phi, tau_j).q).sqrt()


def assert_same(phi, tau_i, tau_j, found, expected):
    for one, other, scale in zip(found, expected, (value_scale, slope_scale), strict=True):
        size = scale(phi, tau_i, tau_j)
        if torch.isfinite(size).all():
            assert float(((one - other).abs() / size.clamp(min=1e-300)).max()) <= ROUND_OFF, scale.__name__


@each(DISTINCT)
def test_dual_map_is_the_integral(name):
    """A closed form or a series against integration over u with φ blurred by v | u."""
    phi = build(name)
    tau_i, tau_j, lam = grid(MODERATE if name in OSCILLATING else PAIRS, RHOS)
    assert_same(phi, tau_i, tau_j, dual_map(phi, tau_i, tau_j, lam), conditional_dual(phi, tau_i, tau_j, lam))


@each(("torch.tanh", "torch.relu", "nn.SELU", "wavy", "uneven_hinge"))
def test_dual_map_of_a_function_is_the_integral(name):
    phi = build(name)
    tau_i, tau_j, lam = grid(((0.75, 1.5),), (-0.5, 0.3, 0.9))
    assert_same(phi, tau_i, tau_j, dual_map(phi, tau_i, tau_j, lam), conditional_dual(phi, tau_i, tau_j, lam))


@pytest.mark.parametrize(("function", "name"), [("torch.relu", "relu"), ("torch.tanh", "tanh")])
def test_a_function_has_the_dual_map_of_its_named_twin(function, name):
    tau_i, tau_j, lam = grid(((0.75, 1.5), (1024.0, 1024.0)), RHOS)
    ours, twin = (dual_map(build(key), tau_i, tau_j, lam) for key in (function, name))
    assert_same(build(name), tau_i, tau_j, ours, twin)


@pytest.mark.slow
@each(tuple(name for name in CUSTOM if name in CONTINUOUS))
def test_dual_map_of_a_function_is_the_integral_everywhere(name):
    phi = build(name)
    tau_i, tau_j, lam = grid(MODERATE if name in OSCILLATING else PAIRS, RHOS)
    assert_same(phi, tau_i, tau_j, dual_map(phi, tau_i, tau_j, lam), conditional_dual(phi, tau_i, tau_j, lam))


@each(DISTINCT)
@pytest.mark.parametrize(
    ("tau_i", "tau_j", "rho"),
    [(0.75, 1.5, -0.5), (1.0, 1.0, 1.0 - 1e-9), (2.0**-10, 1.5, 0.9), (48.0, 32.0, 0.99), (1.5, 1024.0, -0.999)],
)
def test_dual_map_is_the_brute_force_integral(name, tau_i, tau_j, rho):
    if name in OSCILLATING and max(tau_i, tau_j) > 2.0:
        tau_i, tau_j = min(tau_i, 1.25), min(tau_j, 2.0)
    phi = build(name)
    lam = rho * tau_i * tau_j
    found = [float(part) for part in dual_map(phi, float64(tau_i), float64(tau_j), float64(lam))]
    exact = brute_dual(phi, tau_i, tau_j, lam)
    at_i, at_j = moments_at(phi, tau_i), moments_at(phi, tau_j)
    assert abs(found[0] - exact[0]) <= ROUND_OFF * math.sqrt(at_i.gamma2 * at_j.gamma2)
    assert abs(found[1] - exact[1]) <= ROUND_OFF * math.sqrt(at_i.q * at_j.q)


@each(tuple(name for name in NATIVE if name not in OSCILLATING))
def test_closed_forms_are_their_hermite_series(name):
    """Σ_k c_k(τ_i) c_k(τ_j) ρ^k to 200 terms: |ρ| ≤ 0.8 leaves nothing of the rest."""
    phi = build(name)
    tau_i, tau_j, lam = grid(PAIRS, (-0.8, -0.5, 0.0, 0.3, 0.8))
    left, right = (hermite_coefficients(phi, tau, 200) for tau in (tau_i, tau_j))
    series, series_slope = power_series(left, right, lam / (tau_i * tau_j))
    value, slope = dual_map(phi, tau_i, tau_j, lam)
    # The coefficients, and with them either sum, are known relative to √(E[φ²]E[φ²]).
    scale = value_scale(phi, tau_i, tau_j)
    assert float(((value - series).abs() / scale).max()) <= ROUND_OFF
    assert float(((slope * tau_i * tau_j - series_slope).abs() / scale).max()) <= 100 * ROUND_OFF  # Σ k c_k² ρ^(k−1)


@each()
@pytest.mark.parametrize(("tau_i", "tau_j", "rho"), [(1.0, 1.0, 0.3), (0.75, 1.5, -0.5), (3.0, 0.2, 0.8)])
def test_dual_map_is_the_mean_over_samples(name, tau_i, tau_j, rho):
    """Monte Carlo, five standard errors: catches a wrong formula in φ, its wrappers and the integration alike."""
    phi, count = build(name), 200_000
    generator = torch.Generator().manual_seed(2024)
    xi, eta = torch.randn(2, count, dtype=torch.float64, generator=generator)
    u, v = tau_i * xi, tau_j * (rho * xi + math.sqrt(1.0 - rho**2) * eta)
    value, slope = dual_map(phi, float64(tau_i), float64(tau_j), float64(rho * tau_i * tau_j))
    with torch.no_grad():
        samples = [(phi(u) * phi(v), value)]
        if name not in JUMPING:
            samples.append((phi.derivative(u) * phi.derivative(v), slope))
    for drawn, expected in samples:
        error = float(drawn.std()) / math.sqrt(count)
        assert abs(float(drawn.mean()) - float(expected)) <= 5.0 * error + 1e-12


@each(tuple(name for name in ACTIVATIONS if name not in ("two_kinks", "lifted")))
def test_identical_samples_give_the_moments(name):
    """ρ = 1 and τ_i = τ_j: k = E[φ²] and Q = E[φ'²]; a truncated series would miss both for a kinked φ."""
    phi = build(name)
    tau = float64(2.0**-10, 0.3, 1.0, 30.0, 1e3)
    tau = tau[1:3] if name in OSCILLATING or name in CUSTOM else tau
    value, slope = dual_map(phi, tau, tau, tau.square())
    at = moments(phi, tau)
    assert float(((value - at.gamma2).abs() / at.gamma2.clamp(min=1e-300)).max()) <= ROUND_OFF
    if name in JUMPING:
        assert torch.isinf(slope).all()
    else:
        assert float(((slope - at.q).abs() / at.q.clamp(min=1e-300)).max()) <= ROUND_OFF


@each(("tanh", "relu", "softsign", "sigmoid", "elu", "quadratic", "relu − 0.4"))
def test_zero_deviation(name):
    """A sample of norm 0: u = 0, so k = φ(0) E[φ(v)]."""
    phi = build(name)
    value, _ = dual_map(phi, float64(0.0, 1.5, 0.0), float64(1.5, 0.0, 0.0), float64(0.0, 0.0, 0.0))
    at_zero = float(phi(float64(0.0)))
    mean = float(moments_at(phi, 1.5).mean)
    expected = float64(at_zero * mean, at_zero * mean, at_zero**2)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)


def test_covariances_beyond_the_limit_are_taken_at_it():
    """λ = ‖x‖² may exceed τ_i τ_j by round-off."""
    tau = float64(1.1)
    limit = dual_map(build("tanh"), tau, tau, tau * tau)
    beyond = dual_map(build("tanh"), tau, tau, tau * tau * (1.0 + 1e-12))
    assert limit == beyond


def test_arguments_broadcast_and_may_be_numbers():
    value, slope = dual_map(build("gelu"), float64(0.5, 1.0)[:, None], 1.5, float64(0.1, 0.2, 0.3))
    assert value.shape == slope.shape == (2, 3)
    single, _ = dual_map(build("gelu"), 1.0, 1.5, 0.3)
    assert float(value[1, 2]) == float(single)


def test_every_closed_form_is_in_the_zoo():
    assert set(CLOSED_FORMS) <= {type(build(name)) for name in ACTIVATIONS if name not in CUSTOM}


@pytest.mark.slow
def test_integration_stays_small_for_a_function_with_several_kinks():
    """Every kink brings its own panels, in u and in v: memory must not grow with the square of their number times the
    pairs that are integrated together. 2²⁴ float64 values are 128 MiB."""
    largest = 0

    def recording(x):
        nonlocal largest
        largest = max(largest, x.numel())
        return torch.relu(x - 0.25) + 0.5 * (x + 2.0).abs()

    phi, tau = custom(recording, name="recording"), torch.ones(3, dtype=torch.float64)
    conditional_dual(phi, tau, tau, 0.99 * tau)
    assert largest <= 2**24


@each(CONTINUOUS)
def test_covariances_keep_their_digits_at_small_correlations(name):
    """k − m_i m_j = e_i e_j λ + ½ e2_i e2_j λ² + ⅙ e3_i e3_j λ³ + …, of φ less its mean: nothing is left of the means there."""
    phi = build(name)
    tau = float64(0.8, 1.1)
    at = moments(phi, tau)
    lam = 1e-5
    expected = sum(float(getattr(at, f"e{k}").prod()) * lam**k / math.factorial(k) for k in (1, 2, 3))
    mean = float(at.mean[0])
    value, _ = dual_map(Centred(phi, mean), tau[0], tau[1], float64(lam))
    # The first factor (m_i − o) of the constant is 0 to round-off, the second one is not.
    rounding = 4e-16 * (abs(mean) + abs(float(at.mean[1]))) * abs(float(at.mean[1]) - mean)
    assert float(value) == pytest.approx(expected, rel=1e-9, abs=rounding + 1e-18 * float(at.gamma2.max()))
