"""Exact kernels against an independent quadrature and Picard iteration, entry by entry. See `reference`."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from tests.kernels import reference
from tests.kernels.reference import PHI, worst_gap

AGREE = 1e-9
VAR_A, VAR_B = 0.2, 0.7


def _user_function(x: torch.Tensor) -> torch.Tensor:
    return 0.8 * torch.relu(x - 0.3) + 0.4 * torch.tanh(x)


def _ours(name: str):
    return _user_function if name == "user" else name


def _data() -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)
    x = random.standard_normal((4, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[1] -= 0.9 * x[0]  # a negative correlation
    x[2] += 0.9 * x[0]  # and a positive one
    unit = x[0]
    return {
        "generic": x * np.array([[0.3], [0.8], [1.0], [2.0]]),
        "parallel": np.stack([unit, unit, -unit, 2.0 * unit, 0.0 * unit]),
        "nearly parallel": np.stack([unit, unit + 1e-2 * x[1], unit + 1e-5 * x[1], 1e-4 * x[3] - unit]),
        "norms": x * np.array([[1e-3], [1.0], [30.0], [1e3]]),
    }


DATA = _data()
NOT_AT_LARGE_NORMS = {
    "quadratic",  # has no equilibrium there
    "sin",  # oscillates too fast for the reference
}


def _x(name: str, data: str) -> np.ndarray:
    return DATA[data] if data != "norms" or name not in NOT_AT_LARGE_NORMS else 1e-3 * DATA[data]


def _is_slow(name: str, centre: bool, data: str) -> bool:
    """Where the package integrates pairs with |ρ| near 1 instead of summing a series; half a second a pair and more."""
    if name == "user":
        return data in ("parallel", "nearly parallel") or (centre and data == "norms")
    return name == "softsign" and not centre and data in ("parallel", "nearly parallel")


IMPLICIT = [
    pytest.param(name, centre, data, marks=[pytest.mark.slow] if _is_slow(name, centre, data) else [])
    for name in PHI
    for centre in (True, False)
    for data in DATA
]


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize(("name", "centre", "data"), IMPLICIT)
def test_implicit_kernels_equal_the_definition(name, centre, data):
    x = _x(name, data)
    var_a = 0.02 if name == "quadratic" else VAR_A
    tau0 = float(np.sqrt((x**2).sum(1).mean()))
    expected = reference.implicit_kernels(PHI[name], var_a, VAR_B, x, centre, tau0)
    net = nsd.Implicit(_ours(name), var_a, VAR_B, centre=centre)
    both = nsd.exact_kernels(net, x)  # what the two separate calls give, by another test
    assert worst_gap(both.conjugate, expected.conjugate) <= AGREE
    assert worst_gap(both.tangent, expected.tangent) <= AGREE
    if not _is_slow(name, centre, data):  # there, K = σ_a² Θ + σ_b² S (another test) has to do
        assert worst_gap(nsd.tangent_kernel(net, x, readout="preactivation"), expected.preactivation) <= AGREE


NETWORKS = [
    ["relu"],
    ["tanh"],
    ["user"],
    ["quadratic"],
    ["elu", "softsign"],
    ["leaky_relu:0.1", "leaky_relu:0.1"],
    ["gelu", "hard_tanh:0.75,1.2", "silu"],
    ["gaussian", "erf", "relu"],
    ["sin", "tanh", "user"],
]


EXPLICIT = [
    pytest.param(layers, data, marks=[pytest.mark.slow] if "user" in layers and "parallel" in data else [])
    for layers in NETWORKS
    for data in DATA
]


@pytest.mark.parametrize(("layers", "data"), EXPLICIT, ids=lambda value: "-".join(value) if isinstance(value, list) else None)
def test_explicit_kernels_equal_the_definition(layers, data):
    x = _x(layers[0], data)
    expected = reference.explicit_kernels([PHI[name] for name in layers], x)
    net = nsd.Explicit([_ours(name) for name in layers])
    assert worst_gap(nsd.conjugate_kernel(net, x), expected.conjugate) <= AGREE
    assert worst_gap(nsd.tangent_kernel(net, x), expected.tangent) <= AGREE


@pytest.mark.parametrize("name", [name for name in PHI if name != "quadratic"])
@pytest.mark.parametrize("rho", [-0.999, -0.3, 0.5, 1.0 - 1e-9])
def test_reference_has_converged(name, rho, monkeypatch):
    """What the reference gives does not move with twice as many nodes a panel: it is worth its 1e-9."""
    phi = PHI[name]

    def values() -> list[float]:
        return [reference.pair_expectation(phi, g, 0.7, 3.0, 2.1 * rho) for g in (phi.value, phi.slope)]

    plain = values()
    nodes, weights = np.polynomial.legendre.leggauss(24)
    monkeypatch.setattr(reference, "NODES", nodes)
    monkeypatch.setattr(reference, "WEIGHTS", weights)
    np.testing.assert_allclose(plain, values(), rtol=1e-12, atol=1e-13)
