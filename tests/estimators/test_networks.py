"""The networks behind the estimators are those of the package."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits

import notsodeep as nsd
from notsodeep.data.standardiser import standardised
from notsodeep.estimators import (
    DEQClassifier,
    DEQFeatures,
    DEQRegressor,
    ExplicitClassifier,
    ExplicitFeatures,
    ExplicitRegressor,
)
from notsodeep.estimators.networks import _generator


@pytest.fixture(scope="module")
def digits():
    return load_digits(return_X_y=True)


def test_features_are_those_of_the_module(digits):
    X, _ = digits
    transformer = DEQFeatures(width=32, random_state=3).fit(X)
    x = standardised(torch.from_numpy(X))
    assert isinstance(transformer.network_, nsd.DEQ)
    np.testing.assert_allclose(
        transformer.transform(X), transformer.network_.features(x).detach().numpy(), rtol=1e-7, atol=1e-9
    )
    assert transformer.network_.tau0 == pytest.approx(1.0)


@pytest.mark.parametrize(("name", "family"), [("relu", "auto"), ("tanh", "auto"), ("elu", "hermite"), ("tanh", "hermite:6")])
def test_the_explicit_one_is_matched_to_the_deq(name, family, digits):
    X, _ = digits
    transformer = ExplicitFeatures(name, family=family, width=8, random_state=0).fit(X)
    net, x = nsd.Implicit(name, 0.2), standardised(torch.from_numpy(X))[:400]
    gap = nsd.relative_gap(nsd.conjugate_kernel(net, x, tau0=1.0), nsd.conjugate_kernel(transformer.network_.net, x))
    assert gap < 0.02


@pytest.mark.parametrize("family", ["leaky_relu", nsd.matching.Fitted(1)])
def test_gains_of_both_kernels_show_in_training_alone(family, digits):
    X, y = digits
    kinds = [ExplicitClassifier(family=family, match="both", width=48, random_state=0, epochs=k) for k in (0, 1)]
    start, trained = (clone(kind).fit(X[:300], y[:300]) for kind in kinds)
    net = start.network_.net
    assert net.has_gains
    assert trained.network_.net == net
    without = nsd.ENN(net.with_gains(None), 64, 48, generator=_generator(0), dtype=torch.float64)
    x = standardised(torch.from_numpy(X[:300]))
    torch.testing.assert_close(start.network_.features(x), without(x), rtol=1e-9, atol=1e-9)
    x, implicit = x[:200], nsd.Implicit("relu", 0.2)
    assert nsd.relative_gap(nsd.tangent_kernel(implicit, x, tau0=1.0), nsd.tangent_kernel(net, x)) < 0.02


def test_equal_samples_are_designed_for_without_them():
    made = ExplicitFeatures(family="fitted", match="both", width=8, random_state=0).fit(np.ones((20, 4)))
    assert made.network_.net.has_gains


def test_inner_products_of_the_features_approach_the_kernel(digits):
    X, _ = digits
    x = standardised(torch.from_numpy(X))[:100]
    kernel = nsd.conjugate_kernel(nsd.Implicit("relu", 0.2), x, tau0=1.0)
    for kind in (DEQFeatures, ExplicitFeatures):
        gaps = []
        for width in (64, 1024):
            z = torch.from_numpy(kind(width=width, random_state=0).fit(X).transform(X[:100]))
            gaps.append(nsd.relative_gap(kernel, z @ z.T))
        assert gaps[1] < 0.5 * gaps[0]
        assert gaps[1] < 0.25


@pytest.mark.parametrize("kind", [DEQClassifier, ExplicitClassifier])
def test_digits_are_read(kind, digits):
    X, y = digits
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:1300], order[1300:]
    names = np.array([f"digit {k}" for k in range(10)])
    readout = kind(width=256, random_state=0).fit(X[train], names[y[train]])
    assert readout.score(X[test], names[y[test]]) > 0.96
    assert set(readout.predict(X[test])) == set(names)
    trained = kind(width=256, random_state=0, epochs=8).fit(X[train], names[y[train]])
    assert trained.score(X[test], names[y[test]]) > 0.96
    assert trained.score(X[train], names[y[train]]) > 0.999


@pytest.mark.parametrize("kind", [DEQRegressor, ExplicitRegressor])
def test_numbers_come_back_in_their_own_units(kind, digits):
    X, _ = digits
    y = 1000.0 + 50.0 * np.stack([X.sum(1) / 300.0, X[:, 20] / 16.0], axis=1)
    model = kind(width=128, random_state=0).fit(X[:1000], y[:1000])
    assert model.predict(X[1000:]).shape == (797, 2)
    assert model.score(X[1000:], y[1000:]) > 0.85
    flat = kind(width=128, random_state=0, epochs=2).fit(X[:1000], y[:1000, 0])
    assert flat.predict(X[1000:]).shape == (797,)
    assert flat.score(X[1000:], y[1000:, 0]) > 0.85


def test_the_seed_decides(digits):
    X, y = digits
    answers = [
        DEQClassifier(width=32, random_state=seed).fit(X[:300], y[:300]).decision_function(X[300:400]) for seed in (0, 0, 1)
    ]
    assert np.array_equal(answers[0], answers[1])
    assert not np.allclose(answers[0], answers[2])


def test_the_ridge_is_taken_or_chosen(digits):
    X, y = digits
    assert DEQClassifier(width=32, ridge=0.5).fit(X[:300], y[:300]).ridge_ == 0.5
    assert 1e-7 < DEQClassifier(width=32).fit(X[:300], y[:300]).ridge_ < 10.0


def test_as_it_is_without_standardising(digits):
    X, _ = digits
    x = standardised(torch.from_numpy(X)).numpy() * 3.0
    raw = DEQFeatures(width=16, standardise=False, random_state=0).fit(x)
    assert raw.network_.tau0 == pytest.approx(3.0)
    np.testing.assert_allclose(
        raw.transform(x), raw.network_.features(torch.from_numpy(x)).detach().numpy(), rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"activation": "rleu"}, "did you mean relu"),
        ({"var_a": -1.0}, "var_a"),
        ({"width": 0}, "width"),
        ({"epochs": -1}, "epochs"),
        ({"ridge": -1.0}, "ridge must be a number"),
        ({"ridge": "small"}, "ridge must be a number"),
        ({"random_state": "seed"}, "seed"),
    ],
)
def test_bad_parameters_are_told_at_fit(options, says, digits):
    X, y = digits
    with pytest.raises(ValueError, match=says):
        DEQClassifier(**options).fit(X[:50], y[:50])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"match": "Both"}, "did you mean 'both'"),
        ({"family": "fitted:3"}, "fitted:1 and fitted:2"),
        ({"family": None}, "family"),
    ],
)
def test_a_bad_design_is_told_at_fit(options, says, digits):
    with pytest.raises(ValueError, match=says):
        ExplicitFeatures(**options).fit(digits[0][:50])
