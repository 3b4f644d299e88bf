"""The gap of exact kernels on data: mixtures, digits, MNIST."""

import gzip
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data.sources import load, standardised

designer = import_module("notsodeep.matching.design")

MNIST = Path(os.environ.get("NOTSODEEP_DATA") or "absent") / "mnist" / "train-images-idx3-ubyte.gz"


@pytest.fixture(scope="module")
def mixture():
    return nsd.GaussianMixture.two_classes(640).sample(800, torch.Generator().manual_seed(11))[0]


def digits():
    return standardised(load("digits", standardise=False).x[:750])


def mnist():
    if not MNIST.is_file():
        pytest.skip(f"MNIST is not under NOTSODEEP_DATA ({MNIST})")
    with gzip.open(MNIST) as file:
        pixels = np.frombuffer(file.read(16 + 750 * 784), np.uint8, offset=16).reshape(750, 784)
    return standardised(torch.from_numpy(pixels.astype(np.float64)))


@pytest.mark.parametrize(("name", "family", "most"), [("relu", "leaky_relu", 1e-4), ("tanh", "hard_tanh", 5e-3)])
def test_gap_on_the_mixture(mixture, name, family, most):
    found = nsd.design(nsd.Implicit(name, 0.2, 0.8), x=mixture, family="matched")
    assert found.family == family
    assert found.measured.samples == 800
    assert found.measured.gap <= most


@pytest.mark.parametrize(
    ("source", "name", "most"), [(digits, "relu", 5e-4), (digits, "tanh", 5e-3), (mnist, "relu", 3e-4), (mnist, "tanh", 1e-2)]
)
def test_gap_on_real_data(source, name, most):
    found = nsd.design(nsd.Implicit(name, 0.2, 0.8), x=source())
    assert found.measured.gap <= most
    assert found.measured.gap < 0.2 * found.measured.plain_gap


def test_measured_numbers_are_those_of_the_kernels(mixture):
    x, net = mixture[::8], nsd.Implicit("relu", 0.2)
    found = nsd.design(net, x=x, family="leaky_relu")
    m = found.measured
    exact = nsd.conjugate_kernel(net, x)
    assert torch.equal(m.kernel, exact)
    assert m.gap == pytest.approx(nsd.relative_gap(exact, nsd.conjugate_kernel(found.explicit, x)))
    plain = nsd.conjugate_kernel(nsd.Explicit(["relu", "relu"]).centred(found.tau0), x)
    assert m.plain_gap == pytest.approx(nsd.relative_gap(exact, plain))
    # No factor on a fine grid does better than the one that is called best.
    grid = [nsd.relative_gap(exact, c * plain) for c in np.linspace(0.9, 1.1, 41) * m.plain_factor]
    assert m.plain_scaled_gap <= min(grid) * (1 + 1e-6)
    assert m.plain_scaled_gap <= m.plain_gap


def test_large_data_is_measured_on_a_sample_and_says_so(monkeypatch):
    assert designer._MEASURED_SAMPLES == 3000
    monkeypatch.setattr(designer, "_MEASURED_SAMPLES", 300)
    x = torch.randn(350, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 20**0.5
    found = nsd.design(nsd.Implicit("relu", 0.2), x=x, family="leaky_relu")
    assert (found.measured.samples, found.measured.of_samples) == (300, 350)
    assert "300 of 350" in found.summary()


def test_summary_shows_every_scalar_and_gap(mixture):
    found = nsd.design(nsd.Implicit("relu", 0.2), x=mixture[::10])
    text = found.summary()
    for word in ("gamma", "alpha1", "alpha2", "alpha3", "DEQ", "explicit", "gap", "designed", "undesigned"):
        assert word in text
    assert f"{found.target.alpha1:.8f}" in text
    assert f"{found.measured.gap:.2e}" in text
    tangent = nsd.design(nsd.Implicit("tanh", 0.2), match="tangent").summary()
    assert "beta3" in tangent
    assert "undesigned" not in tangent


def test_numpy_and_tensor_data_give_one_design(mixture):
    x, net = mixture[::16], nsd.Implicit("tanh", 0.2)
    assert nsd.design(net, x=x.numpy()).explicit == nsd.design(net, x=x).explicit


def test_tau0_given_wins_over_the_data(mixture):
    net = nsd.Implicit("tanh", 0.2)
    found = nsd.design(net, x=mixture[::16], tau0=1.0, family="hard_tanh")
    assert found.tau0 == 1.0
    assert found.explicit == nsd.design(net, family="hard_tanh").explicit
