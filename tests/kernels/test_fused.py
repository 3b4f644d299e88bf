"""The fused pair solver on a CPU against its slow twin, the pair equation itself."""

import importlib.util
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.kernels.fused import engine as engines
from notsodeep.kernels.fused.law import pair_law
from notsodeep.kernels.pairs import ImplicitPairs
from notsodeep.kernels.prepared import Prepared, prepare
from tests.zoo import CONTINUOUS, JUMPING, build, each

numba = pytest.importorskip("numba")
pytestmark = pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")

KERNELS = ("conjugate", "tangent", "preactivation")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Of the largest entry. Measured over the zoo: 1.4e-13 and 3.6e-6."""
both_precisions = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
NETS = {
    "relu": nsd.Implicit("relu", 0.2),
    "relu plain": nsd.Implicit("relu", 0.2, centre=False),
    "tanh": nsd.Implicit("tanh", 0.2),
    "gelu plain": nsd.Implicit("gelu", 0.15, centre=False),
    "hard_tanh": nsd.Implicit("hard_tanh", 0.2),
}
every_net = pytest.mark.parametrize("net", NETS.values(), ids=NETS)


@pytest.fixture(autouse=True)
def _worth_it_for_any_size(monkeypatch):
    monkeypatch.setattr(engines, "_WORTH_COMPILING", 0)


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _x(n: int, p: int, seed: int = 0) -> Tensor:
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / math.sqrt(p)


def _alike(n: int, p: int, seed: int = 0) -> Tensor:
    """Positive samples, like images: correlations from .3 to .99."""
    draw = torch.Generator().manual_seed(seed)
    common, own, share = (torch.rand(s, dtype=torch.float64, generator=draw) for s in ((1, p), (n, p), (n, 1)))
    return (share * common + (1.0 - share) * own**3) * (1.5 / math.sqrt(p))


def _network(name: str, centre: bool = True) -> nsd.Implicit:
    """A DEQ of a zoo activation that surely has an equilibrium."""
    phi = build(name)
    bounded = 0.0 < phi.lipschitz < math.inf
    return nsd.Implicit(phi, min(0.2, 0.2 / phi.lipschitz**2) if bounded else 0.02, 0.8, centre=centre)


def _twins(net, x: Tensor, x2: Tensor | None = None) -> tuple[Prepared, Prepared]:
    fused, plain = (prepare(net, x, x2, tangent=False, fused=fused) for fused in (True, False))
    assert fused.engine is not None
    assert plain.engine is None
    return fused, plain


def _filled(prepared: Prepared, kernels: tuple[str, ...] = KERNELS) -> list[Tensor]:
    found = [torch.full(prepared.shape, math.nan, dtype=prepared.rows.dtype) for _ in kernels]
    prepared.fill(tuple(found), kernels)
    return found


def _error(ours: Tensor, twin: Tensor) -> float:
    """The largest difference over the largest entry."""
    assert ours.dtype == twin.dtype
    assert ours.shape == twin.shape
    return float((ours.double() - twin.double()).abs().max() / twin.double().abs().max())


def _assert_twins(net, x: Tensor, x2: Tensor | None = None, tol: float | None = None) -> None:
    fused, plain = _twins(net, x, x2)
    for name, ours, twin in zip(KERNELS, _filled(fused), _filled(plain), strict=True):
        assert _error(ours, twin) <= (tol or TOLERANCE[x.dtype]), name
        if x2 is None:
            assert torch.equal(ours, ours.T), name
            assert torch.equal(ours.diagonal(), getattr(fused.equation.diagonal(slice(None)), name).to(x.dtype)), name


# Every activation


@both_precisions
@each(CONTINUOUS)
def test_every_activation_square(name, dtype):
    _assert_twins(_network(name), _x(131, 60).to(dtype))


@each(CONTINUOUS)
def test_every_activation_rectangle(name):
    x, x2 = _x(9, 60, seed=1), 1.5 * _x(131, 60, seed=2)
    _assert_twins(_network(name, centre=False), x, x2)


@both_precisions
@pytest.mark.parametrize(
    "name", ["relu", "abs", "leaky_relu:0.1", "tanh", "gelu", "erf", "sin", "cos", "gaussian", "swish", "sigmoid"]
)
def test_large_correlations(name, dtype):
    x = _alike(130, 60).to(dtype)
    cosines = torch.nn.functional.normalize(x.double()) @ torch.nn.functional.normalize(x.double()).T
    assert float(cosines.min()) < 0.35
    assert float(cosines.fill_diagonal_(0.0).max()) > 0.99
    for centre in (True, False):
        _assert_twins(_network(name, centre), x)


@pytest.mark.parametrize("var_a", [0.5, 0.9, 0.97])
@pytest.mark.parametrize("name", ["tanh", "sin", "relu"])
def test_close_to_the_end_of_contraction(name, var_a):
    """Newton's method goes on for longer there."""
    x = torch.cat([_alike(40, 9), -_alike(40, 9, seed=1), _x(60, 9)])
    _assert_twins(nsd.Implicit(name, var_a, 0.5), x, tol=1e-11)
    _assert_twins(nsd.Implicit(name, var_a, 0.5), 0.1 * x.float(), tol=3e-5)


