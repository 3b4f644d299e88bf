"""The fused pair solver on a CPU: pairs that it leaves open, where it steps aside, threads, its arcsine."""

import importlib.util
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.kernels.exact.compiled import engine as engines
from notsodeep.kernels.exact.compiled.engine import pair_laws
from notsodeep.kernels.exact.pairs import ImplicitPairs
from notsodeep.kernels.exact.solver import prepare
from tests.kernels.exact.twins import (
    KERNELS,
    NETS,
    TOLERANCE,
    both_precisions,
    error,
    every_net,
    filled,
    network,
    samples,
    twins,
)
from tests.zoo import JUMPING

numba = pytest.importorskip("numba")
pytestmark = [pytest.mark.usefixtures("worth_it_for_any_size"), pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")]


# What is left open


@both_precisions
@every_net
def test_independent_data_leaves_nothing_open(net, dtype, listed):
    """hard_tanh has a long series, but no pair of 400 features comes close to its end."""
    filled(prepare(net, samples(100, 400).to(dtype)))
    assert not listed


@both_precisions
@pytest.mark.parametrize("net", [NETS["relu"], NETS["relu plain"], NETS["hard_tanh"]], ids=str)
def test_open_pairs_are_finished_by_the_equation(net, dtype, listed, monkeypatch):
    x = samples(100, 400).to(dtype)
    x[[70, 99, 3]] = x[[20, 98, 4]] * (1.0 + 1e-9)
    fused, plain = twins(net, x)
    ours = filled(fused, KERNELS[:2])
    assert {tuple(pair) for pair in torch.cat(listed).tolist()} == {(20, 70), (98, 99), (3, 4)}
    assert sum(map(len, listed)) == 3
    for found, twin in zip(ours, filled(plain, KERNELS[:2]), strict=True):
        assert error(found, twin) <= max(1e-7 if net.phi.kinks else 0.0, TOLERANCE[dtype])
        assert torch.equal(found, found.T)
    known = fused.equation.pairs(*(torch.tensor(side) for side in ([20, 98, 3], [70, 99, 4])), _products(x))
    torch.testing.assert_close(ours[0][[20, 98, 3], [70, 99, 4]], known.conjugate.to(dtype), rtol=1e-14, atol=0)
    # And where the equation answers something else, that is what is written, to both places.
    monkeypatch.setattr(ImplicitPairs, "pairs", lambda self, *given: self._kernels(*(torch.full_like(given[-1], 7.0),) * 3))
    (found,) = filled(fused, ("conjugate",))
    assert (found == 7.0).nonzero().tolist() == [[3, 4], [4, 3], [20, 70], [70, 20], [98, 99], [99, 98]]


def _products(x: Tensor) -> Tensor:
    return (x[[20, 98, 3]].double() * x[[70, 99, 4]].double()).sum(1)


def test_open_pairs_of_a_rectangle(listed):
    x, x2 = samples(40, 300), samples(50, 300, seed=1)
    x2[[0, 49]] = x[[39, 7]] * (1.0 + 1e-10)
    fused, plain = twins(NETS["relu"], x, x2)
    (ours,), (twin,) = (filled(prepared, ("tangent",)) for prepared in (fused, plain))
    assert {tuple(pair) for pair in torch.cat(listed).tolist()} == {(39, 40), (7, 89)}
    assert error(ours, twin) <= 1e-8


# Where the fused solver steps aside


def _declined(net, x: Tensor) -> None:
    fused, plain = (prepare(net, x, tangent=False, fused=fused) for fused in (True, False))
    assert pair_laws(fused.equation, x.dtype) is None
    assert fused.engine is None
    for ours, twin in zip(filled(fused, KERNELS[:1]), filled(plain, KERNELS[:1]), strict=True):
        assert torch.equal(ours, twin)
        assert bool(torch.isfinite(ours).all())


@both_precisions
def test_no_law(dtype):
    x = samples(12, 20).to(dtype)
    _declined(nsd.Explicit(["relu", "sign"]), x)
    _declined(nsd.Explicit(["relu", "tanh"]), torch.cat([x, 0.0 * x[:1]]))
    _declined(nsd.Implicit("tanh", 1.5, 0.01), x)  # several roots
    for name in JUMPING:
        _declined(network(name), x)
    _declined(nsd.Implicit("relu", 0.2, centre=False), torch.cat([x, 0.0 * x[:1]]))
    _declined(nsd.Implicit("relu", 0.2), torch.cat([x, 1e12 * x[:1]]))


def test_small_kernels_are_not_worth_compiling(monkeypatch):
    monkeypatch.setattr(engines, "_WORTH_COMPILING", 30 * 31)
    net, x = NETS["relu"], samples(31, 4)
    assert prepare(net, x[:30]).engine is None
    assert prepare(net, x[:30], x).engine is not None
    assert prepare(net, x[:30], x, fused=False).engine is None


def test_without_numba(monkeypatch):
    x, net = samples(40, 6), NETS["gelu plain"]
    fused = nsd.exact_kernels(net, x)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else find(name, *rest))
    assert prepare(net, x).engine is None
    plain, twin = nsd.exact_kernels(net, x), filled(prepare(net, x, fused=False))
    assert torch.equal(plain.conjugate, twin[0])
    assert torch.equal(plain.tangent, twin[1])
    assert error(fused.tangent, plain.tangent) <= 1e-12


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_more_waves_than_quadrature_follows(name):
    """Beyond that the coefficients would be noise; the closed form is not."""
    for radius, fused in ((10.0, True), (60.0, False)):
        net, x = nsd.Implicit(name, 0.2), radius * torch.nn.functional.normalize(samples(40, 6))
        assert (prepare(net, x).engine is not None) == fused
        for ours, twin in zip(filled(prepare(net, x)), filled(prepare(net, x, fused=False)), strict=True):
            assert error(ours, twin) <= 1e-12


