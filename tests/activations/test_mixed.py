"""Mixed: layers whose units are of several kinds."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import Mixed, Relu, Scaled, Tanh
from notsodeep.activations.mixed import each_kind, kinds_of, units_of

MIXED = Mixed(["tanh", "relu", torch.sin])
PARTS = ((torch.tanh, 0, 3), (torch.relu, 3, 6), (torch.sin, 6, 8))
"""The kinds of MIXED and the units that have them, of 8."""
SCALARS = tuple(field.name for field in dataclasses.fields(nsd.scalars(nsd.Explicit("tanh"), 1.0)) if field.type == "float")


def test_kinds_are_given_in_any_way_an_activation_is():
    names = ["tanh", "relu"]
    made = [Mixed(given) for given in (names, ("tanh", Relu()), iter(names), np.array(names))]
    assert all(one == Mixed([Tanh(), Relu()]) for one in made)
    assert len(set(made)) == 1
    assert made[0] != Mixed(["relu", "tanh"])
    assert made[0] != Mixed(["tanh", "relu", "relu"])
    assert str(made[0]) == "{tanh, relu}"
    assert repr(made[0]) == "Mixed(kinds=(Tanh(), Rectifier(positive=1.0, negative=0.0)))"
    assert pickle.loads(pickle.dumps(made[0])) == made[0]
    assert str(nsd.Explicit(["tanh", made[0]])) == "Explicit(tanh → {tanh, relu})"
    assert nsd.Explicit(made[0]) == nsd.Explicit([made[0]])
    assert list(nsd.Explicit([made[0], "erf"]).curves) == ["layer 1, kind 1", "layer 1, kind 2", "layer 2"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mixed(["tanh"]), r"two or more activations.*\['tanh'\]"),
        (lambda: Mixed("tanh"), "two or more activations.*got 'tanh'"),
        (lambda: Mixed(3), "two or more activations.*got 3"),
        (lambda: Mixed(torch.zeros(2)), "two or more activations"),
        (lambda: Mixed(np.array(1.0)), "two or more activations"),
        (lambda: Mixed(["tanh", "tnah"]), "did you mean tanh"),
        (lambda: Mixed(["tanh", None]), "None is not an activation"),
        (lambda: Mixed([MIXED, "relu"]), "in one Mixed"),
        (lambda: nsd.Implicit(MIXED, 0.2), "units of a DEQ are of one kind"),
        (lambda: MIXED.shares(2), "3 kinds of units.*width 2"),
        (lambda: MIXED.shares(4.5), "4.5"),
        (lambda: nsd.ENN(nsd.Explicit(["tanh", MIXED]), 5, (7, 2)), "3 kinds of units.*width 2"),
    ],
)
def test_bad_input(make, says):
    with pytest.raises(nsd.BadInput, match=says):
        make()


@pytest.mark.parametrize("width", [3, 4, 5, 6, 31])
def test_every_kind_counts_a_third_whatever_the_width(width):
    shares, scales = MIXED.shares(width), MIXED.scales(width)
    assert sum(shares) == width
    assert max(shares) - min(shares) == (width % 3 > 0)
    assert [scale**2 * units / width for scale, units in zip(scales, shares, strict=True)] == pytest.approx([1 / 3] * 3)
    h = torch.randn(2, 4, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = zip(MIXED.kinds, h.split(shares, dim=-1), scales, strict=True)
    assert torch.equal(MIXED(h), torch.cat([scale * phi(part) for phi, part, scale in parts], dim=-1))
    assert width % 3 or scales == [1.0] * 3


def test_one_kind_is_the_activation_itself():
    assert units_of([Tanh()]) == Tanh()
    assert units_of([Tanh(), Relu()]) == Mixed(["tanh", "relu"])
    assert kinds_of(Tanh()) == (Tanh(),)
    assert each_kind(Mixed(["tanh", "relu"]), lambda phi: Scaled(phi, 2.0)) == Mixed([Scaled(Tanh(), 2.0), Scaled(Relu(), 2.0)])


# Networks with such layers


def test_the_scalars_are_means_over_the_kinds():
    kinds = ("softplus", "relu")
    alone = [nsd.scalars(nsd.Explicit(kind).centred(1.2), 1.2) for kind in kinds]
    both = nsd.scalars(nsd.Explicit(Mixed(kinds)).centred(1.2), 1.2)
    for name in SCALARS:
        power = 2 if name in ("gamma", "kappa", "tau", "tau0") else 1
        assert getattr(both, name) ** power == pytest.approx(sum(getattr(one, name) ** power for one in alone) / 2, rel=1e-12)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_layer_of_equal_kinds_is_a_layer_of_one(depth):
    one, two = nsd.Explicit(["gelu"] * depth).centred(1.2), nsd.Explicit([Mixed(["gelu"] * 2)] * depth).centred(1.2)
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours, known = nsd.scalars(two, 1.2), nsd.scalars(one, 1.2)
    assert [getattr(ours, name) for name in SCALARS] == pytest.approx([getattr(known, name) for name in SCALARS], rel=1e-12)
    for kernel in (nsd.conjugate_kernel, nsd.tangent_kernel):
        torch.testing.assert_close(kernel(two, x), kernel(one, x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [30, 800])  # pair by pair, and fused
def test_the_kernels_of_a_layer_are_means_over_its_kinds(n, dtype):
    gains, kinds = (0.5, 2.0), ("softplus", "relu", "sin")
    x = (torch.randn(n, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / math.sqrt(20.0)).to(dtype)
    both = nsd.exact_kernels(nsd.Explicit(Mixed(kinds), gains), x)
    alone = [nsd.exact_kernels(nsd.Explicit(kind, gains), x) for kind in kinds]
    for name in ("conjugate", "tangent"):
        mean = sum(getattr(one, name).double() for one in alone) / len(kinds)
        found = getattr(both, name)
        assert found.dtype == dtype
        atol = 1e-12 if dtype == torch.float64 else 2e-6
        torch.testing.assert_close(found.double(), mean, rtol=0.0, atol=atol * float(mean.max()))


def test_structured_kernels_know_kinds():
    net = nsd.Explicit([Mixed(["relu", "gelu"]), Mixed(["tanh", "softplus", "x"])], gains=(1.0, 0.5, 2.0))
    x, y = nsd.GaussianMixture.two_classes(p=400).sample(400, torch.Generator().manual_seed(0))
    stats = nsd.MixtureStatistics.from_labels(x, y)
    centred = net.centred(stats.tau0)
    for kernel, exact in (("conjugate", nsd.conjugate_kernel(centred, x)), ("tangent", nsd.tangent_kernel(centred, x))):
        assert nsd.relative_gap(exact, nsd.sharp_kernel(centred, x, kernel=kernel)) < 0.01
        assert nsd.relative_gap(exact, nsd.equivalent_kernel(centred, x, stats, kernel=kernel)) < 0.2


def test_gains_do_not_change_what_it_computes_at_the_start():
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layers, gains = [MIXED, Mixed(["relu", "x"])], (0.5, 0.0, 3.0)
    plain, gained = (
        nsd.ENN(nsd.Explicit(layers, g), 5, (10, 7), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        for g in (None, gains)
    )
    torch.testing.assert_close(gained(x), plain(x), rtol=1e-12, atol=1e-13)
    for module in (plain, gained):
        module(x).square().sum().backward()
    torch.testing.assert_close(gained.weights[0].grad, 0.5 * plain.weights[0].grad, rtol=1e-12, atol=1e-12)
    assert not gained.weights[1].requires_grad
    assert nsd.Explicit(layers, gains).centred(1.0).gains == gains


def test_values_and_gradients_are_those_of_the_formula():
    module = nsd.ENN(nsd.Explicit(MIXED), 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    h = x @ module.weights[0].T
    by_hand = torch.cat([f(h[:, a:b]) / math.sqrt(3 * (b - a)) for f, a, b in PARTS], dim=1)
    torch.testing.assert_close(module(x), by_hand, rtol=1e-14, atol=1e-15)
    wanted = (x, module.weights[0])
    ours, known = (torch.autograd.grad(out.square().sum(), wanted) for out in (module(x), by_hand))
    for one, other in zip(ours, known, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
