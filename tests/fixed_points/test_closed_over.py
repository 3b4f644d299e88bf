"""Tensors that f closes over are found wherever they are, and get their gradients."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad

import notsodeep as nsd

from .maps import contraction, tanh_map

TIGHT = 1e-13
EXACT = nsd.ImplicitAdjoint(tol=TIGHT)


def test_a_tensor_and_what_it_was_made_of_are_both_closed_over():
    # u depends on W outside of f: W's gradient must hold both ways, each once.
    weight, x = (t.requires_grad_() for t in contraction(2, 3))

    def run(weight, x):
        u = x @ weight.T
        return nsd.fixed_point(lambda z: torch.tanh(z @ weight.T + u), torch.zeros_like(x), adjoint=EXACT, tol=TIGHT).value

    assert torch.autograd.gradcheck(run, (weight, x))
    assert torch.autograd.gradgradcheck(run, (weight, x))


def test_explicit_arguments_say_the_same():
    weight, x = (t.requires_grad_() for t in contraction(3, 4))
    f = lambda z, weight, x: torch.tanh(z @ weight.T + x)  # noqa: E731
    given = nsd.fixed_point(f, torch.zeros_like(x), args=(weight, x), tol=TIGHT).value
    closed = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), tol=TIGHT).value
    for a, b in zip(
        torch.autograd.grad(given.square().sum(), (weight, x)),
        torch.autograd.grad(closed.square().sum(), (weight, x)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, z):
        ctx.save_for_backward(a, z)
        return a * z

    @staticmethod
    def backward(ctx, g):
        a, z = ctx.saved_tensors
        return (g * z).sum(), g * a


def test_what_f_is_made_of_does_not_matter_to_a_first_derivative():
    a = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    z0 = torch.ones(3, 2, dtype=torch.float64)
    for f, args in ((lambda z: _Product.apply(a, z) + 1.0, None), (lambda z, a: _Product.apply(a, z) + 1.0, (a,))):
        value = nsd.fixed_point(f, z0, args=args).value
        assert float(torch.autograd.grad(value.sum(), a)[0]) == pytest.approx(6.0 / (1.0 - 0.3) ** 2, rel=1e-8)
    hidden = nsd.fixed_point(lambda z: _Product.apply(a, z) + 1.0, z0).value
    with pytest.raises(RuntimeError, match="setup_context"):  # a second one looks through f with torch.func
        torch.autograd.grad(hidden.sum(), a, create_graph=True)


def test_a_tensor_in_a_branch_not_taken_at_first_has_its_gradient():
    w = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    z0 = torch.zeros(4, 3, dtype=torch.float64)
    late = lambda z: w * z + 1.0 if float(z.detach().sum()) > 0 else 0.3 * z + 1.0  # noqa: E731
    nsd.fixed_point(late, z0).value.sum().backward()
    assert float(w.grad) == pytest.approx(12.0 / 0.25, rel=1e-8)
    b = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    value = nsd.fixed_point(lambda z, b: w * z + b, z0, args=(b,)).value
    for tensor, wanted in ((b, torch.full_like(b, 2.0)), (w, torch.tensor(48.0, dtype=torch.float64))):
        (found,) = torch.autograd.grad(value.sum(), tensor, retain_graph=True)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=0.0)
    with pytest.raises(nsd.BadInput, match="args="):  # beside args
        torch.autograd.grad(value.sum(), b, create_graph=True)


def test_names_may_stand_for_something_else_in_the_backward_pass():
    weight, x = contraction(3, 4)
    weight.requires_grad_()
    total, wanted = 0.0, 0.0
    for k in range(2):
        shifted = x * (k + 1)
        total = total + nsd.fixed_point(lambda z: torch.tanh(z @ weight.T + shifted), torch.zeros_like(x)).value.sum()  # noqa: B023
        bound = nsd.fixed_point(lambda z, u=shifted: torch.tanh(z @ weight.T + u), torch.zeros_like(x)).value
        wanted = wanted + torch.autograd.grad(bound.sum(), weight)[0]
    torch.testing.assert_close(torch.autograd.grad(total, weight, retain_graph=True)[0], wanted, rtol=1e-8, atol=1e-9)
    with pytest.raises(nsd.BadInput, match="lambda z, x=x"):  # a second derivative evaluates f again
        torch.autograd.grad(total, weight, create_graph=True)
    constant = x.clone()
    value = nsd.fixed_point(lambda z: torch.tanh(z @ weight.T * constant), torch.zeros_like(x) + 0.1).value
    constant.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


def pure_maps(weight, x):
    """Functions that make their constants anew, keep them, or differentiate inside: each the same function every time."""
    array, cache = np.linspace(-1.0, 1.0, 4), {}

    def cached(z):
        if "c" not in cache:
            cache["c"] = torch.sin(torch.arange(4, dtype=torch.float64))
        return torch.tanh(z @ weight.T + cache["c"] + x)

    energy = torch.func.grad(lambda q: torch.log(torch.cosh(q @ weight.T + x)).sum())
    return {
        "from_numpy": lambda z: torch.tanh(z @ weight.T + torch.from_numpy(array) + x),
        "legacy constructor": lambda z: torch.tanh(z @ weight.T + torch.DoubleTensor([1.0, 2.0, 3.0, 4.0]) + x),
        "cached": cached,
        "factories": lambda z: torch.tanh(z @ weight.T + torch.ones(4, dtype=z.dtype) + torch.eye(4, dtype=z.dtype)[0] + x),
        "inner gradient": lambda z: energy(z) + 0.1,
        "inner vmap": lambda z: torch.tanh(torch.vmap(lambda row: weight @ row)(z) + x),
        "data": lambda z: torch.tanh(z @ weight.T + x.data * x),
    }


@pytest.mark.parametrize("name", pure_maps(None, None))
def test_maps_that_make_their_own_constants(name):
    weight, x = (t.requires_grad_() for t in contraction(3, 4, radius=0.4))
    gradients = []
    for adjoint in (EXACT, nsd.fixed_points.UnrolledAdjoint()):

        def energy(adjoint=adjoint):
            f = pure_maps(weight, x)[name]
            return nsd.fixed_point(f, torch.zeros(3, 4, dtype=torch.float64), adjoint=adjoint, tol=TIGHT).value.square().sum()

        plain = torch.autograd.grad(energy(), (weight, x))
        first = torch.autograd.grad(energy(), (weight, x), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), (weight, x))
        gradients.append((*plain, *first, *second))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


def test_a_module_as_the_map():
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 4, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.mul_(0.5)
    x = torch.randn(3, 4, dtype=torch.float64)
    nsd.fixed_point(lambda z: torch.tanh(linear(z) + x), torch.zeros_like(x), tol=TIGHT).value.sum().backward()
    found = {name: p.grad.clone() for name, p in linear.named_parameters()}

    def loss(parameters):
        f = lambda z: torch.tanh(functional_call(linear, parameters, (z,)) + x)  # noqa: E731
        return nsd.fixed_point(f, torch.zeros_like(x), tol=TIGHT).value.sum()

    by_func = grad(loss)({name: p.detach() for name, p in linear.named_parameters()})
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, by_func[name], rtol=1e-8, atol=1e-10)


def test_a_map_that_ignores_its_state():
    b = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    value = nsd.fixed_point(lambda _: 2.0 * b, torch.zeros(2, 3, dtype=torch.float64)).value
    value.sum().backward()
    torch.testing.assert_close(b.grad, torch.full((2, 3), 2.0, dtype=torch.float64))


def test_torch_func_refuses_what_is_neither_named_nor_seen():
    weight, x = contraction(4, 3)
    z0 = torch.zeros_like(x)
    loss = lambda w, **named: nsd.fixed_point(lambda z, x=x: torch.tanh(z @ w.T + x), z0, **named).value.sum()  # noqa: E731
    with pytest.raises(nsd.BadInput, match="args"):
        torch.func.grad(lambda w: loss(w, args=(x,)))(weight.detach())
    assert float(torch.func.grad(loss)(weight.detach()).norm()) > 0.1


def test_a_constant_met_later_is_not_taken_for_another_tensor():
    """A branch that the first evaluation does not take brings a constant of the parameter's shape."""
    q, b = torch.full((1,), 0.9).double(), torch.full((1,), 2.0).double()
    z0 = torch.zeros(1, 1).double()

    def solved(q):
        f = lambda z: q * z + 1.0 if z.norm() < 1.0 else q * z + 1.0 + 0.1 * torch.sin(b * z)  # noqa: E731
        return nsd.fixed_point(f, z0, nsd.Picard(), max_steps=1000, samples=0).value.sum()

    value, pull = torch.func.vjp(solved, q)
    leaf = q.clone().requires_grad_()
    wanted = solved(leaf)
    torch.testing.assert_close(value, wanted.detach())
    torch.testing.assert_close(pull(torch.ones_like(value))[0], torch.autograd.grad(wanted, leaf)[0])
