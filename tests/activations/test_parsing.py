"""Activations by name."""

import pytest
import torch

import notsodeep.activations as act
from notsodeep.activations import FACTORIES, activation
from notsodeep.errors import BadInput
from tests.zoo import NAMED


def test_the_zoo_covers_every_name():
    assert {name.partition(":")[0] for name in NAMED} == set(FACTORIES)


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("tanh", act.Tanh()),
        ("swish", act.Silu()),
        ("relu", act.Rectifier(1.0, 0.0)),
        ("leaky_relu", act.Rectifier(1.0, 0.01)),
        ("leaky_relu:0.1", act.Rectifier(1.0, 0.1)),
        ("abs", act.Rectifier(1.0, -1.0)),
        ("linear", act.Rectifier(1.0, 1.0)),
        ("elu:0.5", act.Elu(0.5)),
        ("hard_tanh", act.HardTanh(1.0, 1.0)),
        ("hard_tanh:0.76", act.HardTanh(0.76, 1.0)),
        ("hard_tanh:0.76,1.2", act.HardTanh(0.76, 1.2)),
        ("polynomial:0.5,1,0.25", act.Polynomial((0.5, 1.0, 0.25))),
        ("quadratic", act.Polynomial((0.0, 1.0, 1.0))),
        ("quadratic:2,-1,0.5", act.Polynomial((0.5, -1.0, 2.0))),
        ("hermite:0,1,0.3", act.HermiteSeries((0.0, 1.0, 0.3))),
        ("leaky_relu:-1e-3", act.Rectifier(1.0, -1e-3)),
    ],
)
def test_names_and_parameters(spec, value):
    assert activation(spec) == value


@pytest.mark.parametrize("spec", ["Leaky_ReLU:0.1", "leaky-relu:0.1", " leaky_relu : 0.1 ", "LEAKY-RELU: 0.1"])
def test_case_dashes_and_spaces_do_not_matter(spec):
    assert activation(spec) == act.Rectifier(1.0, 0.1)


def test_values_pass_through():
    phi = act.Centred(act.Relu(), 0.4)
    assert activation(phi) is phi


def test_functions_become_custom():
    phi = activation(torch.tanh)
    assert isinstance(phi, act.Custom)
    assert "tanh" in str(phi)


@pytest.mark.parametrize(
    ("wrong", "meant"), [("rleu", "relu"), ("tahn", "tanh"), ("leaky", "leaky_relu"), ("sigmod", "sigmoid")]
)
def test_a_misspelt_name_is_answered_with_the_nearest(wrong, meant):
    with pytest.raises(BadInput, match=meant) as raised:
        activation(wrong)
    assert wrong in str(raised.value)
    assert meant in raised.value.nearest


def test_a_strange_name_is_answered_with_all_names():
    with pytest.raises(BadInput) as raised:
        activation("xyzzy123")
    assert all(name in str(raised.value) for name in FACTORIES)
    assert raised.value.nearest == []


@pytest.mark.parametrize(
    "spec",
    [
        "tanh:1",
        "relu:0.1",
        "leaky_relu:0.1,0.2",
        "leaky_relu:inf",
        "leaky_relu:nan",
        "hard_tanh:1,2,3",
        "hard_tanh:1,-1",
        "hard_tanh:1,0",
        "hard_tanh:nan,1",
        "elu:inf",
        "polynomial",
        "polynomial:1,nan",
        "hermite",
        "hermite:",
        "quadratic:1,2,3,4",
        "elu:a",
        "leaky_relu:0.1;0.2",
        "",
        ":",
    ],
)
def test_wrong_parameters_are_refused(spec):
    with pytest.raises(BadInput):
        activation(spec)


@pytest.mark.parametrize("spec", [None, 3, 0.5, ["relu"], torch.ones(2), act.Relu, act.Tanh, torch.nn.ReLU])
def test_things_that_are_no_activation_are_refused(spec):
    with pytest.raises(BadInput):
        activation(spec)


def test_refusals_are_value_errors():
    """A caller who knows nothing of this package still catches them."""
    with pytest.raises(ValueError, match="relu"):
        activation("rleu")
