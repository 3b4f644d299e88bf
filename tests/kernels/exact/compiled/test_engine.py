"""The fused pair solver on a CPU against its slow twin, the pair equation itself."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.kernels.exact.compiled import engine as engines
from notsodeep.kernels.exact.solver import Prepared, prepare
from tests.kernels.exact.twins import (
    KERNELS,
    NETS,
    TOLERANCE,
    alike,
    assert_twins,
    both_precisions,
    error,
    every_net,
    filled,
    network,
    samples,
    twins,
)
from tests.zoo import CONTINUOUS, build, each

pytest.importorskip("numba")
pytestmark = [pytest.mark.usefixtures("worth_it_for_any_size"), pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")]


# Every activation


@both_precisions
@each(CONTINUOUS)
def test_every_activation_square(name, dtype):
    assert_twins(network(name), samples(131, 60).to(dtype))


@each(CONTINUOUS)
def test_every_activation_rectangle(name):
    x, x2 = samples(9, 60, seed=1), 1.5 * samples(131, 60, seed=2)
    assert_twins(network(name, centre=False), x, x2)


@both_precisions
@pytest.mark.parametrize(
    "name", ["relu", "abs", "leaky_relu:0.1", "tanh", "gelu", "erf", "sin", "cos", "gaussian", "swish", "sigmoid"]
)
def test_large_correlations(name, dtype):
    x = alike(130, 60).to(dtype)
    cosines = torch.nn.functional.normalize(x.double()) @ torch.nn.functional.normalize(x.double()).T
    assert float(cosines.min()) < 0.35
    assert float(cosines.fill_diagonal_(0.0).max()) > 0.99
    for centre in (True, False):
        assert_twins(network(name, centre), x)


@pytest.mark.parametrize("var_a", [0.5, 0.9, 0.97])
@pytest.mark.parametrize("name", ["tanh", "sin", "relu"])
def test_close_to_the_end_of_contraction(name, var_a):
    """Newton's method goes on for longer there."""
    x = torch.cat([alike(40, 9), -alike(40, 9, seed=1), samples(60, 9)])
    assert_twins(nsd.Implicit(name, var_a, 0.5), x, tol=1e-11)
    assert_twins(nsd.Implicit(name, var_a, 0.5), 0.1 * x.float(), tol=3e-5)


@both_precisions
@every_net
def test_any_one_or_more_of_the_kernels(net, dtype):
    fused, plain = twins(net, samples(60, 7).to(dtype))
    expected = dict(zip(KERNELS, filled(plain), strict=True))
    for wanted in [(k,) for k in KERNELS] + [KERNELS[:2], KERNELS[1:], KERNELS[::-1], ("preactivation", "conjugate")]:
        for name, found in zip(wanted, filled(fused, wanted), strict=True):
            assert error(found, expected[name]) <= TOLERANCE[dtype], wanted


# Tiles

TILES = [
    (slice(0, 150), slice(0, 150)),
    (slice(0, 37), slice(20, 150)),
    (slice(40, 41), slice(0, 150)),
    (slice(0, 150), slice(149, 150)),
    (slice(100, 130), slice(90, 147)),
    (slice(90, 147), slice(100, 130)),
    (slice(130, 150), slice(0, 20)),
    (slice(5, 6), slice(5, 6)),
]


@both_precisions
@every_net
def test_tiles_of_any_size_and_place(net, dtype):
    x, x2 = samples(150, 9).to(dtype), samples(150, 9, seed=4).to(dtype)
    for other in (None, x2):
        fused, plain = twins(net, x, other)
        for left, right in TILES:
            ours, theirs = (prepared.tile(left, right, KERNELS) for prepared in (fused, plain))
            for name, found, twin in zip(KERNELS, ours, theirs, strict=True):
                assert error(found, twin) <= TOLERANCE[dtype], (name, left, right)


@pytest.mark.parametrize("sides", [(37, 53), (53, 37), (300, 64), (1, 300)])
@pytest.mark.parametrize("net", [NETS["relu"], NETS["tanh"]], ids=str)
def test_mirrored_tiles_that_meet_the_diagonal_anywhere(net, sides, monkeypatch):
    fused, plain = twins(net, torch.cat([samples(203, 5), samples(4, 5) + 1e-8]))  # with pairs left open
    monkeypatch.setattr(type(fused.engine), "sides", sides)
    for ours, twin in zip(filled(fused), filled(plain), strict=True):
        assert torch.equal(ours, ours.T)
        assert error(ours, twin) <= 1e-8


