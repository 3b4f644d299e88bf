"""Designs by family: known values, exact matches, honest refusals."""

import math

import pytest
import torch

import notsodeep as nsd
from notsodeep.activations.mixed import kinds_of
from notsodeep.matching.design import FAMILIES
from notsodeep.matching.families import HardTanhFamily, LeakyReluFamily, QuadraticFamily
from notsodeep.matching.solve import matching, nearest


def slopes(layer):
    core = layer.inner if isinstance(layer, nsd.Centred) else layer
    return core.positive, core.negative


@pytest.mark.parametrize(("var_a", "a", "c"), [(0.2, 0.76429668, 1.19648533), (0.1, 0.78039672, 1.18780692)])
def test_hard_tanh_for_tanh_has_the_known_parameters(var_a, a, c):
    found = nsd.design(nsd.Implicit("tanh", var_a), family="hard_tanh")
    (layer,) = found.explicit.layers
    assert (layer.a, layer.c) == pytest.approx((a, c), abs=1e-7)
    assert found.residual < 1e-12


def test_leaky_relu_for_relu_is_the_known_solution_up_to_scale():
    """(a1, b1)·s, (a2, b2)/s, with s fixed by τ̃_1 = τ0."""
    known = (1.21686821, 0.00481809, 0.94332148, 0.55896751)
    found = nsd.design(nsd.Implicit("relu", 0.2), family="leaky_relu")
    (a1, b1), (a2, b2) = (slopes(layer) for layer in found.explicit.layers)
    scale = a1 / known[0]
    assert (b1 / scale, a2 * scale, b2 * scale) == pytest.approx(known[1:], abs=1e-7)
    assert found.explicit.deviations(1.0)[1] == pytest.approx(1.0, rel=1e-12)
    assert found.residual < 1e-12


