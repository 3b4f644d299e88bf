"""What holds for the scalars of every DEQ."""

import math
import warnings

import pytest
import torch

import notsodeep as nsd
from notsodeep.gaussian import moments

NAMES = ["tanh", "relu", "leaky_relu:0.1", "elu", "silu", "erf", "arctan", "softplus"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tau0", [0.3, 1.0, 4.0])
def test_tau_star_solves_the_variance_equation(name, tau0):
    net = nsd.Implicit(name, 0.15, 0.7)
    tau = nsd.scalars(net, tau0).tau
    at = moments(net.centred(tau0).phi, torch.tensor(tau, dtype=torch.float64))
    assert tau**2 == pytest.approx(0.15 * float(at.gamma2) + 0.7 * tau0**2, rel=1e-13)
    assert abs(float(at.mean)) < 1e-13


@pytest.mark.parametrize("name", NAMES)
def test_preactivation_kernel_is_affine_in_the_tangent_kernel(name):
    """K = σ_a² Θ + σ_b² S, so their coefficients agree up to the c1 of S."""
    net = nsd.Implicit(name, 0.15, 0.7)
    s = nsd.scalars(net, 1.3)
    theta, pre = s.tangent, s.preactivation
    assert pre.c1 == pytest.approx(net.var_a * theta.c1 + net.var_b, rel=1e-12)
    assert pre.c2 == pytest.approx(net.var_a * theta.c2, rel=1e-12, abs=1e-30)
    assert pre.c3 == pytest.approx(net.var_a * theta.c3, rel=1e-12, abs=1e-30)
    assert pre.d == pytest.approx(net.var_a * theta.d + net.var_b * s.tau0**2, rel=1e-12)


def test_violated_contraction_bound_warns_and_names_it():
    with pytest.warns(nsd.NumericsWarning, match=r"0\.25 = 1/\(4L²\)"):
        found = nsd.scalars(nsd.Implicit("relu", 0.4), 1.0)
    assert math.isfinite(found.alpha1)


def test_no_warning_below_the_bound():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nsd.scalars(nsd.Implicit("relu", 0.24), 1.0)


def test_no_fixed_point_raises_with_both_sides_and_the_largest_admissible():
    with pytest.raises(nsd.NotContractive, match="no equilibrium") as caught:
        nsd.scalars(nsd.Implicit("relu", 3.0, 1.0), 1.0)
    largest = 1.0 / (0.5 - 0.5 / math.pi)
    assert caught.value.left == 3.0
    assert caught.value.right == pytest.approx(largest, rel=1e-6)
    assert caught.value.largest_var_a == pytest.approx(largest, rel=1e-6)
    with pytest.warns(nsd.NumericsWarning):
        assert math.isfinite(nsd.scalars(nsd.Implicit("relu", 0.99 * largest, 1.0), 1.0).tau)


def test_infinite_gradient_leaves_the_conjugate_kernel():
    """σ_a² E[φ'²] ≥ 1 > σ_a² E[φ']²: there is a CK but no NTK."""
    with pytest.warns(nsd.NumericsWarning):
        found = nsd.scalars(nsd.Implicit("sign", 0.2), 1.0)
    assert math.isinf(found.kappa)
    assert math.isfinite(found.alpha1)


def test_uncentred_activation_is_named():
    with pytest.warns(nsd.NumericsWarning, match="not centred"):
        nsd.scalars(nsd.Implicit("relu", 0.2, centre=False), 1.0)


@pytest.mark.parametrize("bad", [0.0, -0.1, float("nan"), float("inf"), "a", None])
def test_bad_var_a(bad):
    with pytest.raises(nsd.BadInput, match="var_a"):
        nsd.Implicit("relu", bad)


def test_var_b_defaults_to_the_rest_and_is_asked_for_where_that_is_not_positive():
    assert nsd.Implicit("relu", 0.2).var_b == pytest.approx(0.8)
    with pytest.raises(nsd.BadInput, match="give var_b"):
        nsd.Implicit("relu", 1.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_bad_tau0(bad):
    with pytest.raises(nsd.BadInput, match="tau0"):
        nsd.scalars(nsd.Implicit("relu", 0.2), bad)