@every_net
def test_strips_of_a_core(net, monkeypatch):
    """Nothing depends on how a tile is cut for a core's cache."""
    from notsodeep.kernels.exact.compiled import numba_engine as cpu_engine

    fused, plain = twins(net, samples(301, 40))
    whole = filled(fused)
    monkeypatch.setattr(cpu_engine, "_HEIGHT", 24)
    monkeypatch.setattr(cpu_engine, "_WIDTH", 130)
    for cut, ours, twin in zip(filled(fused), whole, filled(plain), strict=True):
        assert error(cut, twin) <= 1e-12
        assert error(ours, twin) <= 1e-12
        assert torch.equal(cut, cut.T)


@pytest.mark.usefixtures("two_threads")
@both_precisions
@pytest.mark.parametrize("net", [NETS["relu"], NETS["tanh"]], ids=str)
def test_bits_do_not_depend_on_the_threads(net, dtype):
    x, x2 = samples(333, 40).to(dtype), samples(140, 40, seed=3).to(dtype)
    two = [filled(prepare(net, x, other)) for other in (None, x2)]
    torch.set_num_threads(1)
    one = [filled(prepare(net, x, other)) for other in (None, x2)]
    for a, b in zip(two, one, strict=True):
        assert all(torch.equal(u, v) for u, v in zip(a, b, strict=True))


# Kinds of array


@both_precisions
def test_public_calls_are_fused_and_hand_back_what_they_were_given(dtype, monkeypatch):
    x, x2, net = samples(90, 6).to(dtype), samples(41, 6, seed=2).to(dtype), NETS["tanh"]
    for other in (None, x2):
        by_numpy = nsd.exact_kernels(net, x.numpy(), None if other is None else other.numpy())
        by_torch = nsd.exact_kernels(net, x, other)
        assert isinstance(by_numpy.tangent, np.ndarray)
        assert by_numpy.tangent.dtype == x.numpy().dtype
        np.testing.assert_array_equal(by_numpy.tangent, by_torch.tangent.numpy())
        np.testing.assert_array_equal(by_numpy.conjugate, by_torch.conjugate.numpy())
        alone = nsd.tangent_kernel(net, x, other, readout="preactivation")
        with monkeypatch.context() as patch:
            patch.setattr(engines, "_WORTH_COMPILING", math.inf)
            twin = nsd.exact_kernels(net, x, other)
            assert error(by_torch.tangent, twin.tangent) <= TOLERANCE[dtype]
            assert error(alone, nsd.tangent_kernel(net, x, other, readout="preactivation")) <= TOLERANCE[dtype]


def test_outputs_of_every_kind(tmp_path):
    x, net = samples(170, 6), NETS["relu"]
    expected = nsd.exact_kernels(net, x)
    maps = [np.memmap(tmp_path / name, np.float64, "w+", shape=(170, 170)) for name in ("ck", "ntk")]
    arrays = [np.full((170, 170), np.nan) for _ in maps]
    tensors = [torch.full((170, 170), math.nan, dtype=torch.float64) for _ in maps]
    columns_first = [torch.full((170, 170), math.nan, dtype=torch.float64).T for _ in maps]
    part_of_more = [torch.full((200, 400), math.nan, dtype=torch.float64)[7:177, 5:345:2] for _ in maps]
    singles = [torch.full((170, 170), math.nan) for _ in maps]
    for out in (maps, arrays, tensors, columns_first, part_of_more, singles):
        found = nsd.exact_kernels(net, x, out=out)
        assert found.conjugate is out[0]
        assert found.tangent is out[1]
        tol = 1e-6 if out is singles else 1e-14
        for name, kernel in (("conjugate", out[0]), ("tangent", out[1])):
            twin = getattr(expected, name)
            assert float((torch.as_tensor(kernel).double() - twin).abs().max()) <= tol * float(twin.abs().max()), name


def test_samples_in_any_layout():
    x, net = samples(60, 8), NETS["gelu plain"]
    expected = nsd.tangent_kernel(net, x)
    for same in (x.T.contiguous().T, torch.stack([x, x], 2)[:, :, 0], torch.cat([x, x])[:60]):
        assert error(nsd.tangent_kernel(net, same), expected) <= 1e-14