@both_precisions
@every_net
def test_any_one_or_more_of_the_kernels(net, dtype):
    fused, plain = _twins(net, _x(60, 7).to(dtype))
    expected = dict(zip(KERNELS, _filled(plain), strict=True))
    for wanted in [(k,) for k in KERNELS] + [KERNELS[:2], KERNELS[1:], KERNELS[::-1], ("preactivation", "conjugate")]:
        for name, found in zip(wanted, _filled(fused, wanted), strict=True):
            assert _error(found, expected[name]) <= TOLERANCE[dtype], wanted


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
    x, x2 = _x(150, 9).to(dtype), _x(150, 9, seed=4).to(dtype)
    for other in (None, x2):
        fused, plain = _twins(net, x, other)
        for left, right in TILES:
            ours, twins = (prepared.tile(left, right, KERNELS) for prepared in (fused, plain))
            for name, found, twin in zip(KERNELS, ours, twins, strict=True):
                assert _error(found, twin) <= TOLERANCE[dtype], (name, left, right)


@pytest.mark.parametrize("sides", [(37, 53), (53, 37), (300, 64), (1, 300)])
@pytest.mark.parametrize("net", [NETS["relu"], NETS["tanh"]], ids=str)
def test_mirrored_tiles_that_meet_the_diagonal_anywhere(net, sides, monkeypatch):
    fused, plain = _twins(net, torch.cat([_x(203, 5), _x(4, 5) + 1e-8]))  # with pairs left open
    monkeypatch.setattr(type(fused.engine), "sides", sides)
    for ours, twin in zip(_filled(fused), _filled(plain), strict=True):
        assert torch.equal(ours, ours.T)
        assert _error(ours, twin) <= 1e-8


@every_net
def test_strips_of_a_core(net, monkeypatch):
    """Nothing depends on how a tile is cut for a core's cache."""
    from notsodeep.kernels.fused import cpu_engine

    fused, plain = _twins(net, _x(301, 40))
    whole = _filled(fused)
    monkeypatch.setattr(cpu_engine, "_HEIGHT", 24)
    monkeypatch.setattr(cpu_engine, "_WIDTH", 130)
    for cut, ours, twin in zip(_filled(fused), whole, _filled(plain), strict=True):
        assert _error(cut, twin) <= 1e-12
        assert _error(ours, twin) <= 1e-12
        assert torch.equal(cut, cut.T)


@pytest.mark.usefixtures("_two_threads")
@both_precisions
@pytest.mark.parametrize("net", [NETS["relu"], NETS["tanh"]], ids=str)
def test_bits_do_not_depend_on_the_threads(net, dtype):
    x, x2 = _x(333, 40).to(dtype), _x(140, 40, seed=3).to(dtype)
    two = [_filled(prepare(net, x, other)) for other in (None, x2)]
    torch.set_num_threads(1)
    one = [_filled(prepare(net, x, other)) for other in (None, x2)]
    for a, b in zip(two, one, strict=True):
        assert all(torch.equal(u, v) for u, v in zip(a, b, strict=True))


# Kinds of array


@both_precisions
def test_public_calls_are_fused_and_hand_back_what_they_were_given(dtype, monkeypatch):
    x, x2, net = _x(90, 6).to(dtype), _x(41, 6, seed=2).to(dtype), NETS["tanh"]
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
            assert _error(by_torch.tangent, twin.tangent) <= TOLERANCE[dtype]
            assert _error(alone, nsd.tangent_kernel(net, x, other, readout="preactivation")) <= TOLERANCE[dtype]


def test_outputs_of_every_kind(tmp_path):
    x, net = _x(170, 6), NETS["relu"]
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
    x, net = _x(60, 8), NETS["gelu plain"]
    expected = nsd.tangent_kernel(net, x)
    for same in (x.T.contiguous().T, torch.stack([x, x], 2)[:, :, 0], torch.cat([x, x])[:60]):
        assert _error(nsd.tangent_kernel(net, same), expected) <= 1e-14


# Hard data


