"""The fused solver of explicit networks, layer by layer, against its slow twin on a CPU."""

import math

import pytest
import torch

import notsodeep as nsd
from notsodeep.kernels.exact.compiled import engine as engines
from notsodeep.kernels.exact.solver import prepare
from tests.kernels.exact.twins import KERNELS, TOLERANCE, alike, assert_twins, both_precisions, error, filled, samples, twins
from tests.zoo import CONTINUOUS, build, each

pytest.importorskip("numba")
pytestmark = [pytest.mark.usefixtures("worth_it_for_any_size"), pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")]
NETS = {
    "relu": nsd.Explicit(["relu"]),
    "two rectifiers": nsd.Explicit(["relu", "leaky_relu:0.1"]).centred(1.0),
    "tanh relu elu": nsd.Explicit(["tanh", "relu", "elu"]),
    "hard_tanh": nsd.Explicit(["hard_tanh"]),
    "gelu polynomial": nsd.Explicit(["gelu", nsd.activation("hermite:0.1,0.9,0.2,0.05"), "gelu"]),
    "five tanh": nsd.Explicit(["tanh"] * 5),
    "of several kinds": nsd.Explicit([nsd.activations.Mixed(["relu", "abs"]), nsd.activations.Mixed(["tanh", "relu", "gelu"])]),
}
every_net = pytest.mark.parametrize("net", NETS.values(), ids=NETS)


@both_precisions
@each(CONTINUOUS)
def test_every_activation_as_either_layer(name, dtype):
    phi = build(name)
    assert_twins(nsd.Explicit([phi, "tanh"]), samples(131, 60).to(dtype))
    assert_twins(nsd.Explicit(["tanh", phi]), samples(9, 60).to(dtype), 1.5 * samples(131, 60, seed=2).to(dtype))


@both_precisions
@every_net
def test_every_depth(net, dtype):
    assert_twins(net, samples(131, 60).to(dtype))
    assert_twins(net, samples(40, 60).to(dtype), samples(131, 60, seed=1).to(dtype))


@both_precisions
@every_net
def test_large_correlations(net, dtype):
    assert_twins(net, alike(130, 60).to(dtype))


@both_precisions
@every_net
def test_any_one_or_more_of_the_kernels(net, dtype):
    """Where only conjugate kernels are wanted, no tangent kernel is handed on."""
    fused, plain = twins(net, samples(60, 40).to(dtype))
    expected = dict(zip(KERNELS, filled(plain), strict=True))
    for wanted in [(k,) for k in KERNELS] + [KERNELS[:2], KERNELS[1:], KERNELS[::-1], ("preactivation", "conjugate")]:
        for name, found in zip(wanted, filled(fused, wanted), strict=True):
            assert error(found, expected[name]) <= TOLERANCE[dtype], wanted


@every_net
def test_tiles_of_any_size_and_place(net):
    x, x2 = samples(150, 40), samples(150, 40, seed=4)
    tiles = [(0, 150, 0, 150), (0, 37, 20, 150), (40, 41, 0, 150), (100, 130, 90, 147), (130, 150, 0, 20), (5, 6, 5, 6)]
    for other in (None, x2):
        fused, plain = twins(net, x, other)
        for top, bottom, start, stop in tiles:
            ours, theirs = (p.tile(slice(top, bottom), slice(start, stop), KERNELS) for p in (fused, plain))
            for found, twin in zip(ours, theirs, strict=True):
                assert error(found, twin) <= 1e-12, (top, bottom, start, stop)


@every_net
@pytest.mark.parametrize("sides", [(37, 53), (53, 37), (300, 64), (1, 300)])
def test_mirrored_tiles_that_meet_the_diagonal_anywhere(net, sides, monkeypatch):
    fused, plain = twins(net, torch.cat([samples(203, 40), samples(4, 40) * (1.0 + 1e-9)]))  # with pairs left open
    monkeypatch.setattr(type(fused.engine), "sides", sides)
    for ours, twin in zip(filled(fused), filled(plain), strict=True):
        assert torch.equal(ours, ours.T)
        assert error(ours, twin) <= 1e-7  # √ε of a Gram value, where Q is steep


@every_net
def test_strips_of_a_core(net, monkeypatch):
    from notsodeep.kernels.exact.compiled import numba_engine as cpu_engine

    fused, plain = twins(net, samples(301, 40))
    monkeypatch.setattr(cpu_engine, "_HEIGHT", 24)
    monkeypatch.setattr(cpu_engine, "_WIDTH", 130)
    for cut, twin in zip(filled(fused), filled(plain), strict=True):
        assert error(cut, twin) <= 1e-12
        assert torch.equal(cut, cut.T)


@pytest.mark.usefixtures("two_threads")
@every_net
def test_bits_do_not_depend_on_the_threads(net):
    x = samples(333, 40)
    two = filled(prepare(net, x))
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(two, filled(prepare(net, x)), strict=True))


# What is left open


@both_precisions
@every_net
def test_independent_data_leaves_nothing_open(net, dtype, listed):
    filled(prepare(net, samples(100, 400).to(dtype)))
    assert not listed


