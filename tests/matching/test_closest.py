"""The closest twin: fits, what "auto" chooses, gains for both kernels. Ref: docs/theory.md, section 7."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import Activation
from notsodeep.activations.combination import combined, stretched
from notsodeep.activations.mixed import kinds_of
from notsodeep.data import load
from notsodeep.errors import BadInput
from notsodeep.gaussian import dual_map
from notsodeep.kernels.exact.kernels import exact_kernel
from notsodeep.kernels.names import Match
from notsodeep.matching.fitted import Fitted, nearest
from notsodeep.matching.layers import LINE, Layers, atoms
from notsodeep.matching.pairs import Pairs


@pytest.fixture(scope="module")
def digits():
    return load("digits").x


@pytest.fixture(scope="module")
def mixture():
    return nsd.GaussianMixture.two_classes(300).sample(400, torch.Generator().manual_seed(5))[0]


def judged(found, x):
    """The gap of a design by exact kernels on samples that it has not seen."""
    tau0 = found.tau0
    return nsd.relative_gap(nsd.conjugate_kernel(found.net, x, tau0=tau0), nsd.conjugate_kernel(found.explicit, x))


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [("tanh", 3e-4, 6e-6), ("gelu", 2.1e-3, 5e-5), ("silu", 1.1e-3, 2e-5), ("relu", 2e-3, 5e-5), ("sin", 8e-4, 6e-5)],
)
def test_fits_are_close_on_samples_that_they_have_not_seen(digits, name, one, two):
    net, seen, unseen = nsd.Implicit(name, 0.2), digits[::2], digits[1::2]
    for family, most in (("fitted", one), ("fitted:2", two)):
        found = nsd.design(net, seen, family=family)
        assert judged(found, unseen) < most
        assert found.measured.gap == pytest.approx(judged(found, unseen), rel=1.0)  # measured on others of `seen`


@pytest.mark.parametrize("name", ["gelu", "x*tanh(x)"])
def test_auto_is_nearer_than_the_same_activation_times_a_factor(digits, name):
    found = nsd.design(nsd.Implicit(name, 0.2), digits[:600])
    assert found.measured.gap < 0.1 * found.measured.plain_scaled_gap
    gaps = [one.gap for one in found.candidates]
    assert found.explicit == found.candidates[0].explicit
    assert gaps[0] <= 1.05 * min(gaps)
    assert gaps[0] == pytest.approx(found.measured.gap, rel=1e-6)
    assert {"fitted", "fitted:2", "rescaled", "scaled"} <= {one.family for one in found.candidates}
    assert found.measured.samples == 300
    assert "times nearer than the DEQ's own activation, scaled" in found.summary()


def test_ties_go_to_the_simpler_network(digits):
    found = nsd.design(nsd.Implicit("linear", 0.2), digits[:300])
    assert found.explicit.depth == 1
    assert found.measured.gap < 1e-6


def test_one_layer_when_one_is_asked_for(mixture):
    found = nsd.design(nsd.Implicit("relu", 0.2), mixture, family="auto:1")
    assert {one.explicit.depth for one in found.candidates} == {1}
    with pytest.raises(BadInput, match="auto:1 and auto:2"):
        nsd.design(nsd.Implicit("relu", 0.2), mixture, family="auto:3")


@pytest.mark.parametrize(("name", "kinds", "times_the_bound"), [("gelu", 1, 1.5), ("sin", 2, 1.1)])
def test_the_proof_of_a_fit_holds_for_networks_of_its_dictionary(mixture, name, kinds, times_the_bound):
    net = nsd.Implicit(name, 0.2)
    pairs = Pairs.of(net, mixture, nsd.tau0(mixture))
    explicit, optimum = Fitted().of(pairs)
    assert 0.0 < optimum.bound <= optimum.error <= times_the_bound * optimum.bound
    assert len(kinds_of(explicit.layers[0])) == kinds <= optimum.rank
    for factor in (0.9, 1.0, 1.1):  # some of them, by their exact kernels at the same pairs
        for stretch in (0.8, 1.0, 1.2):
            other = nsd.Explicit([combined([(factor, stretched(net.phi, stretch))])]).centred(pairs.tau0)
            assert _error(other, pairs) >= optimum.bound
    assert _error(explicit, pairs) == pytest.approx(optimum.error, rel=1e-3)


def _error(explicit, pairs):
    kernel = pairs_of(explicit, pairs.norms, pairs.first, pairs.second, pairs.rho) * pairs.weights["conjugate"]
    return float(torch.linalg.vector_norm(kernel - pairs.targets["conjugate"]))


def pairs_of(explicit, norms, i, j, rho):
    """The kernel of one layer at pairs and on the diagonal, by the dual map of each kind."""
    kernels = []
    for phi in kinds_of(explicit.layers[0]):
        off, _ = dual_map(phi, norms[i], norms[j], rho * norms[i] * norms[j])
        kernels.append(torch.cat([off, dual_map(phi, norms, norms, norms.square())[0]]))
    return torch.stack(kernels).mean(0)


@pytest.mark.parametrize("kinds", [(1,), (2,), (2, 1)])
def test_the_kernels_that_a_fit_follows_are_those_of_its_network(mixture, kinds):
    net = nsd.Implicit("tanh", 0.2)
    pairs = Pairs.of(net, mixture[:60], nsd.tau0(mixture), Match.BOTH)
    layers = Layers(atoms((net.phi, LINE), pairs, free=True), kinds, pairs)
    weights = np.linspace(0.3, 0.9, 2 * sum(kinds)).reshape(-1, 2)
    unknowns = layers.start(weights)
    explicit, i, j = layers.network(unknowns), pairs.first, pairs.second
    x = mixture[torch.randperm(len(mixture[:60]), generator=torch.Generator().manual_seed(0))]  # in the order of the pairs
    conjugate, parts = layers.kernels(unknowns, tangent=True)
    assert len(parts) == len(kinds) + 1
    exact = [exact_kernel(explicit, x, None, "conjugate")]
    exact += [exact_kernel(explicit.with_gains(one), x, None, "tangent") for one in torch.eye(len(parts)).tolist()]
    for given, kernel in zip((conjugate, *parts), exact, strict=True):
        torch.testing.assert_close(given, torch.cat([kernel[i, j], kernel.diagonal()]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["tanh", "elu"])
def test_two_kinds_of_units_take_off_what_one_leaves(mixture, name):
    net = nsd.Implicit(name, 0.2)
    pairs = Pairs.of(net, mixture, nsd.tau0(mixture))
    parts = atoms((net.phi, LINE), pairs, free=True)
    (_, one), (explicit, two) = (nearest(parts, kinds, pairs) for kinds in ((1, 1), (2, 1)))
    assert two < 0.1 * one
    assert str(explicit.layers[0]).startswith("{")
    assert explicit.deviations(pairs.tau0)[1] == pytest.approx(pairs.tau0)


def test_both_kernels_with_one_network(digits):
    x = digits[:700]
    found = nsd.design(nsd.Implicit("relu", 0.2), x, match="both")
    assert found.match == "both"
    assert found.explicit.has_gains
    assert found.measured.gap < 1e-3
    assert found.measured_tangent.gap < 5e-3
    unseen = digits[-400:]
    exact, twin = (nsd.tangent_kernel(net, unseen, tau0=found.tau0) for net in (found.net, found.explicit))
    assert nsd.relative_gap(exact, twin) < 6e-3
    ungained = nsd.tangent_kernel(found.explicit.with_gains(None), unseen)
    assert nsd.relative_gap(exact, ungained) > 0.1
    assert found.to_dict()["measured_tangent"]["gap"] == found.measured_tangent.gap
    assert found.summary().count("designed") >= 2


def test_a_tangent_design_may_use_gains(mixture):
    found = nsd.design(nsd.Implicit("tanh", 0.2), mixture, match="tangent")
    assert found.measured.gap < 5e-3
    assert found.measured.gap <= 1.05 * found.measured.plain_scaled_gap  # whose factor is fitted to the judged samples


def test_the_dictionary_is_the_users_own(mixture):
    net = nsd.Implicit("tanh", 0.2)
    found = nsd.design(net, mixture, family=Fitted(1, ["x", "tanh", "erf"]))
    assert found.measured.gap < 2e-3
    two = nsd.design(net, mixture, family=Fitted(2, ["tanh", "x"]))
    assert two.family == "fitted:2"
    assert two.measured.gap < 2e-3


def test_few_samples_are_imitated_and_it_is_said(mixture):
    found = nsd.design(nsd.Implicit("silu", 0.2), mixture[:40])
    assert "there are only 40 samples" in found.note
    assert found.measured.samples == 40
    assert found.measured.gap < 5e-3


def test_without_data_matched_scalars_come_first():
    found = nsd.design(nsd.Implicit("tanh", 0.2))
    assert found.family == "rescaled"  # the nearer of the two that match
    assert found.residual < 1e-8
    assert [one.family for one in found.candidates] == ["rescaled", "hard_tanh"]
    other = nsd.design(nsd.Implicit("gelu", 0.2))  # where no family has them, two layers are fitted to them
    assert (other.family, other.measured) == ("fitted:2:matched", None)
    assert other.residual < 1e-8
    assert "nearest on a Gaussian sample" in nsd.design(nsd.Implicit("gelu", 0.2), family="auto:1").note


@pytest.mark.parametrize(("name", "most"), [("tanh", 4e-5), ("relu", 2e-4), ("x*tanh(x)", 2e-2)])
def test_two_layers_have_the_scalars_and_are_near(digits, name, most):
    found = nsd.design(nsd.Implicit(name, 0.2), digits[::2], family=Fitted(2, scalars="matched"))
    assert found.residual < 1e-8
    assert judged(found, digits[1::2]) < most
    assert found.family == "fitted:2:matched"
    with pytest.raises(BadInput, match="scalars of the conjugate kernel"):
        nsd.design(nsd.Implicit(name, 0.2), digits[:200], family="fitted:2:matched", match="tangent")


def test_the_scalars_that_a_fit_follows_are_those_of_its_network(mixture):
    pairs = Pairs.of(nsd.Implicit("elu", 0.2), mixture[:60], 0.9)
    layers = Layers(atoms((pairs.net.phi, LINE), pairs, free=True), (2, 1), pairs)
    unknowns = layers.start(np.linspace(0.3, 0.9, 6).reshape(-1, 2))
    given, exact = layers.scalars(unknowns), nsd.scalars(layers.network(unknowns), 0.9)
    for name in ("gamma", "alpha1", "alpha2", "alpha3", "alpha4", "beta1", "beta2", "beta3", "kappa"):
        assert getattr(given, name) == pytest.approx(getattr(exact, name), rel=1e-6)


@pytest.mark.parametrize("match", ["conjugate", "tangent"])
@pytest.mark.parametrize("name", ["tanh", "erf", "sin"])
def test_an_odd_activation_matches_rescaled(name, match):
    found = nsd.design(nsd.Implicit(name, 0.15), tau0=0.9, family="rescaled", match=match)
    assert found.residual < 1e-8
    assert found.explicit.depth == 1


def test_other_activations_match_rescaled_in_two_layers():
    found = nsd.design(nsd.Implicit("softplus", 0.2), family="rescaled")
    assert found.explicit.depth == 2
    assert found.residual < 1e-8


@pytest.mark.parametrize(
    ("dictionary", "words"),
    [
        ([], "at least one activation"),
        ("tanh", "at least one activation"),
        (["tanh", "x", "tanh"], "tanh twice"),
        (["x", nsd.custom(lambda u: 0.0 * u + 1.0)], "constant"),
        (["exp(100*x)"], "finite|E\\[|followed|averages|deviations"),
    ],
)
def test_bad_dictionaries(mixture, dictionary, words):
    with pytest.raises(BadInput, match=words):
        nsd.design(nsd.Implicit("tanh", 0.2), mixture, family=Fitted(1, dictionary))


def test_bad_choices(mixture):
    net = nsd.Implicit("tanh", 0.2)
    with pytest.raises(BadInput, match="1 or 2 hidden layers"):
        Fitted(3)
    with pytest.raises(BadInput, match="family must be a word"):
        nsd.design(net, mixture, family=None)
    with pytest.raises(BadInput, match="no match 'all'"):
        nsd.design(net, mixture, match="all")
    assert isinstance(Fitted(1, ["tanh"]).dictionary[0], Activation)


def test_what_cannot_be_fitted_is_told(mixture):
    net = nsd.Implicit("tanh", 0.2)
    with pytest.raises(BadInput, match="Only 0 of 200 samples to fit on"):
        nsd.design(net, mixture, tau0=100.0, family="fitted")
    assert nsd.design(net, mixture, tau0=100.0).measured.gap >= 0.0
    with pytest.raises(BadInput, match="jumps or is too steep"):
        nsd.design(net, mixture, family=Fitted(1, ["x", "sign"]), match="tangent")