# Threads


@pytest.mark.usefixtures("two_threads")
def test_two_callers_at_once():
    nets, x = [NETS["relu"], NETS["tanh"], NETS["gelu plain"], NETS["relu plain"]], samples(400, 60)
    expected = [nsd.exact_kernels(net, x) for net in nets]
    ready = threading.Barrier(2)

    def answer(net):
        if ready.n_waiting or net in nets[:2]:
            ready.wait(timeout=30)
        return nsd.exact_kernels(net, x)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(answer, nets))
    for ours, known in zip(found, expected, strict=True):
        assert torch.equal(ours.conjugate, known.conjugate)
        assert torch.equal(ours.tangent, known.tangent)
    assert _threads_seen() == (2, 2)


def _threads_seen() -> tuple[int, int]:
    """Torch's number of threads here, and in a thread that starts now."""
    with ThreadPoolExecutor(1) as pool:
        return torch.get_num_threads(), pool.submit(torch.get_num_threads).result()


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_is_left_as_it_was(monkeypatch):
    nsd.exact_kernels(NETS["relu"], samples(400, 6))
    assert _threads_seen() == (2, 2)
    fused = prepare(NETS["relu"], samples(400, 6))
    monkeypatch.setattr(type(fused.engine), "_strip", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        filled(fused)
    assert _threads_seen() == (2, 2)


# Arcsine


@pytest.mark.parametrize(("kind", "cap"), [(np.float32, 1.0 - 1e-3), (np.float64, 1.0 - 1e-6)])
def test_compiled_arcsine(kind, cap):
    from notsodeep.kernels.exact.compiled.numba_loops import arcsine

    @numba.njit
    def each_of(x, out, half, one, right):
        for k in range(len(x)):
            out[k] = arcsine(x[k], half, one, right)

    beside_half = [0.5, np.nextafter(kind(0.5), kind(1.0)), np.nextafter(kind(0.5), kind(0.0)), 0.0]
    some = np.concatenate([np.linspace(0.0, cap, 20001), np.logspace(-12, -1, 500), cap - np.logspace(-7, -2, 500)])
    x = np.concatenate([some, -some, beside_half]).astype(kind)
    found = np.full_like(x, np.nan)
    each_of(x, found, kind(0.5), kind(1.0), kind(0.5 * math.pi))
    exact = np.arcsin(x.astype(np.longdouble))
    assert found.dtype == kind
    np.testing.assert_array_equal(found[len(some) : 2 * len(some)], -found[: len(some)])
    assert float(np.abs(found - exact).max()) <= 2.0 * np.finfo(kind).eps
    small = np.abs(x) < 0.5
    assert float((np.abs(found - exact)[small] / np.abs(exact[small]).clip(1e-300)).max()) <= 2.0 * np.finfo(kind).eps