@both_precisions
@pytest.mark.parametrize("layers", [["relu"], ["relu", "tanh"], ["tanh", "relu"], ["tanh", "tanh", "abs"]])
def test_a_pair_left_open_by_any_layer_is_finished(layers, dtype, listed):
    x = samples(100, 400).to(dtype)
    x[[70, 99, 3]] = x[[20, 98, 4]] * (1.0 + 1e-9)
    fused, plain = twins(nsd.Explicit(layers), x)
    ours = filled(fused, KERNELS[:2])
    assert {tuple(pair) for pair in torch.cat(listed).tolist()} == {(20, 70), (98, 99), (3, 4)}
    assert sum(map(len, listed)) == 3
    for found, twin in zip(ours, filled(plain, KERNELS[:2]), strict=True):
        assert error(found, twin) <= max(1e-7, TOLERANCE[dtype])
        assert torch.equal(found, found.T)
    i, j = torch.tensor([20, 98, 3]), torch.tensor([70, 99, 4])
    known = fused.equation.pairs(i, j, (x[i].double() * x[j].double()).sum(1))
    torch.testing.assert_close(ours[0][i, j], known.conjugate.to(dtype), rtol=1e-14, atol=0)
    torch.testing.assert_close(ours[1][i, j], known.tangent.to(dtype), rtol=1e-14, atol=0)


def test_open_pairs_of_a_rectangle(listed):
    x, x2 = samples(40, 300), samples(50, 300, seed=1)
    x2[[0, 49]] = x[[39, 7]] * (1.0 + 1e-10)
    fused, plain = twins(nsd.Explicit(["relu", "relu"]), x, x2)
    (ours,), (twin,) = (filled(prepared, ("tangent",)) for prepared in (fused, plain))
    assert {tuple(pair) for pair in torch.cat(listed).tolist()} == {(39, 40), (7, 89)}
    assert error(ours, twin) <= 1e-8


def test_lists_of_pairs_are_tiles():
    x, net = samples(30, 7), NETS["tanh relu elu"]
    equation, gram = prepare(net, x).equation, x @ x.T
    whole = equation.tile(slice(0, 30), slice(0, 30), gram)
    i, j = torch.randint(30, (2, 50), generator=torch.Generator().manual_seed(0))
    listed = equation.pairs(i, j, gram[i, j])
    for name in KERNELS:
        torch.testing.assert_close(getattr(listed, name), getattr(whole, name)[i, j], rtol=1e-13, atol=1e-15)


# Hard data, and the public calls


@pytest.mark.parametrize("kind", ["equal", "off by 1e-3", "opposite", "collinear", "six decades", "one feature"])
@pytest.mark.parametrize("net", [NETS["two rectifiers"], NETS["tanh relu elu"], NETS["five tanh"]], ids=str)
def test_hard_data(net, kind):
    few, noise = samples(7, 5), samples(7, 5, seed=1)
    x = {
        "equal": torch.cat([few, few]),
        "off by 1e-3": torch.cat([few, few + 1e-3 * noise]),
        "opposite": torch.cat([few, -few]),
        "collinear": torch.cat([few, 2.0 * few, -0.3 * few]),
        "six decades": few * torch.logspace(-3, 3, 7, dtype=torch.float64)[:, None],
        "one feature": samples(9, 1),
    }[kind]
    fused, plain = twins(net, x)
    for name, ours, twin in zip(KERNELS, filled(fused), filled(plain), strict=True):
        assert bool(torch.isfinite(ours).all())
        assert error(ours, twin) <= (1e-11 if name == "conjugate" else 1e-7), name


def test_public_calls_are_fused(monkeypatch):
    x, x2, net = samples(90, 6), samples(41, 6, seed=2), NETS["tanh relu elu"]
    for other in (None, x2):
        ours = nsd.exact_kernels(net, x, other)
        with monkeypatch.context() as patch:
            patch.setattr(engines, "_WORTH_COMPILING", math.inf)
            twin = nsd.exact_kernels(net, x, other)
        assert not torch.equal(ours.tangent, twin.tangent)  # two ways to the same numbers
        assert error(ours.tangent, twin.tangent) <= 1e-12
        assert error(ours.conjugate, twin.conjugate) <= 1e-12


# Centred layers whose variance shrinks


@pytest.mark.parametrize("n", [40, 300])  # without tables and with them
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("depth", [1, 4, 10])
def test_a_constant_that_is_taken_off_takes_no_digits_with_it(depth, fused, n):
    """sigmoid − ½ is ½ tanh(x/2): of ten layers G is 1e-12, beside means of ½. What remains is the round-off of φ's values."""
    x = samples(n, 20)
    shifted = nsd.Explicit(["sigmoid"] * depth).centred(1.0)
    odd = nsd.Explicit(["0.5*tanh(x/2)"] * depth)
    found, expected = (filled(prepare(net, x, fused=fused)) for net in (shifted, odd))
    allowed = max(1e-12, 1e-16 / math.sqrt(float(expected[0].max())))
    for ours, twin in zip(found, expected, strict=True):
        assert error(ours, twin) <= allowed


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "gelu", "relu", "elu", "gaussian", "cos"])
def test_fused_and_plain_agree_however_small_the_kernel_is(name):
    net = nsd.Explicit([name] * 6).centred(1.0)
    x = samples(60, 30)
    for ours, twin in zip(*(filled(prepare(net, x, fused=fused)) for fused in (True, False)), strict=True):
        assert error(ours, twin) <= 1e-12


@both_precisions
@pytest.mark.parametrize("constant", ["polynomial:2", "hermite:0.5"])
@pytest.mark.parametrize("first", [True, False])
def test_a_constant_layer_leaves_nothing_open(constant, first, dtype, listed):
    layers = [constant, "tanh"] if first else ["tanh", constant]
    fused, plain = twins(nsd.Explicit(layers), samples(60, 30).to(dtype))
    assert all(len(law.limits) >= 1 for law in fused.engine.laws)
    found = filled(fused, KERNELS[:2])
    if not first:
        assert not listed
    for ours, twin in zip(found, filled(plain, KERNELS[:2]), strict=True):
        assert float((ours - twin).abs().max()) <= TOLERANCE[dtype] * float(twin.abs().max().clamp(min=1.0))
