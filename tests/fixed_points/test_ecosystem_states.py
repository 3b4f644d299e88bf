"""How gradients may be asked for, and what a state may look like: more lines of the table in the docs."""

import copy
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import notsodeep as nsd

from .plain import (
    WIDTH,
    Layer,
    assert_close,
    assert_same,
    assert_same_map,
    assert_same_module,
    contracting,
    derivatives,
    looped,
    loss,
    reference,
    samples,
    solved,
)


def zeros(device, *shape, dtype=torch.float64):
    return torch.zeros(shape, dtype=dtype, device=device)


# Ways to ask for a gradient


def test_two_passes_before_one_backward(device):
    layer, other = Layer(device), samples(seed=7, device=device, requires_grad=False)
    twin, x = reference(layer), samples(device=device, requires_grad=False)
    for module in (layer, twin):
        (loss(module(x)) + loss(module(other))).backward()
        loss(module(other)).backward()  # and one more on top
    assert_close([p.grad for p in layer.parameters()], [p.grad for p in twin.parameters()])


def test_a_second_backward_pass(device):
    layer, x = Layer(device), samples(device=device)
    twin = reference(layer)
    found, wanted = layer(x), twin(x)
    parameters = list(layer.parameters())
    first = torch.autograd.grad(loss(found), parameters, retain_graph=True)
    again = torch.autograd.grad(loss(found), parameters, retain_graph=True)
    third = torch.autograd.grad(found[0, 0], parameters)
    assert_close(first, again)
    assert_close(third, torch.autograd.grad(wanted[0, 0], list(twin.parameters())))
    with pytest.raises(RuntimeError, match="second time"):  # torch's own words, once the graph is freed
        torch.autograd.grad(found[0, 0], parameters)


def test_gradients_of_what_is_no_leaf(device):
    linear, x = contracting(device=device), samples(device=device)

    def run(solve):
        u, weight = torch.sin(x), 0.9 * linear.weight
        return solve(lambda z: torch.tanh(z @ weight.T + u), torch.zeros_like(x)), u, weight

    (found, *ours), (wanted, *theirs) = run(solved), run(looped)
    assert_same(found, [x, linear.weight, *ours], wanted, [x, linear.weight, *theirs], second=True)
    f = lambda z: torch.tanh(linear(z) + x)  # noqa: E731
    z0 = torch.zeros_like(x).requires_grad_()
    assert torch.autograd.grad(solved(f, z0).sum(), z0, allow_unused=True)[0] is None  # a start has no gradient


def test_hooks(device):
    layer, x = Layer(device), samples(device=device)
    wanted = (derivatives(reference(layer)(x), [x])[0], *derivatives((twin := reference(layer))(x), list(twin.parameters())))
    seen = []
    layer.inner.weight.register_hook(lambda g: 3.0 * g)
    layer.inject.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    layer.inner.register_forward_hook(lambda *_: seen.append("forward") if "forward" not in seen else None)
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    found = layer(x)
    found.register_hook(lambda g: 2.0 * g)
    loss(found).backward()
    factors = {"inner.weight": 6.0}
    for (name, p), gradient in zip(layer.named_parameters(), wanted[1:], strict=True):
        assert_close(p.grad, factors.get(name, 2.0) * gradient)
    assert_close(x.grad, 2.0 * wanted[0])
    assert "forward" in [s for s in seen if isinstance(s, str)]
    assert "backward" in [s for s in seen if isinstance(s, str)]
    assert_close([s for s in seen if isinstance(s, Tensor)], [layer.inject.weight.grad])


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_full_backward_hooks_inside(device):
    """They see the cotangents of every pull of the adjoint's solve, so they are called more than once."""
    layer, calls = Layer(device), []
    layer.inner.register_full_backward_hook(lambda *_: calls.append(1))
    assert_same_module(layer, layer, samples(device=device))
    assert len(calls) > 1


def test_frozen_parameters(device):
    layer, x = Layer(device), samples(device=device)
    layer.inner.requires_grad_(False)
    twin = reference(layer)
    assert_close(derivatives(layer(x), [x]), derivatives(twin(x), [x]))
    loss(layer(x)).backward()
    assert layer.inner.weight.grad is None


# States


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


STATES = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"left": a, "right": b},
    "ordered dict": lambda a, b: OrderedDict(left=a, right=b),
    "named tuple": Pair,
    "nested": lambda a, b: {"both": (a, [b])},
}


