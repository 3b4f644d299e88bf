"""Activations are values: frozen, equal when their parameters are, usable as keys."""

import copy
from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from notsodeep.activations import Centred, HermiteSeries, Polynomial, Relu, Scaled, Tanh, activation, custom
from notsodeep.errors import BadInput
from tests.zoo import ACTIVATIONS, KINKED, NAMED, SMOOTH, WRAPPED, build, each, wavy


@each()
def test_equal_and_hashable(name):
    phi = build(name)
    again = activation(ACTIVATIONS[name])
    assert phi == again
    assert hash(phi) == hash(again)
    assert {phi: "kept"}[again] == "kept"


@pytest.mark.parametrize("name", [*NAMED, *WRAPPED])
def test_copies_are_equal(name):
    phi = build(name)
    assert copy.deepcopy(phi) == phi


@each()
def test_frozen(name):
    phi = build(name)
    for field in fields(phi):
        with pytest.raises(FrozenInstanceError):
            setattr(phi, field.name, 1.0)
    with pytest.raises((FrozenInstanceError, AttributeError)):
        phi.grading = 1.0


@each(SMOOTH)
def test_smooth_ones_have_no_kinks(name):
    assert build(name).kinks == ()
    assert build(name).jumps == ()


@each(KINKED)
def test_kinked_ones_say_where(name):
    phi = build(name)
    assert phi.kinks
    assert {place for place, _ in phi.jumps} <= set(phi.kinks)


@each(KINKED)
def test_the_kinks_are_where_the_function_is_not_smooth(name):
    """Φ's value, slope or curvature differs between the two sides of each kink, by far more than over the same step
    elsewhere."""
    phi = build(name)
    for kink in phi.kinks:
        step = 1e-3
        x = torch.tensor([kink - 2 * step, kink - step, kink + step, kink + 2 * step], dtype=torch.float64)
        with torch.no_grad():
            value, slope = phi(x), phi.derivative(x)
        curvature = torch.stack([slope[1] - slope[0], slope[3] - slope[2]]) / step
        changes = [value[2] - value[1], slope[2] - slope[1], curvature[1] - curvature[0]]
        assert max(abs(float(change)) for change in changes) > 0.05


def test_different_parameters_are_different_values():
    distinct = {build(name) for name in ("leaky_relu", "leaky_relu:0.1", "elu", "elu:0.5", "tanh", "relu")}
    assert len(distinct) == 6
    assert Centred(Relu(), 0.1) != Centred(Relu(), 0.2)
    assert Scaled(Tanh(), 2.0) != Centred(Tanh(), 2.0)


def test_a_custom_function_is_the_function_it_was_made_of():
    assert custom(wavy) == custom(wavy)
    assert custom(wavy) != custom(torch.tanh)
    assert custom(torch.relu, kinks=[0.0]) != custom(torch.relu, kinks=[0.0, 1.0])


def test_coefficients_given_as_a_list_become_hashable():
    assert hash(Polynomial([0, 1, 2])) == hash(Polynomial((0.0, 1.0, 2.0)))
    assert HermiteSeries([0, 1]) == HermiteSeries((0.0, 1.0))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_hermite_scale_must_be_positive(scale):
    with pytest.raises(BadInput, match="scale"):
        HermiteSeries((0.0, 1.0), scale=scale)


@pytest.mark.parametrize("make", [Polynomial, HermiteSeries])
@pytest.mark.parametrize("coefficients", [(), (1.0, float("nan")), (float("inf"),)])
def test_coefficients_must_be_finite_and_some(make, coefficients):
    with pytest.raises(BadInput, match="coefficient"):
        make(coefficients)


def test_a_hermite_series_is_a_polynomial():
    """h_0 … h_3 = 1, x, (x² − 1)/√2, (x³ − 3x)/√6."""
    x = torch.linspace(-3.0, 3.0, 41, dtype=torch.float64)
    series = HermiteSeries((0.5, 1.0, 0.3, -0.2), scale=2.0)
    y = x / 2.0
    expected = 0.5 + y + 0.3 * (y**2 - 1.0) / 2**0.5 - 0.2 * (y**3 - 3.0 * y) / 6**0.5
    torch.testing.assert_close(series(x), expected, rtol=1e-14, atol=1e-14)
