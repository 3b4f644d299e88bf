"""Explicit networks against the kernels that the public library neural-tangents computes (golden/neural_tangents.json)."""

import json
from pathlib import Path

import numpy as np
import pytest

import notsodeep as nsd
from tests.kernels.reference import worst_gap

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "neural_tangents.json").read_text())
X = np.array(GOLDEN["x"])
AGREE = 1e-12  # both are float64 closed forms; they agree to 1e-15


@pytest.mark.parametrize("record", GOLDEN["networks"], ids=lambda record: "-".join(record["layers"]))
def test_conjugate_kernel(record):
    assert worst_gap(nsd.conjugate_kernel(nsd.Explicit(record["layers"]), X), np.array(record["conjugate"])) <= AGREE


@pytest.mark.parametrize(
    "record", [r for r in GOLDEN["networks"] if "tangent" in r], ids=lambda record: "-".join(record["layers"])
)
def test_tangent_kernel(record):
    assert worst_gap(nsd.tangent_kernel(nsd.Explicit(record["layers"]), X), np.array(record["tangent"])) <= AGREE


def test_golden_covers_depths_and_activations():
    layers = [record["layers"] for record in GOLDEN["networks"]]
    assert {len(names) for names in layers} == {1, 2, 3, 4}
    assert {"relu", "leaky_relu:0.1", "abs", "erf", "gelu", "sin"} <= {name for names in layers for name in names}
    assert GOLDEN["provenance"]["neural-tangents"]


IMAGES = json.loads((Path(__file__).parents[2] / "golden" / "neural_tangents_images.json").read_text())


def _setting(record):
    return "-".join([*record["layers"], "×".join(map(str, record["patch"])), record["padding"], record["readout"]])


@pytest.mark.parametrize("record", IMAGES["networks"], ids=_setting)
def test_kernels_of_images(record):
    """Theirs rounds ρ = 1 of an image with itself, where the slope of a kinked φ magnifies it to 1e-9."""
    net = nsd.Convolutional(nsd.Explicit(record["layers"]), tuple(record["patch"]), record["padding"], record["readout"])
    found, apart = nsd.exact_kernels(net, np.array(IMAGES["x"])), 1.0 - np.eye(len(IMAGES["x"]))
    theirs = np.array(record["tangent"])
    assert worst_gap(found.conjugate, np.array(record["conjugate"])) <= AGREE
    assert worst_gap(theirs + apart * (found.tangent - theirs), theirs) <= AGREE
    assert worst_gap(found.tangent, theirs) <= 1e-8
