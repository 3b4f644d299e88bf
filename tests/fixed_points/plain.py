"""A fixed point as a plain loop in float64, differentiated by autograd alone: what the tests of the ecosystem compare with."""

import copy
from datetime import timedelta

import torch
from torch.utils import _pytree as pytree

import notsodeep as nsd

WIDTH = 5


EXACTLY = {"adjoint": nsd.ImplicitAdjoint(tol=1e-12), "tol": 1e-12}


def solved(f, z0, **options):
    return nsd.fixed_point(f, z0, **{**EXACTLY, **options}).value


def looped(f, z0):
    for _ in range(60):  # of contractions by 0.5 or better: down to rounding
        z0 = f(z0)
    return z0


def contracting(width=WIDTH, seed=0, device="cpu", dtype=torch.float64):
    """A linear layer of spectral norm 0.5."""
    draw = torch.Generator("cpu").manual_seed(seed)
    linear = torch.nn.Linear(width, width, dtype=torch.float64, device="cpu")  # drawn there, so the same everywhere
    with torch.no_grad():
        linear.weight.copy_(torch.randn(width, width, generator=draw, dtype=torch.float64, device="cpu"))
        linear.weight.mul_(0.5 / torch.linalg.matrix_norm(linear.weight, 2))
        linear.bias.copy_(torch.randn(width, generator=draw, dtype=torch.float64, device="cpu"))
    return linear.to(device, dtype)


def samples(n=4, width=WIDTH, seed=1, device="cpu", dtype=torch.float64, **options):
    draw = torch.Generator("cpu").manual_seed(seed)
    x = torch.randn(n, width, generator=draw, dtype=torch.float64, device="cpu")
    return x.to(device, dtype).requires_grad_(**options)


class Layer(torch.nn.Module):
    """A module with a fixed point inside: z = step(z, u), u = inject(x). `solve` says how, so a copy can be the reference."""

    def __init__(self, device="cpu", dtype=torch.float64, seed=0):
        super().__init__()
        self.inject = contracting(seed=seed + 10, device=device, dtype=dtype)
        self.inner = contracting(seed=seed, device=device, dtype=dtype)
        self.solve = solved

    def step(self, z, u):
        return torch.tanh(self.inner(z) + u)

    def forward(self, x):
        u = self.inject(x)
        return self.solve(lambda z: self.step(z, u), torch.zeros_like(u))


def reference(layer):
    """A copy in float64 whose fixed points are plain loops."""
    twin = copy.deepcopy(layer).double()
    twin.solve = looped
    return twin


def loss(value):
    return sum((leaf * leaf.conj() + leaf).real.sum() for leaf in pytree.tree_leaves(value))


def derivatives(value, tensors, second=False):
    first = torch.autograd.grad(loss(value), tensors, create_graph=second)
    if not second:
        return first
    size = sum((g * g.conj()).real.sum() for g in first)
    return (*first, *torch.autograd.grad(size, tensors))


def assert_close(found, wanted, rtol=1e-7, atol=1e-8):
    """Equal in number and in structure; `wanted` may be in more precision."""
    ours, theirs = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach().to(b.dtype), b.detach(), rtol=rtol, atol=atol)


def assert_same(found, tensors, wanted, theirs, second=False, **tolerances):
    """Two values and their derivatives, each by tensors of its own."""
    assert_close(found, wanted, **tolerances)
    assert_close(derivatives(found, tensors, second), derivatives(wanted, theirs, second), **tolerances)


def assert_same_map(f, z0, tensors, second=True, **options):
    """The fixed point of f, its derivatives and theirs are those of the plain loop."""
    assert_same(solved(f, z0, **options), tensors, looped(f, z0), tensors, second)


def assert_same_module(module, layer, x, run=None, **tolerances):
    """module(x), the gradient of x and those of the parameters of `layer`, around which `module` is, are the reference's."""
    twin, wide = reference(layer), x.detach().double().requires_grad_()
    found, wanted = (run or module)(x), twin(wide)
    assert_close(found, wanted, **tolerances)
    loss(found).backward()
    loss(wanted).backward()
    assert_close(x.grad, wide.grad, **tolerances)
    for (name, ours), theirs in zip(layer.named_parameters(), twin.parameters(), strict=True):
        assert ours.grad is not None, name
        assert_close(ours.grad, theirs.grad, **tolerances)


def distributed(rank, size, store, variants=({},)):
    """One process of `size`: on its share of the samples, the averaged gradient is that of the whole."""
    torch.set_num_threads(1)
    meeting = {"init_method": f"file://{store}", "timeout": timedelta(minutes=3)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size, **meeting)
    try:
        for options in variants:
            layer = Layer()
            twin, x = reference(layer), samples(4)
            wrapped = torch.nn.parallel.DistributedDataParallel(layer, **options)
            wrapped(x[rank::size]).square().mean().backward()
            twin(x).square().mean().backward()
            assert_close([p.grad for p in layer.parameters()], [p.grad for p in twin.parameters()])
        with wrapped.no_sync():  # these gradients accumulate, and are averaged in the pass after
            wrapped(x[rank::size]).square().mean().backward()
        wrapped(x[rank::size]).square().mean().backward()
        assert_close([p.grad for p in layer.parameters()], [3.0 * p.grad for p in twin.parameters()])
    finally:
        torch.distributed.destroy_process_group()