@pytest.mark.parametrize("name", STATES)
def test_nested_states(name, device):
    linear, x, make = contracting(device=device), samples(device=device), STATES[name]

    def f(state):
        a, b = torch.utils._pytree.tree_leaves(state)
        image = torch.tanh(linear(torch.cat([a, b.flatten(1)], dim=1)) + x)
        return make(image[:, :1], image[:, 1:].reshape(-1, 2, 2))

    start = make(zeros(device, 4, 1), zeros(device, 4, 2, 2))
    assert_same_map(f, start, [x, *linear.parameters()])
    assert type(solved(f, start)) is type(start)


def test_a_list_for_a_tuple(device):
    linear, x = contracting(device=device), samples(device=device)
    f = lambda s: list(torch.tanh(linear(torch.cat(list(s), dim=1)) + x).split([2, 3], dim=1))  # noqa: E731
    start = zeros(device, 4, 2), zeros(device, 4, 3)
    assert_same_map(f, start, [x, *linear.parameters()])
    assert isinstance(solved(f, start), tuple)  # the value is laid out like the start


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded", "channels last"])
def test_memory_layouts(layout, device):
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(2, 2, 3, padding=1).to(device, torch.float64)
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64).to(device).requires_grad_()
    z0 = {
        "transposed": zeros(device, 3, 4, 4, 2).permute(0, 3, 1, 2),
        "strided": zeros(device, 3, 2, 4, 8)[..., ::2],
        "expanded": zeros(device, 1, 1, 1, 1).expand(3, 2, 4, 4),
        "channels last": zeros(device, 3, 2, 4, 4).contiguous(memory_format=torch.channels_last),
    }[layout]
    if layout == "channels last":
        conv, u = conv.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    else:
        u = x
    f = lambda z: torch.tanh(0.2 * conv(z) + u)  # noqa: E731
    assert_same_map(f, z0, [x, *conv.parameters()])
    assert solved(f, z0).is_contiguous()  # as are the states that f is given


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_states(dtype, device):
    real = torch.float32 if dtype == torch.complex64 else torch.float64
    parts = [samples(seed=seed, device=device, requires_grad=False) for seed in (1, 2)]
    x = torch.complex(*parts).to(dtype).requires_grad_()
    weight = torch.complex(*(0.5 * contracting(seed=s, device=device).weight.detach() for s in (3, 4)))
    weight = weight.to(dtype).requires_grad_()
    f = lambda weight, x: lambda z: z @ weight.T / (1.0 + z.abs().square()) * 0.5 + x  # noqa: E731
    options = {"tol": None, "adjoint": None} if real == torch.float32 else {}
    found = solved(f(weight, x), torch.zeros_like(x), **options)
    wide = [t.detach().to(torch.complex128).requires_grad_() for t in (weight, x)]
    wanted = looped(f(*wide), torch.zeros_like(wide[1]))
    tolerances = {"rtol": 1e-3, "atol": 1e-4} if real == torch.float32 else {}
    assert found.dtype == dtype
    assert_close(found, wanted, **tolerances)
    assert_close(derivatives(found, [weight, x], True), derivatives(wanted, wide, True), **tolerances)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_states(dtype, device):
    layer = Layer(device, dtype)
    layer.solve = lambda f, z0: nsd.fixed_point(f, z0).value
    twin, x = reference(layer), samples(device=device, dtype=dtype)
    found, wanted = layer(x), twin(wide := x.detach().double().requires_grad_())
    assert found.dtype == dtype
    assert_close(found, wanted, rtol=0.05, atol=0.05)
    ours, theirs = derivatives(found, [x, *layer.parameters()]), derivatives(wanted, [wide, *twin.parameters()])
    for a, b in zip(ours, theirs, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 0.05


def test_a_number_as_the_state(device):
    a = torch.tensor(0.4, dtype=torch.float64, device=device, requires_grad=True)
    assert_same_map(lambda z: torch.cos(a * z), zeros(device), [a])


def test_a_start_that_is_kept(device):
    """Copied, neither changed nor handed out again."""
    layer, z0 = copy.deepcopy(Layer(device)), zeros(device, 4, WIDTH)
    u = samples(device=device)
    value = solved(lambda z: layer.step(z, u), z0)
    assert value.data_ptr() != z0.data_ptr()
    assert not bool(z0.any())