@pytest.mark.parametrize("tau0", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("name", ["relu", "leaky_relu:0.01", "leaky_relu:0.3", "abs"])
def test_every_rectifier_has_a_two_layer_match(name, tau0):
    found = nsd.design(nsd.Implicit(name, 0.2), tau0=tau0, family="leaky_relu")
    assert found.residual <= 1e-8
    for key in ("gamma", "alpha1", "alpha2", "alpha3"):
        assert getattr(found.scalars, key) == pytest.approx(getattr(found.target, key), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("match", ["conjugate", "tangent"])
@pytest.mark.parametrize("name", ["tanh", "erf", "arctan", "softsign", "sin"])
def test_hard_tanh_matches_odd_bounded_activations_for_both_kernels(name, match):
    found = nsd.design(nsd.Implicit(name, 0.15), family="hard_tanh", match=match)
    assert found.residual <= 1e-8


@pytest.mark.parametrize(
    ("name", "family", "depth"),
    [("linear", "leaky_relu", 1), ("tanh", "hard_tanh", 1), ("relu", "leaky_relu", 2), ("elu", "hermite:40", 1)],
)
def test_matched_is_the_shallowest_family_that_matches(name, family, depth):
    found = nsd.design(nsd.Implicit(name, 0.2), family="matched")
    assert (found.family, found.explicit.depth) == (family, depth)


@pytest.mark.parametrize(
    ("name", "family", "instead"),
    [
        ("relu", "hard_tanh", "leaky_relu"),
        ("tanh", "leaky_relu", "hard_tanh"),
        ("relu", "quadratic", "leaky_relu"),
        ("elu", "leaky_relu", "fitted:2:matched"),
        ("elu", "fitted:matched", "fitted:2:matched"),
    ],
)
def test_a_family_that_cannot_match_says_so_with_numbers_and_a_family_that_can(name, family, instead):
    net = nsd.Implicit(name, 0.2)
    with pytest.raises(nsd.NoMatch) as caught:
        nsd.design(net, family=family)
    error = caught.value
    assert error.residual > 1e-8
    assert error.suggestion == instead
    assert instead in str(error)
    assert set(error.target) == {"gamma", "alpha1", "alpha2", "alpha3"}
    assert error.target["gamma"] == pytest.approx(nsd.scalars(net, 1.0).gamma)
    worst = max(abs(error.reached[key] - error.target[key]) for key in error.target)
    assert worst > 1e-9
    assert nsd.design(net, family=instead).residual < 1e-8


def test_two_layer_leaky_relu_condition():
    """A match exists exactly when α2 = (γ²/τ0² − α1)/((2π − 4)τ0²)."""
    for name, matches in [("relu", True), ("leaky_relu:0.2", True), ("elu", False), ("silu", False), ("tanh", False)]:
        s = nsd.scalars(nsd.Implicit(name, 0.2), 1.0)
        predicted = (s.gamma**2 - s.alpha1) / (2.0 * math.pi - 4.0)
        assert (abs(predicted - s.alpha2) < 1e-12) == matches


def test_unknown_names():
    net = nsd.Implicit("relu", 0.2)
    with pytest.raises(nsd.BadInput, match="no family"):
        nsd.design(net, family="cubic")
    with pytest.raises(nsd.BadInput, match="no match 'neural'; choose from conjugate, tangent, both"):
        nsd.design(net, match="neural")
    with pytest.raises(nsd.BadInput, match="not a number of terms"):
        nsd.design(net, family="hermite:many")
    with pytest.raises(nsd.BadInput, match="2 to 200 terms"):
        nsd.design(net, family="hermite:1")
    with pytest.raises(nsd.BadInput, match="starts from an Implicit"):
        nsd.design(nsd.Explicit("relu"))
    with pytest.raises(nsd.BadInput, match="centre=True"):
        nsd.design(nsd.Implicit("relu", 0.2, centre=False))
    assert set(FAMILIES) == {"hard_tanh", "leaky_relu", "quadratic"}


def test_every_layer_of_a_design_is_centred():
    for name in ("relu", "tanh", "silu"):
        found = nsd.design(nsd.Implicit(name, 0.2), tau0=0.8)
        taus = found.explicit.deviations(0.8)
        for layer, tau in zip(found.explicit.layers, taus, strict=False):
            for kind in kinds_of(layer):
                assert abs(float(nsd.theory.moments(kind, torch.tensor(tau, dtype=torch.float64)).mean)) < 1e-12


@pytest.mark.parametrize("match", ["conjugate", "tangent"])
@pytest.mark.parametrize("tau0", [0.7, 1.0])
@pytest.mark.parametrize(
    ("family", "explicit"),
    [
        (LeakyReluFamily(1), ["leaky_relu:0.3"]),
        (LeakyReluFamily(2), ["leaky_relu:0.2", "leaky_relu:0.6"]),
        (LeakyReluFamily(2), ["relu", "abs"]),
        (QuadraticFamily(), ["quadratic:0.2,0.7", "quadratic:0.3,0.4"]),
        (HardTanhFamily(), ["hard_tanh:0.8,1.1"]),
        (HardTanhFamily(), ["hard_tanh:0.8,0.02"]),
    ],
)
def test_a_member_of_a_family_is_among_its_candidates(family, explicit, tau0, match):
    """Whatever scale moves between its layers: the closed forms find a network with the same four scalars."""
    target = nsd.scalars(nsd.Explicit(explicit).centred(tau0), tau0)
    found = matching(family, target, match)
    assert found is not None
    assert found.residual < 1e-12


@pytest.mark.parametrize("match", ["conjugate", "tangent"])
@pytest.mark.parametrize("family", [LeakyReluFamily(1), LeakyReluFamily(2), QuadraticFamily(), HardTanhFamily()])
def test_where_no_candidate_matches_no_start_of_the_search_does(family, match):
    for phi in ("softplus", "relu"):
        target = nsd.scalars(nsd.Implicit(phi, 0.15), 1.0)
        assert (matching(family, target, match) is None) == (not nearest(family, target, match).matches)