def _hard() -> dict[str, Tensor]:
    few, noise = _x(7, 5), _x(7, 5, seed=1)
    units = torch.nn.functional.normalize(_x(19, 6))
    return {
        "equal": torch.cat([few, few]),
        **{f"off by {share:g}": torch.cat([few, few + share * noise]) for share in (1e-3, 1e-6, 1e-9)},
        "opposite": torch.cat([few, -few, 1e-7 * noise - few]),
        "collinear": torch.cat([few, 2.0 * few, -0.3 * few, 1.1 * few]),
        "six decades": units * torch.logspace(-3, 3, 19, dtype=torch.float64)[:, None],
        "a zero": torch.cat([few, torch.zeros(1, 5, dtype=torch.float64)]),
        "one feature": _x(9, 1),
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
        net = _network(name, centre)
        for other in (None, _x(4, x.shape[1], seed=9).to(dtype))[: 1 if centre else 2]:
            fused, plain = (prepare(net, x, other, tau0=1.0, fused=fused) for fused in (True, False))
            aside = kind == "a zero" or (kind == "six decades" and name == "sin")
            assert aside or fused.engine is not None
            allowed = _allowed(net, fused, dtype)
            for found, ours, twin in zip(KERNELS, _filled(fused), _filled(plain), strict=True):
                assert bool(torch.isfinite(ours).all())
                share = (ours.double() - twin.double()).abs() / twin.double().abs().max()
                assert bool((share <= (1e-11 if found == "conjugate" and dtype == torch.float64 else allowed)).all())
                assert other is not None or fused.engine is None or torch.equal(ours, ours.T)


@pytest.mark.parametrize("kind", ["equal", "off by 1e-06", "opposite", "collinear", "one feature"])
def test_hard_data_of_a_function_that_is_integrated(kind):
    _assert_twins(_network("elu"), _hard()[kind], tol=1e-8)
    _assert_twins(_network("elu"), _hard()[kind].float())


@both_precisions
@pytest.mark.parametrize(("n", "n2"), [(1, 1), (1, 131), (131, 1), (127, 129), (3, 2)])
@pytest.mark.parametrize("net", [NETS["relu"], NETS["tanh"]], ids=str)
def test_sizes_that_are_no_multiple_of_anything(net, n, n2, dtype):
    _assert_twins(net, _x(n, 5).to(dtype), _x(n2, 5, seed=1).to(dtype))
    _assert_twins(net, _x(n2, 5, seed=1).to(dtype))


def test_equal_samples_have_equal_entries():
    x = _x(6, 5).repeat(22, 1)
    for net in NETS.values():
        fused, _ = _twins(net, x)
        for name, found in zip(KERNELS, _filled(fused), strict=True):
            tol = 1e-7 if net.phi.kinks and name != "conjugate" else 1e-12  # √ε, as in `_allowed`
            assert float((found - found[:6, :6].repeat(22, 22)).abs().max()) <= tol * float(found.abs().max())


# What is left open


@pytest.fixture
def listed(monkeypatch) -> list[Tensor]:
    """The pairs that the equation is asked for one by one."""
    seen, pairs = [], ImplicitPairs.pairs

    def spy(self, left, right, gram):
        seen.append(torch.stack([left, right], 1))
        return pairs(self, left, right, gram)

    monkeypatch.setattr(ImplicitPairs, "pairs", spy)
    return seen


@both_precisions
@every_net
def test_independent_data_leaves_nothing_open(net, dtype, listed):
    """hard_tanh has a long series, but no pair of 400 features comes close to its end."""
    _filled(prepare(net, _x(100, 400).to(dtype)))
    assert not listed


@both_precisions
@pytest.mark.parametrize("net", [NETS["relu"], NETS["relu plain"], NETS["hard_tanh"]], ids=str)
def test_open_pairs_are_finished_by_the_equation(net, dtype, listed, monkeypatch):
    x = _x(100, 400).to(dtype)
    x[[70, 99, 3]] = x[[20, 98, 4]] * (1.0 + 1e-9)
    fused, plain = _twins(net, x)
    ours = _filled(fused, KERNELS[:2])
    assert {tuple(pair) for pair in torch.cat(listed).tolist()} == {(20, 70), (98, 99), (3, 4)}
    assert sum(map(len, listed)) == 3
    for found, twin in zip(ours, _filled(plain, KERNELS[:2]), strict=True):
        assert _error(found, twin) <= max(1e-7 if net.phi.kinks else 0.0, TOLERANCE[dtype])
        assert torch.equal(found, found.T)
    known = fused.equation.pairs(*(torch.tensor(side) for side in ([20, 98, 3], [70, 99, 4])), _products(x))
    torch.testing.assert_close(ours[0][[20, 98, 3], [70, 99, 4]], known.conjugate.to(dtype), rtol=1e-14, atol=0)
    # And where the equation answers something else, that is what is written, to both places.
    monkeypatch.setattr(
        ImplicitPairs, "pairs", lambda self, *given: self._kernels(*(torch.full_like(given[-1], 7.0),) * 3)
    )
    (found,) = _filled(fused, ("conjugate",))
    assert (found == 7.0).nonzero().tolist() == [[3, 4], [4, 3], [20, 70], [70, 20], [98, 99], [99, 98]]


def _products(x: Tensor) -> Tensor:
    return (x[[20, 98, 3]].double() * x[[70, 99, 4]].double()).sum(1)


def test_open_pairs_of_a_rectangle(listed):
    x, x2 = _x(40, 300), _x(50, 300, seed=1)
    x2[[0, 49]] = x[[39, 7]] * (1.0 + 1e-10)
    fused, plain = _twins(NETS["relu"], x, x2)
    (ours,), (twin,) = (_filled(prepared, ("tangent",)) for prepared in (fused, plain))
    assert {tuple(pair) for pair in torch.cat(listed).tolist()} == {(39, 40), (7, 89)}
    assert _error(ours, twin) <= 1e-8


# Where the fused solver steps aside


def _declined(net, x: Tensor) -> None:
    fused, plain = (prepare(net, x, tangent=False, fused=fused) for fused in (True, False))
    assert pair_law(fused.equation, x.dtype) is None
    assert fused.engine is None
    for ours, twin in zip(_filled(fused, KERNELS[:1]), _filled(plain, KERNELS[:1]), strict=True):
        assert torch.equal(ours, twin)
        assert bool(torch.isfinite(ours).all())


@both_precisions
def test_no_law(dtype):
    x = _x(12, 20).to(dtype)
    _declined(nsd.Explicit(["relu", "tanh"]), x)
    _declined(nsd.Implicit("tanh", 1.5, 0.01), x)  # several roots
    for name in JUMPING:
        _declined(_network(name), x)
    _declined(nsd.Implicit("relu", 0.2, centre=False), torch.cat([x, 0.0 * x[:1]]))
    _declined(nsd.Implicit("relu", 0.2), torch.cat([x, 1e12 * x[:1]]))


def test_small_kernels_are_not_worth_compiling(monkeypatch):
    monkeypatch.setattr(engines, "_WORTH_COMPILING", 30 * 31)
    net, x = NETS["relu"], _x(31, 4)
    assert prepare(net, x[:30]).engine is None
    assert prepare(net, x[:30], x).engine is not None
    assert prepare(net, x[:30], x, fused=False).engine is None


def test_without_numba(monkeypatch):
    x, net = _x(40, 6), NETS["gelu plain"]
    fused = nsd.exact_kernels(net, x)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else find(name, *rest))
    assert prepare(net, x).engine is None
    plain, twin = nsd.exact_kernels(net, x), _filled(prepare(net, x, fused=False))
    assert torch.equal(plain.conjugate, twin[0])
    assert torch.equal(plain.tangent, twin[1])
    assert _error(fused.tangent, plain.tangent) <= 1e-12


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_more_waves_than_quadrature_follows(name):
    """Beyond that the coefficients would be noise; the closed form is not."""
    for radius, fused in ((10.0, True), (60.0, False)):
        net, x = nsd.Implicit(name, 0.2), radius * torch.nn.functional.normalize(_x(40, 6))
        assert (prepare(net, x).engine is not None) == fused
        for ours, twin in zip(_filled(prepare(net, x)), _filled(prepare(net, x, fused=False)), strict=True):
            assert _error(ours, twin) <= 1e-12


# Threads


@pytest.mark.usefixtures("_two_threads")
def test_two_callers_at_once():
    nets, x = [NETS["relu"], NETS["tanh"], NETS["gelu plain"], NETS["relu plain"]], _x(400, 60)
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


@pytest.mark.usefixtures("_two_threads")
def test_the_number_of_threads_is_left_as_it_was(monkeypatch):
    nsd.exact_kernels(NETS["relu"], _x(400, 6))
    assert _threads_seen() == (2, 2)
    fused = prepare(NETS["relu"], _x(400, 6))
    monkeypatch.setattr(type(fused.engine), "_strip", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _filled(fused)
    assert _threads_seen() == (2, 2)


# Arcsine


@pytest.mark.parametrize(("kind", "cap"), [(np.float32, 1.0 - 1e-3), (np.float64, 1.0 - 1e-6)])
def test_compiled_arcsine(kind, cap):
    from notsodeep.kernels.fused.arcsine import arcsine

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
