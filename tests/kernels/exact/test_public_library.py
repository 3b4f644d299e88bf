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
