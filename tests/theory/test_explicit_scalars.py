"""The layer recursions of explicit networks."""

import math

import pytest

import notsodeep as nsd


def test_linear_network_keeps_the_gram_matrix():
    s = nsd.scalars(nsd.Explicit(["linear", "linear"]), 1.7)
    assert (s.alpha1, s.alpha2, s.alpha3, s.alpha4) == pytest.approx((1.0, 0.0, 0.0, 1.0))
    assert s.gamma == pytest.approx(1.7)
    assert s.beta1 == pytest.approx(3.0)  # one S for each of the three weight matrices
    assert s.kappa == pytest.approx(1.7 * math.sqrt(3.0))


def test_one_layer_of_centred_relu_by_hand():
    """E[σ'] = ½, E[σ''] = 1/(τ√2π), E[σ²] = τ²(½ − 1/2π)."""
    tau0 = 1.3
    s = nsd.scalars(nsd.Explicit("relu").centred(tau0), tau0)
    curvature = 1.0 / (tau0 * math.sqrt(2.0 * math.pi))
    assert s.alpha1 == pytest.approx(0.25)
    assert s.alpha2 == pytest.approx(0.25 * curvature**2)
    assert s.alpha3 == pytest.approx(0.5 * curvature**2)
    assert s.gamma**2 == pytest.approx(tau0**2 * (0.5 - 0.5 / math.pi))
    assert s.beta1 == pytest.approx(0.5)
    assert s.kappa**2 == pytest.approx(s.gamma**2 + 0.5 * tau0**2)


def test_one_layer_forces_alpha2_to_half_of_alpha3():
    for name in ("relu", "silu", "elu", "quadratic"):
        s = nsd.scalars(nsd.Explicit(name).centred(0.9), 0.9)
        assert s.alpha2 == pytest.approx(0.5 * s.alpha3, rel=1e-12)


def test_layers_are_the_scalars_of_the_shorter_networks():
    net = nsd.Explicit(["relu", "tanh", "silu"]).centred(1.1)
    s = nsd.scalars(net, 1.1)
    assert len(s.layers) == 3
    for depth in (1, 2, 3):
        shorter = nsd.scalars(nsd.Explicit(net.layers[:depth]), 1.1)
        assert s.layers[depth - 1].alpha3 == shorter.alpha3
        assert s.layers[depth - 1].kappa == shorter.kappa


def test_needs_a_layer_and_a_network():
    with pytest.raises(nsd.BadInput, match="at least one hidden layer"):
        nsd.Explicit([])
    with pytest.raises(nsd.BadInput, match="got str"):
        nsd.scalars("relu", 1.0)
