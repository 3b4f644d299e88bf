"""φ' against automatic differentiation and against finite differences of φ."""

import mpmath
import pytest
import torch

from notsodeep.activations import Centred, Scaled, custom, expression
from notsodeep.activations.slopes import derivative
from tests.zoo import away_from_kinks, build, each


@each()
def test_derivative_is_that_of_autograd(name):
    phi = build(name)
    x = away_from_kinks(phi).requires_grad_()
    value = phi(x)
    (slope,) = torch.autograd.grad(value.sum(), x) if value.requires_grad else (torch.zeros_like(x),)
    torch.testing.assert_close(phi.derivative(x.detach()), slope, rtol=1e-13, atol=1e-13)


@each()
def test_derivative_is_that_of_finite_differences(name):
    """Fourth-order central differences: h = 1e-4 balances h⁴ against round-off/h at about 1e-11."""
    phi = build(name)
    x, h = away_from_kinks(phi), 1e-4
    with torch.no_grad():
        slope = (8.0 * (phi(x + h) - phi(x - h)) - (phi(x + 2 * h) - phi(x - 2 * h))) / (12.0 * h)
        torch.testing.assert_close(phi.derivative(x), slope, rtol=1e-10, atol=1e-10)


@each()
def test_derivative_is_finite_at_the_kinks_and_far_out(name):
    phi = build(name)
    x = torch.tensor([*phi.kinks, 0.0, -60.0, 60.0], dtype=torch.float64)
    assert torch.isfinite(phi.derivative(x)).all()


@each()
def test_shape_and_dtype_are_kept(name):
    phi = build(name)
    for dtype in (torch.float32, torch.float64):
        x = torch.linspace(-2.0, 2.0, 6, dtype=dtype).reshape(2, 3)
        for y in (phi(x), phi.derivative(x)):
            assert y.shape == x.shape
            assert y.dtype == dtype


@each()
def test_float32_agrees_with_float64(name):
    phi = build(name)
    x = away_from_kinks(phi, points=101)
    torch.testing.assert_close(phi(x.float()).double(), phi(x.float().double()), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(phi.derivative(x.float()).double(), phi.derivative(x.float().double()), rtol=1e-5, atol=1e-5)


@each()
def test_wrappers_are_affine_in_the_values(name):
    phi = build(name)
    x = torch.linspace(-3.0, 3.0, 50, dtype=torch.float64)
    centred, scaled = Centred(phi, 0.3), Scaled(phi, -2.0)
    assert torch.equal(centred(x), phi(x) - 0.3)
    assert torch.equal(centred.derivative(x), phi.derivative(x))
    assert torch.equal(scaled(x), -2.0 * phi(x))
    assert torch.equal(scaled.derivative(x), -2.0 * phi.derivative(x))
    assert centred.kinks == scaled.kinks == phi.kinks
    assert centred.jumps == phi.jumps
    assert scaled.jumps == tuple((place, -2.0 * size) for place, size in phi.jumps)


@pytest.mark.parametrize("place", [-5.0, -9.0, -20.0, -35.0])
@pytest.mark.parametrize("phi", [build("gelu"), expression("gelu(x) + 0*tanh(x)")], ids=str)
def test_the_left_tail_of_gelu_has_all_digits(phi, place):
    x = torch.tensor(place, dtype=torch.float64)
    with mpmath.workdps(30):
        value = mpmath.mpf(place) * mpmath.ncdf(place)
        slope = mpmath.ncdf(place) + mpmath.mpf(place) * mpmath.npdf(place)
    assert float(phi(x)) == pytest.approx(float(value), rel=2e-13, abs=0.0)
    assert float(phi.derivative(x)) == pytest.approx(float(slope), rel=2e-13, abs=0.0)


@pytest.mark.parametrize("place", [3.0, 12.0, 20.0, 200.0])
@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (torch.tanh, lambda x: mpmath.sech(x) ** 2),
        (torch.nn.Tanh(), lambda x: mpmath.sech(x) ** 2),
        (torch.nn.functional.sigmoid, lambda x: 1 / (2 + 2 * mpmath.cosh(x))),
        (lambda x: torch.expm1(-x), lambda x: -mpmath.exp(-x)),
    ],
    ids=["tanh", "Tanh", "sigmoid", "expm1"],
)
def test_slopes_have_all_digits_where_the_value_has_none_left(function, exact, place):
    slope = custom(function).derivative(torch.tensor([place], dtype=torch.float64))
    with mpmath.workdps(30):
        assert float(slope[0]) == pytest.approx(float(exact(mpmath.mpf(place))), rel=1e-13, abs=0.0)


def test_slopes_have_slopes():
    x = torch.linspace(-3.0, 3.0, 13, dtype=torch.float64)
    curvature = derivative(lambda u: derivative(lambda v: torch.tanh(v) * torch.sigmoid(v), u, keep=True), x)
    t, s = torch.tanh(x), torch.sigmoid(x)
    flat, bent = 1.0 - t.square(), s * (1.0 - s)
    torch.testing.assert_close(curvature, -2.0 * t * flat * s + 2.0 * flat * bent + t * bent * (1.0 - 2.0 * s))
