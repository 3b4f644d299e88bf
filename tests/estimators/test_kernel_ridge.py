"""Kernel ridge regression against its dense solution, in every form of the kernel."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd
from notsodeep.activations import Mixed
from notsodeep.data.standardiser import Standardiser
from notsodeep.estimators import ImplicitKernelClassifier, ImplicitKernelRidge
from notsodeep.kernels.structured.equivalent import equivalent_cross
from notsodeep.kernels.structured.sharp import sharp_cross
from notsodeep.models.training.readout import RIDGES

NET = nsd.Implicit("relu", 0.2)


@pytest.fixture(scope="module")
def data():
    X, _ = load_digits(return_X_y=True)
    X = X[:260]
    y = X.sum(1) / 100.0 + np.sin(X[:, 20])
    return X, y


def kernels(form, kernel, x, new, net=NET):
    """K and k of the package, dense."""
    if form == "exact":
        compute = nsd.conjugate_kernel if kernel == "conjugate" else nsd.tangent_kernel
        return compute(net, x, tau0=1.0), compute(net, new, x, tau0=1.0)
    if form == "sharp":
        return nsd.sharp_kernel(net, x, kernel, tau0=1.0).to_dense(), sharp_cross(net, new, x, kernel, tau0=1.0)
    stats = nsd.MixtureStatistics.from_data(x)
    return nsd.equivalent_kernel(net, x, stats, kernel).to_dense(), equivalent_cross(net, new, x, kernel)


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")  # layers are centred at 1, not where samples are
@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
@pytest.mark.parametrize("form", ["exact", "sharp", "equivalent"])
@pytest.mark.parametrize("net", [None, nsd.Explicit(["gelu", Mixed(["relu", "tanh"])], gains=(0.5, 1.0, 2.0)).centred(1.0)])
def test_predictions_are_the_dense_solution(net, form, kernel, data):
    X, y = data
    model = ImplicitKernelRidge(form=form, kernel=kernel, ridge=1e-2, net=net).fit(X[:200], y[:200])
    scale = Standardiser.of(torch.from_numpy(X[:200]))
    K, k = kernels(form, kernel, *(scale(torch.from_numpy(part)) for part in (X[:200], X[200:])), net or NET)
    level = 1e-2 * float(K.diagonal().mean())
    targets = torch.from_numpy(y[:200])
    alpha = torch.linalg.solve(K + level * torch.eye(200), targets - targets.mean())
    np.testing.assert_allclose(model.predict(X[200:]), (k @ alpha + targets.mean()).numpy(), rtol=1e-7)


@pytest.mark.parametrize("net", ["relu", 3, nsd.activations.Relu()])
def test_what_is_no_network_is_told_at_fit(net, data):
    with pytest.raises(ValueError, match="net must be an Explicit or an Implicit"):
        ImplicitKernelRidge(net=net).fit(*data)


@pytest.mark.parametrize("form", ["exact", "sharp"])
def test_the_ridge_is_chosen_by_leaving_samples_out(form, data):
    X, y = data
    model = ImplicitKernelRidge(form=form).fit(X[:60], y[:60])
    x = Standardiser.of(torch.from_numpy(X[:60]))(torch.from_numpy(X[:60]))
    K, _ = kernels(form, "conjugate", x, x)
    t = torch.from_numpy(y[:60])
    t = t - t.mean()
    errors = []
    for ridge in RIDGES:
        missed = []
        for i in range(60):
            kept = torch.arange(60) != i
            inner = K[kept][:, kept] + ridge * float(K.diagonal().mean()) * torch.eye(59)
            missed.append(K[i, kept] @ torch.linalg.solve(inner, t[kept]) - t[i])
        errors.append(float(torch.stack(missed).square().sum()))
    assert model.ridge_ == RIDGES[int(np.argmin(errors))]


def test_digits_by_every_form():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:1000], order[1000:]
    scores = {
        (form, kernel): ImplicitKernelClassifier(form=form, kernel=kernel).fit(X[train], y[train]).score(X[test], y[test])
        for form in ("exact", "sharp", "equivalent")
        for kernel in ("conjugate", "tangent")
    }
    assert min(scores[form, kernel] for form in ("exact",) for kernel in ("conjugate", "tangent")) > 0.98
    assert min(scores.values()) > 0.92


def test_two_classes_have_one_decision():
    X, y = load_digits(n_class=2, return_X_y=True)
    model = ImplicitKernelClassifier().fit(X[:200], y[:200])
    decision = model.decision_function(X[200:])
    assert decision.shape == (len(X) - 200,)
    assert np.array_equal(model.predict(X[200:]), model.classes_[(decision > 0).astype(int)])


@pytest.mark.parametrize(("options", "says"), [({"form": "blunt"}, "no form 'blunt'"), ({"kernel": "ntk"}, "no kernel 'ntk'")])
def test_bad_parameters(options, says, data):
    with pytest.raises(nsd.BadInput, match=says):
        ImplicitKernelRidge(**options).fit(*data)
