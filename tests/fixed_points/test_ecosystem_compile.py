"""A compiled f, a scripted one, one with derivatives of its own, a compiler around it all: lines of the table in the docs."""

import copy
import shutil
import sys

import pytest
import torch

import notsodeep as nsd

from .plain import (
    Layer,
    assert_same,
    assert_same_map,
    assert_same_module,
    contracting,
    derivatives,
    looped,
    reference,
    samples,
    solved,
)

FLOAT32 = {"rtol": 1e-3, "atol": 1e-4}
NO_COMPILER = shutil.which("g++") is None and shutil.which("clang++") is None


@pytest.fixture(autouse=True)
def forget_compiled():
    """One test's graphs are not to count towards the next one's limit of recompilations."""
    torch.compiler.reset()
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


# torch.compile


def test_compiled_around(device):
    layer, x = Layer(device), samples(device=device)
    twin = reference(layer)
    network = torch.compile(lambda x: 2.0 * layer(torch.sin(x)), backend="aot_eager")
    assert_same(network(x), [x, *layer.parameters()], 2.0 * twin(torch.sin(x)), [x, *twin.parameters()])


@pytest.mark.skipif(NO_COMPILER, reason="no compiler")
def test_compiled_around_by_inductor(device):
    layer = Layer(device)
    assert_same_module(torch.compile(layer), layer, samples(device=device))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_inside(fullgraph, device):
    linear, x = contracting(device=device), samples(device=device)
    eager = lambda z, x: 0.9 * torch.tanh(x + linear(z))  # noqa: E731
    f = torch.compile(eager, backend="aot_eager", fullgraph=fullgraph)
    tensors, z0 = [x, *linear.parameters()], torch.zeros_like(x)
    assert_same(solved(lambda z: f(z, x), z0), tensors, looped(lambda z: eager(z, x), z0), tensors)
    with pytest.raises(RuntimeError, match="double backward"):  # there is none through compiled code
        derivatives(solved(lambda z: f(z, x), z0), tensors, second=True)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_inside_with_a_constant(fullgraph, device):
    linear, x = contracting(device=device), samples(device=device, requires_grad=False)
    eager = lambda z, x: 0.9 * torch.tanh(x + linear(z))  # noqa: E731
    f = torch.compile(eager, backend="aot_eager", fullgraph=fullgraph)
    tensors, z0 = list(linear.parameters()), torch.zeros_like(x)
    assert_same(solved(lambda z: f(z, x), z0), tensors, looped(lambda z: eager(z, x), z0), tensors)


@pytest.mark.slow
@pytest.mark.skipif(NO_COMPILER, reason="no compiler")
def test_compiled_inside_by_inductor(device):
    linear = contracting(16, device=device, dtype=torch.float32)
    x = samples(4, 16, device=device, dtype=torch.float32, requires_grad=False)
    f = torch.compile(lambda z, x: 0.1 * torch.tanh(x + linear(z)))
    found = nsd.fixed_point(lambda z: f(z, x), torch.zeros(4, 16, device=device)).value
    wide, twin = x.double(), copy.deepcopy(linear).double()
    wanted = looped(lambda z: 0.1 * torch.tanh(wide + twin(z)), torch.zeros_like(wide))
    assert_same(found, list(linear.parameters()), wanted, list(twin.parameters()), **FLOAT32)


def test_compiled_inside_and_around():
    layer, x = Layer(), samples()
    twin = reference(layer)
    layer.step = torch.compile(layer.step, backend="aot_eager")
    network = torch.compile(layer, backend="aot_eager")
    assert_same(network(x), [x, *layer.parameters()], twin(x), [x, *twin.parameters()])


def test_a_module_inside_compiled_in_place(device):
    layer, x = Layer(device), samples(device=device)
    twin = reference(layer)
    layer.inner.compile(backend="aot_eager")
    assert_same(layer(x), [x, *layer.parameters()], twin(x), [x, *twin.parameters()])


# TorchScript


def _step(z, weight, x):
    return torch.tanh(z @ weight.T + x)


def _scripted(kind, *example):
    return torch.jit.script(_step) if kind == "script" else torch.jit.trace(_step, example)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["script", "trace"])
def test_scripted_with_arguments(kind, device):
    weight, x = contracting(device=device).weight, samples(device=device)
    f = _scripted(kind, torch.zeros_like(x), weight.detach(), x.detach())
    tensors, z0 = [weight, x], torch.zeros_like(x)
    assert_same(solved(f, z0, args=tuple(tensors)), tensors, looped(lambda z: _step(z, weight, x), z0), tensors)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["script", "trace"])
def test_scripted_and_closed_over(kind, device):
    weight, x = contracting(device=device).weight, samples(device=device)
    f = _scripted(kind, torch.zeros_like(x), weight.detach(), x.detach())
    assert_same_map(lambda z: f(z, weight, x), torch.zeros_like(x), [weight, x], second=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["script", "trace"])
def test_scripted_under_torch_func(kind):
    weight, x = contracting().weight.detach(), samples().detach()  # on CUDA TorchScript's fuser knows no torch.func
    z0 = torch.zeros_like(x)
    f = _scripted(kind, z0, weight, x)
    with pytest.raises(nsd.BadInput, match="args="):  # not a gradient without its share
        torch.func.grad(lambda w: nsd.fixed_point(lambda z: f(z, w, x), z0).value.sum())(weight)
    shown = torch.func.grad(lambda w: nsd.fixed_point(lambda z, w: f(z, w, x), z0, args=(w,)).value.sum())(weight)
    looked_into = torch.func.grad(lambda w: nsd.fixed_point(lambda z: _step(z, w, x), z0).value.sum())(weight)
    torch.testing.assert_close(shown, looked_into)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["script", "trace"])
def test_scripted_module(kind, device):
    linear, x = contracting(device=device), samples(device=device)
    inner = torch.jit.script(linear) if kind == "script" else torch.jit.trace(linear, x.detach())
    tensors = [x, *inner.parameters()]
    assert_same_map(lambda z: torch.tanh(inner(z) + x), torch.zeros_like(x), tensors, second=False)


# Custom autograd functions


class _Product(torch.autograd.Function):
    """z @ Wᵀ, with a derivative of its own."""

    @staticmethod
    def forward(z, weight):
        return z @ weight.T

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        z, weight = ctx.saved_tensors
        return g @ weight, g.T @ z


@pytest.mark.parametrize("second", [False, True])
def test_custom_function_with_arguments(second, device):
    weight, x = contracting(device=device).weight, samples(device=device)
    f = lambda z, weight, x: torch.tanh(_Product.apply(z, weight) + x)  # noqa: E731
    tensors, z0 = [weight, x], torch.zeros_like(x)
    assert_same(solved(f, z0, args=tuple(tensors)), tensors, looped(lambda z: f(z, weight, x), z0), tensors, second)


@pytest.mark.parametrize("second", [False, True])
def test_custom_function_closed_over(second, device):
    weight, x = contracting(device=device).weight, samples(device=device)
    f = lambda z: torch.tanh(_Product.apply(z, weight) + x)  # noqa: E731
    assert_same_map(f, torch.zeros_like(x), [weight, x], second)
