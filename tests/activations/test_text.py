"""How activations are shown."""

import pytest

from notsodeep.activations import (
    Centred,
    Gelu,
    HardTanh,
    HermiteSeries,
    LeakyRelu,
    Linear,
    Polynomial,
    Rectifier,
    Relu,
    Scaled,
    Tanh,
    activation as parse,
    combined,
    expression,
    stretched,
)
from tests.zoo import NAMED, build, each


@each()
def test_text_is_one_short_readable_line(name):
    text = str(build(name))
    assert 0 < len(text) <= 80
    assert text.isprintable()
    assert " at 0x" not in text
    assert "object" not in text


@pytest.mark.parametrize("name", NAMED)
def test_text_names_the_activation(name):
    family = {"swish": "silu", "quadratic": "polynomial", "leaky_relu": "leaky_relu"}
    word = name.partition(":")[0]
    assert family.get(word, word) in str(parse(name))


@pytest.mark.parametrize(
    ("phi", "text"),
    [
        (Relu(), "relu"),
        (LeakyRelu(0.1), "leaky_relu(slope=0.1)"),
        (Linear(), "linear"),
        (Rectifier(2.0, 0.5), "max(2·x, 0.5·x)"),
        (Rectifier(0.5, 2.0), "min(0.5·x, 2·x)"),
        (HardTanh(0.75, 1.2), "hard_tanh(a=0.75, c=1.2)"),
        (Centred(Relu(), 0.25), "relu − 0.25"),
        (Centred(Relu(), -0.25), "relu + 0.25"),
        (Scaled(Relu(), 2.0), "2·relu"),
        (Scaled(expression("x*tanh(x)"), 2.0), "2·(x*tanh(x))"),
        (Scaled(stretched(Tanh(), 1.5), 2.0), "2·tanh(1.5·x)"),
        (stretched(expression("x*tanh(x)"), 1.5), "[x*tanh(x)](1.5·x)"),
        (combined([(2.0, Tanh()), (-0.5, stretched(Gelu(), 0.7)), (0.25, Linear())]), "[2·tanh − 0.5·gelu(0.7·x) + 0.25·x]"),
        (Polynomial((0.0, 1.0, 0.5)), "polynomial(0.5·x^2 + 1·x)"),
        (Polynomial((0.0,)), "polynomial(0)"),
        (HermiteSeries((0.0, 1.0, 0.5, 0.25, 0.125)), "hermite(5 terms: 0, 1, 0.5, 0.25, …; scale=1)"),
    ],
    ids=str,
)
def test_texts(phi, text):
    assert str(phi) == text


def test_parameters_that_differ_show():
    assert str(LeakyRelu(0.1)) != str(LeakyRelu(0.2))
    assert str(Centred(Relu(), 0.1)) != str(Centred(Relu(), 0.2))
