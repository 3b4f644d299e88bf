"""What every dual map obeys, whatever the activation and wherever it is asked."""

import math

import torch
from hypothesis import given, settings, strategies as st

from notsodeep.gaussian import dual_map
from notsodeep.gaussian.moments import moments_at
from tests.gaussian.scales import ROUND_OFF, float64
from tests.zoo import ACTIVATIONS, CUSTOM, JUMPING, OSCILLATING, build

NATIVE = [name for name in ACTIVATIONS if name not in CUSTOM]
names = st.sampled_from(NATIVE)
continuous = st.sampled_from([name for name in NATIVE if name not in JUMPING])
deviations = st.floats(-3.0, 3.0).map(lambda power: 10.0**power)
correlations = st.one_of(st.floats(-1.0, 1.0), st.sampled_from([-1.0, 0.0, 1.0, 1.0 - 1e-9, -1.0 + 1e-6]))
many = settings(max_examples=80)


def at(name, tau_i, tau_j, rho):
    phi = build(name)
    value, slope = dual_map(
        phi, float64(tau_i), float64(tau_j), float64(rho * (tau_i * tau_j))
    )  # the same λ with τ_i and τ_j swapped
    m_i, m_j = moments_at(phi, tau_i), moments_at(phi, tau_j)
    return float(value), float(slope), math.sqrt(m_i.gamma2 * m_j.gamma2), math.sqrt(m_i.q * m_j.q)


@many
@given(names, deviations, deviations, correlations)
def test_cauchy_schwarz(name, tau_i, tau_j, rho):
    """|k| ≤ √(E[φ²(τ_iξ)] E[φ²(τ_jξ)]) and |Q| ≤ √(E[φ'²(τ_iξ)] E[φ'²(τ_jξ)])."""
    value, slope, value_limit, slope_limit = at(name, tau_i, tau_j, rho)
    assert abs(value) <= value_limit * (1.0 + ROUND_OFF)
    assert abs(slope) <= slope_limit * (1.0 + ROUND_OFF)


@many
@given(names, deviations, deviations, correlations)
def test_symmetry(name, tau_i, tau_j, rho):
    """Integration treats u and v differently; the result must not."""
    value, slope, value_scale, slope_scale = at(name, tau_i, tau_j, rho)
    swapped_value, swapped_slope, _, _ = at(name, tau_j, tau_i, rho)
    assert abs(value - swapped_value) <= ROUND_OFF * value_scale
    if math.isfinite(slope_scale):
        assert abs(slope - swapped_slope) <= ROUND_OFF * slope_scale


@many
@given(names, deviations, deviations, st.floats(-0.8, 0.8))
def test_slope_is_the_derivative_in_the_covariance(name, tau_i, tau_j, rho):
    """By differences of fourth order in λ: h⁴ against round-off/h, both near 1e-10 for h = 1e-3·τ_iτ_j."""
    phi = build(name)
    product = tau_i * tau_j
    if name in OSCILLATING and product > 1.0:  # k varies on the scale of 1, not of τ_i τ_j
        tau_i, tau_j, product = 1.0, 0.5, 0.5
    h = 1e-3 * product
    steps = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    value, slope = dual_map(phi, float64(tau_i), float64(tau_j), rho * product + h * steps)
    difference = float(8.0 * (value[3] - value[1]) - (value[4] - value[0])) / (12.0 * h)
    scale = math.sqrt(moments_at(phi, tau_i).gamma2 * moments_at(phi, tau_j).gamma2) / product
    assert abs(float(slope[2]) - difference) <= 1e-8 * scale


@many
@given(continuous, deviations, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_value_grows_with_the_correlation(name, tau, first, second):
    """At equal deviations k = Σ c_k² ρ^k, with non-negative coefficients: increasing for ρ ≥ 0, as is its slope."""
    low, high = sorted((first, second))
    phi, square = build(name), tau * tau
    value, slope = dual_map(phi, float64(tau), float64(tau), float64(low, high).mul(square))
    limits = moments_at(phi, tau)
    assert float(value[1] - value[0]) >= -ROUND_OFF * float(limits.gamma2)
    assert float(slope[1] - slope[0]) >= -ROUND_OFF * float(limits.q)


@many
@given(names, deviations, deviations)
def test_independent_samples(name, tau_i, tau_j):
    """ρ = 0: k = E[φ(u)] E[φ(v)] and Q = E[φ'(u)] E[φ'(v)]."""
    value, slope, value_scale, slope_scale = at(name, tau_i, tau_j, 0.0)
    m_i, m_j = moments_at(build(name), tau_i), moments_at(build(name), tau_j)
    assert abs(value - float(m_i.mean * m_j.mean)) <= ROUND_OFF * value_scale
    assert abs(slope - float(m_i.e1 * m_j.e1)) <= ROUND_OFF * min(slope_scale, value_scale / (tau_i * tau_j))


@given(st.lists(st.floats(0.05, 20.0), min_size=2, max_size=6), st.integers(0, 2**31), continuous)
def test_kernel_matrices_are_positive_semidefinite(norms, seed, name):
    """Samples with any norms and angles: E[φ(u_i)φ(u_j)] is a Gram matrix."""
    phi = build(name)
    x = torch.randn(len(norms), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = x / x.norm(dim=1, keepdim=True) * float64(*norms)[:, None]
    tau = x.norm(dim=1)
    value, _ = dual_map(phi, tau[:, None], tau[None, :], x @ x.T)
    lowest = float(torch.linalg.eigvalsh(0.5 * (value + value.T))[0])
    assert lowest >= -1e-11 * float(value.diagonal().sum())
