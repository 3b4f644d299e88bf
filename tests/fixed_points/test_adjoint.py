"""Gradients through a fixed point: first and higher order, by autograd and by torch.func, three ways."""

import math

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import notsodeep as nsd

from .maps import SOLVERS, contraction, tanh_map

TIGHT = 1e-13
ADJOINTS = {"implicit": nsd.ImplicitAdjoint(tol=TIGHT), "unrolled": nsd.fixed_points.UnrolledAdjoint()}


def layer(solver=nsd.Picard(), adjoint=ADJOINTS["implicit"]):  # noqa: B008
    def run(weight, x):
        return nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), solver, adjoint, tol=TIGHT).value

    return run


@pytest.mark.parametrize("adjoint", ADJOINTS)
@pytest.mark.parametrize("name", SOLVERS)
def test_gradcheck_and_gradgradcheck(name, adjoint):
    weight, x = (t.requires_grad_() for t in contraction(2, 3))
    run = layer(SOLVERS[name], ADJOINTS[adjoint])
    assert torch.autograd.gradcheck(run, (weight, x))
    assert torch.autograd.gradgradcheck(run, (weight, x))


@pytest.mark.parametrize("adjoint", [nsd.ImplicitAdjoint(), nsd.fixed_points.UnrolledAdjoint()])
def test_default_tolerances_pass_gradcheck(adjoint):
    weight, x = (t.requires_grad_() for t in contraction(2, 3))
    run = lambda weight, x: nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), adjoint=adjoint).value  # noqa: E731
    assert torch.autograd.gradcheck(run, (weight, x))
    assert torch.autograd.gradgradcheck(run, (weight, x))


def test_third_derivatives():
    weight, x = (t.requires_grad_() for t in contraction(2, 2))

    def first(weight, x):
        return torch.autograd.grad(layer()(weight, x).square().sum(), weight, create_graph=True)[0]

    assert torch.autograd.gradgradcheck(first, (weight, x))


def test_second_derivatives_have_the_sign_of_calculus():
    # z = a z² + b near 0 has z'' > 0 in b: z = (1 − √(1 − 4ab))/2a, z'' = 2a (1 − 4ab)^(−3/2).
    a, b = 0.3, torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    z = nsd.fixed_point(lambda z: a * z**2 + b, torch.zeros((), dtype=torch.float64), tol=1e-14).value
    (first,) = torch.autograd.grad(z, b, create_graph=True)
    (second,) = torch.autograd.grad(first, b)
    root = 1.0 - 4.0 * a * float(b.detach())
    assert float(first.detach()) == pytest.approx(root**-0.5, rel=1e-9)
    assert float(second) == pytest.approx(2.0 * a * root**-1.5, rel=1e-9)


def test_the_fast_backward_is_the_differentiable_one():
    weight, x = (t.requires_grad_() for t in contraction(3, 4))
    fast = torch.autograd.grad(layer()(weight, x).square().sum(), (weight, x))
    slow = torch.autograd.grad(layer()(weight, x).square().sum(), (weight, x), create_graph=True)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_phantom_gradients_are_truncated_neumann_series():
    weight, x = contraction(4, 5)
    x.requires_grad_()
    exact = torch.autograd.grad(layer()(weight, x).sum(), x)[0]
    errors = []
    for steps in (1, 3, 10, 60):
        phantom = layer(adjoint=nsd.fixed_points.PhantomAdjoint(steps=steps))(weight, x)
        errors.append(float((torch.autograd.grad(phantom.sum(), x)[0] - exact).norm() / exact.norm()))
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[0] > 0.05
    assert errors[3] < 1e-8
    one = torch.autograd.grad(layer(adjoint=nsd.fixed_points.OneStepAdjoint())(weight, x).sum(), x)[0]
    z = layer()(weight, x).detach()
    torch.testing.assert_close(one, 1.0 - torch.tanh(z @ weight.T + x.detach()) ** 2, rtol=1e-8, atol=1e-9)


