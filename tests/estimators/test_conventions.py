"""scikit-learn's own checks on every estimator, and what its tools do with them."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_digits, make_friedman1
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import notsodeep as nsd
from notsodeep.activations import Mixed
from notsodeep.estimators import (
    ESTIMATORS,
    DEQClassifier,
    DEQFeatures,
    ExplicitFeatures,
    ExplicitRegressor,
    ImplicitKernelClassifier,
    ImplicitKernelRidge,
)


def small(kind, **options):
    """An estimator of that kind, narrow where it has a width."""
    return kind(**({"width": 48} if "width" in kind().get_params() else {}), **options)


VARIANTS = [
    *(small(kind) for kind in ESTIMATORS),
    ImplicitKernelRidge(form="sharp"),
    ImplicitKernelClassifier(form="equivalent"),
    ImplicitKernelRidge(kernel="tangent", ridge=1e-3),
    small(DEQClassifier, activation="tanh", epochs=2),
    small(ExplicitRegressor, family="leaky_relu", match="both", epochs=1),
    ImplicitKernelRidge(kernel="tangent", net=nsd.Explicit(Mixed(["tanh", "relu"]), gains=(0.5, 2.0))),
]


@parametrize_with_checks(VARIANTS)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    return load_digits(return_X_y=True)


@pytest.fixture(scope="module")
def numbers():
    return make_friedman1(300, 8, noise=0.3, random_state=0)


def fitted(kind, digits, numbers):
    X, y = numbers if is_regressor(kind()) else digits
    return small(kind, **({"random_state": 0} if "random_state" in kind().get_params() else {})).fit(X[:200], y[:200]), X[
        200:300
    ]


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_pickled_and_cloned_they_are_the_same(kind, digits, numbers):
    estimator, X = fitted(kind, digits, numbers)
    answer = estimator.transform if hasattr(estimator, "transform") else estimator.predict
    back = pickle.loads(pickle.dumps(estimator))
    again = clone(estimator)
    assert again.get_params() == estimator.get_params()
    assert np.array_equal((back.transform if hasattr(back, "transform") else back.predict)(X), answer(X))


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_they_work_in_pipelines_and_cross_validation(kind, digits, numbers):
    X, y = numbers if is_regressor(kind()) else digits
    wide = {"width": 200, "random_state": 0} if "width" in kind().get_params() else {}
    steps = [MinMaxScaler(), kind(**wide)]
    steps += [] if is_regressor(kind()) or is_classifier(kind()) else [LogisticRegression(C=100.0, max_iter=500)]
    scores = cross_val_score(make_pipeline(*steps), X[:600], y[:600], cv=3)
    assert scores.mean() > (0.7 if is_regressor(kind()) else 0.85)


def test_grid_search_over_var_a_and_the_ridge(digits):
    X, y = digits
    grid = {"var_a": [0.1, 0.2], "ridge": [1e-3, 1e-2]}
    folds = StratifiedKFold(3, shuffle=True, random_state=0)  # digits come writer by writer
    search = GridSearchCV(ImplicitKernelClassifier(), grid, cv=folds).fit(X, y)
    assert search.best_score_ > 0.98


@pytest.mark.parametrize("kind", [DEQFeatures, ExplicitFeatures])
def test_features_have_names_and_keep_the_dtype(kind, digits):
    X, _ = digits
    transformer = small(kind, random_state=0).fit(X)
    names = transformer.get_feature_names_out()
    assert len(names) == 48
    assert names[0] == f"{kind.__name__.lower()}0"
    assert transformer.transform(X[:5].astype(np.float32)).dtype == np.float32
    frame = transformer.set_output(transform="default").transform(X[:5])
    assert frame.shape == (5, 48)