# Hard data


def _hard() -> dict[str, Tensor]:
    few, noise = samples(7, 5), samples(7, 5, seed=1)
    units = torch.nn.functional.normalize(samples(19, 6))
    return {
        "equal": torch.cat([few, few]),
        **{f"off by {share:g}": torch.cat([few, few + share * noise]) for share in (1e-3, 1e-6, 1e-9)},
        "opposite": torch.cat([few, -few, 1e-7 * noise - few]),
        "collinear": torch.cat([few, 2.0 * few, -0.3 * few, 1.1 * few]),
        "six decades": units * torch.logspace(-3, 3, 19, dtype=torch.float64)[:, None],
        "a zero": torch.cat([few, torch.zeros(1, 5, dtype=torch.float64)]),
        "one feature": samples(9, 1),
        "one sample": few[:1],
        "two samples": few[:2],
    }


def _allowed(net: nsd.Implicit, fused: Prepared, dtype: torch.dtype) -> Tensor | float:
    """Of a kinked φ, Q = E[φ'φ'] is as steep as (1 − |ρ|)^(−1/2) next to ρ = ±1: the round-off of a Gram value shows there."""
    if dtype == torch.float32 or not net.phi.kinks:
        return 1e-11 if dtype == torch.float64 else 1e-5
    n, n2 = fused.shape
    whole = slice(0, n), slice(0, n2) if fused.symmetric else slice(n, n + n2)
    lam = fused.equation.tile(*whole, fused.rows @ fused.columns.T).covariance
    tau = fused.equation.rows.tau
    room = 1.0 - (lam / torch.outer(tau[whole[0]], tau[whole[1]])).abs()
    return 1e-11 + 4e-16 / room.clamp(min=1e-16).sqrt()


@pytest.mark.parametrize("kind", _hard())
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float64) for name in ("relu", "tanh", "gelu", "sin", "hard_tanh")]
    + [(name, torch.float32) for name in ("relu", "tanh")],
)
def test_hard_data(name, kind, dtype):
    x = _hard()[kind].to(dtype)
    odd = bool(torch.equal(build(name)(-x), -build(name)(x)))
    for centre in (False,) if odd else (False, True):
        net = network(name, centre)
        for other in (None, samples(4, x.shape[1], seed=9).to(dtype))[: 1 if centre else 2]:
            fused, plain = (prepare(net, x, other, tau0=1.0, fused=fused) for fused in (True, False))
            aside = kind == "a zero" or (kind == "six decades" and name == "sin")
            assert aside or fused.engine is not None
            allowed = _allowed(net, fused, dtype)
            for found, ours, twin in zip(KERNELS, filled(fused), filled(plain), strict=True):
                assert bool(torch.isfinite(ours).all())
                share = (ours.double() - twin.double()).abs() / twin.double().abs().max()
                assert bool((share <= (1e-11 if found == "conjugate" and dtype == torch.float64 else allowed)).all())
                assert other is not None or fused.engine is None or torch.equal(ours, ours.T)


@pytest.mark.parametrize("kind", ["equal", "off by 1e-06", "opposite", "collinear", "one feature"])
def test_hard_data_of_a_function_that_is_integrated(kind):
    assert_twins(network("elu"), _hard()[kind], tol=1e-8)
    assert_twins(network("elu"), _hard()[kind].float())


@both_precisions
@pytest.mark.parametrize(("n", "n2"), [(1, 1), (1, 131), (131, 1), (127, 129), (3, 2)])
@pytest.mark.parametrize("net", [NETS["relu"], NETS["tanh"]], ids=str)
def test_sizes_that_are_no_multiple_of_anything(net, n, n2, dtype):
    assert_twins(net, samples(n, 5).to(dtype), samples(n2, 5, seed=1).to(dtype))
    assert_twins(net, samples(n2, 5, seed=1).to(dtype))


def test_equal_samples_have_equal_entries():
    x = samples(6, 5).repeat(22, 1)
    for net in NETS.values():
        fused, _ = twins(net, x)
        for name, found in zip(KERNELS, filled(fused), strict=True):
            tol = 1e-7 if net.phi.kinks and name != "conjugate" else 1e-12  # √ε, as in `_allowed`
            assert float((found - found[:6, :6].repeat(22, 22)).abs().max()) <= tol * float(found.abs().max())