def test_what_is_kept_for_a_backward_pass_does_not_grow_with_the_steps():
    weight, x = contraction(16, 8, radius=0.95)
    weight.requires_grad_()

    def kept(adjoint, tol):
        saved = []

        def pack(tensor):
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), nsd.Picard(), adjoint, tol=tol, max_steps=5000)
        return sum(saved), found.evaluations

    (few, short), (many, long) = kept(nsd.ImplicitAdjoint(), 1e-2), kept(nsd.ImplicitAdjoint(), 1e-12)
    assert long > 3 * short
    assert few == many
    assert kept(nsd.fixed_points.UnrolledAdjoint(), 1e-12)[0] > 3 * kept(nsd.fixed_points.UnrolledAdjoint(), 1e-2)[0]


def test_the_backward_has_a_tolerance_and_an_error_of_its_own():
    weight, x = contraction(4, 5, radius=0.95)
    x.requires_grad_()
    exact = torch.autograd.grad(layer()(weight, x).sum(), x)[0]
    loose = layer(adjoint=nsd.ImplicitAdjoint(nsd.Picard(), tol=1e-2))(weight, x)
    gap = float((torch.autograd.grad(loose.sum(), x)[0] - exact).norm() / exact.norm())
    assert 1e-6 < gap < 0.3
    short = layer(adjoint=nsd.ImplicitAdjoint(nsd.Picard(), tol=TIGHT, max_steps=2))(weight, x)
    with pytest.raises(nsd.NotConverged, match="gradient of the fixed point"):
        short.sum().backward()
    lenient = layer(adjoint=nsd.ImplicitAdjoint(nsd.Picard(), tol=TIGHT, max_steps=2, throw=False))(weight, x)
    with pytest.warns(nsd.NumericsWarning, match="gradient"):
        lenient.sum().backward()


def test_torch_func():
    weight, x = contraction(3, 4)
    run = layer()
    by_autograd = torch.autograd.functional.jacobian(run, (weight, x))
    for transform in (jacrev, jacfwd):
        for a, b in zip(transform(run, argnums=(0, 1))(weight, x), by_autograd, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    energy = lambda x: run(weight, x).square().sum()  # noqa: E731
    torch.testing.assert_close(hessian(energy)(x), jacrev(jacrev(energy))(x), rtol=1e-9, atol=1e-10)


def test_vmap_over_samples_and_over_weights():
    weight, x = contraction(5, 4)
    one = lambda weight, row: layer()(weight, row)  # noqa: E731
    many = vmap(one, in_dims=(None, 0))(weight, x)
    torch.testing.assert_close(many, layer()(weight, x), rtol=1e-10, atol=1e-11)
    weights = torch.stack([contraction(1, 4, seed=s)[0] for s in range(3)], dim=-1)  # batched along the last axis
    both = vmap(vmap(one, in_dims=(None, 0)), in_dims=(2, None))(weights, x)
    for k in range(3):
        torch.testing.assert_close(both[k], layer()(weights[..., k], x), rtol=1e-10, atol=1e-11)
    per_sample = vmap(grad(lambda row: one(weight, row).square().sum()))(x)
    x.requires_grad_()
    torch.testing.assert_close(per_sample, torch.autograd.grad(layer()(weight, x).square().sum(), x)[0], rtol=1e-8, atol=1e-9)


def test_one_implicit_layer_inside_another():
    w, v = (torch.tensor(c, dtype=torch.float64, requires_grad=True) for c in (0.4, 0.7))
    adjoint = ADJOINTS["implicit"]

    def nested(w, v):
        def outer(z):
            inner = nsd.fixed_point(lambda y: torch.tanh(w * y + v * z), torch.zeros_like(z), nsd.Picard(), adjoint, tol=TIGHT)
            return torch.sin(0.5 * inner.value + w)

        return nsd.fixed_point(outer, torch.zeros(1, 2, dtype=torch.float64), nsd.Picard(), adjoint, tol=TIGHT).value

    assert torch.autograd.gradcheck(nested, (w, v))
    assert torch.autograd.gradgradcheck(nested, (w, v))


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e12])
def test_gradients_scale_with_the_loss(scale):
    weight, x = contraction(6, 8, radius=0.9, dtype=torch.float32)
    x.requires_grad_()
    value = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x)).value
    one = torch.autograd.grad(value.sum(), x, retain_graph=True)[0]
    scaled = torch.autograd.grad(scale * value.sum(), x)[0] / scale
    torch.testing.assert_close(scaled, one, rtol=1e-4, atol=1e-6)


