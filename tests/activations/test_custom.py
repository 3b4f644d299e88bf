"""Any torch function as an activation, and functions that cannot be one."""

import math
import warnings

import pytest
import torch

from notsodeep.activations import custom
from notsodeep.errors import BadInput, NumericsWarning
from notsodeep.gaussian import moments
from tests.zoo import CUSTOM, OSCILLATING, build

TAUS = torch.tensor([1e-3, 0.05, 1.0, 30.0, 1e3], dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.relu, "relu"),
        (torch.nn.ReLU(), "relu"),
        (torch.tanh, "tanh"),
        (torch.sigmoid, "sigmoid"),
        (torch.erf, "erf"),
        (torch.atan, "arctan"),
        (torch.abs, "abs"),
        (torch.sign, "sign"),
        (torch.nn.functional.gelu, "gelu"),
        (torch.nn.SiLU(), "silu"),
        (torch.nn.ELU(), "elu"),
        (torch.nn.Softsign(), "softsign"),
        (torch.nn.Hardtanh(), "hard_tanh"),
        (torch.nn.LeakyReLU(0.1), "leaky_relu:0.1"),
        (lambda x: 0.75 * x.clamp(-1.2, 1.2), "hard_tanh:0.75,1.2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_function_has_the_moments_of_its_named_twin(function, name):
    """The natural scale of e2 and s2 is what their integrand is made of; see tests/gaussian."""
    ours, twin = moments(custom(function), TAUS), moments(build(name), TAUS)
    deviation, slope = twin.gamma2.sqrt(), twin.q.clamp(max=1.0 / TAUS.square()).sqrt()
    scales = {"mean": deviation, "e1": slope, "e2": slope / TAUS, "gamma2": twin.gamma2, "s2": deviation * slope / TAUS}
    for field, scale in scales.items():
        gap = (getattr(ours, field) - getattr(twin, field)).abs() / scale
        assert float(gap.max()) <= 1e-12, field
    if name == "sign":
        assert torch.isinf(ours.q).all()
    else:
        assert float((ours.q / twin.q - 1.0).abs().max()) <= 1e-12


@pytest.mark.parametrize("name", [name for name in CUSTOM if name not in OSCILLATING])
def test_ordinary_functions_raise_no_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert custom(CUSTOM[name]) == build(name)


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Hardsigmoid(),
        torch.nn.Hardswish(),
        torch.nn.Hardshrink(),
        torch.nn.Softshrink(),
        torch.nn.Tanhshrink(),
        torch.nn.ReLU6(),
        torch.nn.CELU(),
        torch.nn.Mish(),
        torch.nn.LogSigmoid(),
        torch.nn.Softplus(),
        torch.nn.PReLU().double(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_the_activations_of_torch_can_be_used(module):
    phi = custom(module)
    assert type(module).__name__ in str(phi)
    assert torch.isfinite(moments(phi, TAUS).gamma2).all()


def test_a_name_can_be_given():
    assert str(custom(lambda x: x, name="identity")).startswith("identity")


def test_a_function_that_no_panel_follows_is_warned_about_and_then_refused():
    with pytest.warns(NumericsWarning, match="varies too fast"):
        phi = custom(lambda x: torch.sin(30000.0 * x))
    with pytest.raises(BadInput, match="varies too fast"):
        moments(phi, TAUS)


@pytest.mark.parametrize("tau", [1.0, 20.0, 400.0])
def test_an_oscillating_function_is_followed(tau):
    """E[sin²(τξ)] = (1 − e^(−2τ²))/2, which a rule with panels wider than a few waves misses by a tenth."""
    found = float(moments(custom(torch.sin), torch.tensor(tau, dtype=torch.float64)).gamma2)
    assert found == pytest.approx(-0.5 * math.expm1(-2.0 * tau**2), rel=1e-12)


@pytest.mark.parametrize("inner", [torch.tanh, torch.sigmoid, torch.sin])
def test_a_slope_that_torch_does_not_see_is_refused(inner):
    with pytest.raises(BadInput, match="detach"):
        custom(lambda x: inner(x.detach()))


def fails(_):
    raise RuntimeError("no luck")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.sum(), "shape"),
        (lambda x: x[..., :1], "shape"),
        (lambda x: x.T, "shape"),
        (lambda x: x.flatten(), "shape"),
        (lambda x: x.numpy(), "ndarray"),
        (lambda _: 1.0, "float"),
        (lambda x: torch.softmax(x, -1), "mixes entries"),
        (lambda x: x - x.mean(), "mixes entries"),
        (lambda x: x.cumsum(-1), "mixes entries"),
        (lambda x: x.float(), "dtype"),
        (lambda x: x.to(torch.complex128), "dtype"),
        (lambda x: x > 0, "dtype"),
        (lambda x: x * float("nan"), "NaN"),
        (torch.sqrt, "NaN"),
        (torch.log, "NaN"),
        (lambda x: torch.exp(x.square()), "infinite"),
        (fails, "no luck"),
    ],
)
def test_functions_that_cannot_be_activations_are_refused(function, words):
    with pytest.raises(BadInput, match=words):
        custom(function, name="mine")


def test_a_function_that_changes_its_argument_is_refused():
    with pytest.raises(BadInput):
        custom(lambda x: x.clamp_(min=0.0), name="in place")


def test_a_random_function_is_refused():
    with pytest.raises(BadInput, match="depends"):
        custom(lambda x: x + torch.rand(x.shape, dtype=x.dtype))


@pytest.mark.parametrize("kinks", [[float("nan")], [float("inf"), 0.0], ["zero"]])
def test_kinks_must_be_finite_numbers(kinks):
    with pytest.raises(BadInput, match="kinks"):
        custom(torch.relu, kinks=kinks)
