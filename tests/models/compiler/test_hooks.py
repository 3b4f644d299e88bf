"""Hooks that a user put on his module: those that watch are left alone, those that compute go with the compiler's copies."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import notsodeep as nsd
from tests.models.compiler.test_foreign import FEATURES, QUIET, WIDTH, Looping, Own, X

Y = torch.arange(len(X)) % 3
TRAINED = {"budget": 0.6, "progress": False}


class Deq(nn.Module):
    """Makes a DEQ with answers."""

    def __new__(cls):
        draw = torch.Generator().manual_seed(0)
        deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), FEATURES, WIDTH, 3, readout_bias=True, generator=draw)
        with torch.no_grad():
            deq.readout.weight.mul_(2.0)
        return deq


def compiled_of(model, options=TRAINED):
    named = {"layer": model.deq, "map": model.deq.f} if isinstance(model, Looping) else {}
    named |= {"family": "matched"} if isinstance(model, nsd.DEQ) else {}
    return nsd.compile_deq(model, X, Y, keep=0.5, **named, **options)


@pytest.mark.parametrize("make", [Own, Looping, Deq])
def test_hooks_that_watch_are_called_for_two_batches_and_never_again(make):
    """However many ways are tried; backward hooks and those that modules of the copies would have are not called at all."""
    model, seen = make(), []
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model.register_forward_pre_hook(lambda *_: seen.append("pre"))
    model.register_forward_hook(lambda *_, **__: seen.append("named"), with_kwargs=True, always_call=True)
    model.register_full_backward_hook(lambda *_: seen.append("backward"))
    model.register_full_backward_pre_hook(lambda *_: seen.append("before backward"))
    compiled = compiled_of(model)
    assert sorted(seen) == sorted(2 * ["forward", "pre", "named"])
    seen.clear()
    for way in compiled.frontier.ways:
        way.module(X)
    assert seen == []
    model(X).sum().backward()
    assert set(seen) == {"forward", "pre", "named", "backward", "before backward"}


@pytest.mark.parametrize("make", [Own, Looping])
def test_hooks_inside_of_the_map(make):
    model, seen = make(), []
    inner = model.deq.inner if make is Looping else model.inner
    inner.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        copy.deepcopy(model).eval()(X)
    once = len(seen)
    seen.clear()
    compiled_of(model)
    assert len(seen) == 2 * once


@pytest.mark.parametrize("make", [Own, Looping, Deq])
@pytest.mark.parametrize(
    "register",
    [
        lambda model: model.register_forward_hook(lambda _, __, out: out.flip(1)),
        lambda model: model.register_forward_pre_hook(lambda _, given: (given[0] * 0.5,)),
        lambda model: model.register_forward_hook(lambda _, __, out: _negated(out)),
    ],
    ids=["output", "input", "in place"],
)
def test_hooks_that_compute_count(make, register):
    plain, model = make().eval(), make().eval()
    register(model)
    with torch.no_grad():
        wanted = model(X)
        assert not torch.allclose(plain(X), wanted, atol=1e-2)
    compiled = compiled_of(model, QUIET)
    with torch.no_grad():
        torch.testing.assert_close(compiled.frontier.ways[0].module(X), wanted)
        cut = next(way for way in compiled.frontier.ways if way.name == "the DEQ cut after 8 steps")
        torch.testing.assert_close(cut.module(X), wanted, rtol=1e-2, atol=1e-2)


def _negated(out):
    out.neg_()


LEFT = {}


class Remembering(Own):
    """Adds what a hook has left of the input, in a place that no copy has to itself."""

    def __init__(self):
        super().__init__()
        self.into.register_forward_pre_hook(lambda _, given: LEFT.update(x=given[0].clone()))

    def forward(self, x):
        return super().forward(x) + LEFT["x"][:, :1]


def test_a_hook_that_leaves_something_for_another_part_stays():
    model = Remembering().eval()
    with torch.no_grad():
        wanted = model(X)
    compiled = nsd.compile_deq(model, X, keep=0.5, **QUIET)
    assert len(compiled.frontier.ways[0].module.into._forward_pre_hooks) == 1
    torch.testing.assert_close(wanted, model(X))


def test_normed_and_pruned_weights_are_made_anew_in_training():
    """By hooks of torch's own, or by its parametrizations."""
    model = Own()
    parametrizations.spectral_norm(model.into)
    prune.l1_unstructured(model.inner, "weight", 0.5)
    with torch.no_grad():
        model(X)  # a pruned weight that has a gradient cannot be copied
    zero = model.inner.weight == 0.0
    network = nsd.compile_deq(model, X, Y, keep=0.5, **TRAINED).frontier["1 learnt step"].module
    network(X)
    assert bool((network.model.inner.weight[zero] == 0.0).all())
    assert float(torch.linalg.matrix_norm(network.model.into.weight.detach(), 2)) == pytest.approx(1.0, rel=0.1)
    assert not torch.equal(network.model.inner.weight_orig, model.inner.weight_orig)


def test_a_hook_that_makes_the_weight_is_kept():
    model = Own()
    model.inner.raw = nn.Parameter(model.inner.weight.detach().clone())
    del model.inner._parameters["weight"]
    model.inner.register_forward_pre_hook(lambda part, _: setattr(part, "weight", 0.9 * part.raw))
    model.inner.weight = 0.9 * model.inner.raw.detach()
    way = nsd.compile_deq(model, X, keep=0.5, **TRAINED).frontier["1 learnt step"]
    network = way.module
    with torch.no_grad():
        network(X)
    torch.testing.assert_close(network.model.inner.weight, 0.9 * network.model.inner.raw)
    assert not torch.equal(network.model.inner.raw, model.inner.raw)


def test_the_order_of_samples_and_random_starts_do_not_make_a_watcher_compute():
    class Random(Own):
        def solved(self, x):
            u = self.into(x)
            return nsd.fixed_point(lambda z: torch.tanh(self.inner(z) + u), torch.randn_like(u)).value

    model, seen = Random(), []
    model.register_forward_hook(lambda *_: seen.append(1))
    nsd.compile_deq(model, X, keep=0.5, **QUIET)
    assert len(seen) == 2