def test_forward_mode_without_grad_mode():
    weight, x = contraction(3, 4)
    run = lambda x: layer()(weight, x)  # noqa: E731
    wanted = torch.func.jvp(run, (x,), (torch.ones_like(x),))[1]
    with torch.no_grad():
        torch.testing.assert_close(torch.func.jvp(run, (x,), (torch.ones_like(x),))[1], wanted)
        torch.testing.assert_close(vmap(run)(x), run(x), rtol=1e-9, atol=1e-10)


def test_what_cannot_be_batched_says_so():
    weight, x = (t.requires_grad_() for t in contraction(3, 4))
    value = layer()(weight, x)
    with pytest.raises(nsd.BadInput, match="jacrev"):
        torch.autograd.grad(value, weight, torch.eye(3, dtype=x.dtype)[:, :, None].expand(3, 3, 4), is_grads_batched=True)
    with pytest.raises(nsd.BadInput, match="UnrolledAdjoint"):
        vmap(lambda row: layer(adjoint=nsd.fixed_points.UnrolledAdjoint())(weight, row))(x)


def test_unrolled_from_an_exact_start_has_a_gradient():
    b = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    start = torch.full((2, 3), 2.0, dtype=torch.float64)
    value = nsd.fixed_point(lambda z: 0.5 * z + b, start, adjoint=nsd.fixed_points.UnrolledAdjoint()).value
    assert value.requires_grad


def test_a_sample_that_fails_has_no_say_in_the_gradient():
    w = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    factor = torch.tensor([[0.5], [1.5], [0.5]], dtype=torch.float64)
    found = nsd.fixed_point(lambda z: w * factor * z + 1.0, torch.zeros(3, 1, dtype=torch.float64), nsd.Picard(), throw=False)
    assert found.converged.tolist() == [True, False, True]
    assert float(found.value[1].abs().detach()) < 100.0  # not the farthest iterate, whose relative residual is the smallest
    found.value.sum().backward()
    assert float(w.grad) == pytest.approx(2 * 0.5 / 0.25, rel=1e-6)  # d/dw 1/(1 − w/2), twice


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    torch.manual_seed(0)
    linear = torch.nn.Linear(20, 20)
    with torch.no_grad():
        linear.weight.mul_(0.5)
    x = torch.randn(8, 20)

    def gradient():
        found = nsd.fixed_point(lambda z: torch.tanh(linear(z) + x), torch.zeros(8, 20))
        return found, torch.autograd.grad(found.value.square().sum(), linear.weight)[0]

    exact, wanted = gradient()
    with torch.autocast("cpu", dtype=dtype):
        found, inside = gradient()
        assert found.value.dtype == torch.float32
        value = nsd.fixed_point(lambda z: torch.tanh(linear(z) + x), torch.zeros(8, 20)).value
    (outside,) = torch.autograd.grad(value.square().sum(), linear.weight)  # as one should: backward outside of autocast
    for reached in (inside, outside):
        assert float((reached - wanted).norm() / wanted.norm()) < 0.05
    assert float((found.value - exact.value).norm() / exact.value.norm()) < 0.02


def test_inside_a_compiled_function():
    weight, x = contraction(3, 4)
    weight.requires_grad_()

    def network(x):
        z = nsd.fixed_point(lambda z: torch.tanh(z @ weight.T + x), torch.zeros_like(x), tol=TIGHT).value
        return (2.0 * z + 1.0).square().sum()

    wanted = torch.autograd.grad(network(x), weight)[0]
    compiled = torch.compile(network, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x), weight)[0], wanted)


def test_nothing_is_kept_without_gradients():
    weight, x = contraction(3, 4)
    weight.requires_grad_()
    with torch.no_grad():
        assert not nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x)).value.requires_grad
    with torch.inference_mode():
        assert math.isfinite(float(nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x)).value.sum()))
