"""Activations as text that needs torch alone."""

import ast

import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import Activation, Centred, HermiteSeries, Linear, Polynomial, Rectifier, Relu, Scaled, activation
from notsodeep.models.export.activation_source import source_expression
from tests.zoo import build, each, two_kinks

OTHERS = {
    "constant": Polynomial((0.3,)),
    "one Hermite term": HermiteSeries((0.7,), 1.3),
    "long Hermite": HermiteSeries(tuple(1.0 / (3.0 + k) for k in range(20)), 0.9),
    "falling": Rectifier(0.0, 0.3),
    "steep": Rectifier(1.7, -0.1),
    "multiple": Rectifier(0.3, 0.3),
    "scaled linear": Scaled(Linear(), -0.1),
    "scaled custom": Scaled(Centred(activation(two_kinks), -0.1), 1.0 / 3.0),
    "nn.GELU": activation(torch.nn.GELU()),
}


def run(phi, name="phi"):
    space = {"torch": torch, "__builtins__": {"enumerate": enumerate, "float": float}}
    exec(source_expression(phi).function(name, str(phi)), space)
    return space[name]


def same(phi, dtype):
    x = torch.cat([torch.linspace(-6.0, 6.0, 2001, dtype=dtype), torch.tensor([*phi.kinks, 0.0, -0.0], dtype=dtype)])
    for shape in ((-1,), (2, -1, 2)):
        given = x[: len(x) // 4 * 4].reshape(shape)
        value, expected = run(phi)(given), phi(given)
        assert value.dtype == dtype
        torch.testing.assert_close(value, expected, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
    torch.testing.assert_close(run(phi)(x[-8:]), phi(x[-8:]), rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each()
def test_the_text_is_the_activation(name, dtype):
    same(build(name), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OTHERS)
def test_parameters_and_compositions(name, dtype):
    same(OTHERS[name], dtype)


@each()
def test_lines_are_short(name):
    assert max(map(len, source_expression(build(name)).function("phi").splitlines())) <= 104


def test_a_long_series_is_broken_into_lines():
    assert max(map(len, source_expression(OTHERS["long Hermite"]).function("phi").splitlines())) <= 104


def test_it_reads_well():
    assert source_expression(Centred(Relu(), 0.4)).function("phi", "relu − 0.4") == (
        'def phi(x):\n    """relu − 0.4"""\n    return torch.relu(x) - 0.4\n'
    )
    assert source_expression(Scaled(Centred(Relu(), -0.25), 2.0)).value == "2.0 * (torch.relu(x) + 0.25)"
    assert source_expression(activation(two_kinks)).lines[0] == "sub = x - 0.25"


def test_a_name_cannot_leave_its_docstring():
    named = nsd.custom(torch.tanh, name='"""\nraise SystemExit\n"""\\')
    (function,) = ast.parse(source_expression(named).function("phi", str(named))).body
    assert [type(statement) for statement in function.body] == [ast.Expr, ast.Return]
    same(named, torch.float64)


def held(x, scale=torch.tensor(0.5, dtype=torch.float64)):  # noqa: B008
    return scale * torch.tanh(x)


def branching(x):
    return torch.tanh(x) if bool((x < 1e9).all()) else x


calls = {"count": 0.5}


def shifting(x):
    calls["count"] *= 0.5
    return torch.tanh(x) + 1e-3 * calls["count"]


class Own(Activation):
    lipschitz = 0.5

    def __call__(self, x):
        return 0.5 * torch.sin(x)

    def derivative(self, x):
        return 0.5 * torch.cos(x)


def test_an_activation_of_the_users_own_class():
    same(Own(), torch.float64)


@pytest.mark.parametrize(("function", "why"), [(held, "values of its own"), (branching, "torch.fx fails")])
def test_what_cannot_be_written(function, why):
    with pytest.raises(nsd.BadInput, match=f"{function.__name__} cannot be written.*{why}.*plain numbers"):
        source_expression(activation(function))


def test_a_trace_that_gives_other_numbers_is_found():
    odd = type(nsd.custom(torch.tanh))(shifting, "shifting", (), (), 1.0)
    with pytest.raises(nsd.BadInput, match="off by"):
        source_expression(odd)
