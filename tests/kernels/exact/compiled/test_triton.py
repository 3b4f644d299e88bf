"""The fused pair solver on CUDA against its slow twin there, and against the CPU."""

import importlib.util
import math

import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.kernels.exact.compiled import engine as engines
from notsodeep.kernels.exact.solver import Prepared, prepare

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
    pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning"),
]
KERNELS = ("conjugate", "tangent", "preactivation")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Of the largest entry."""
NETS = {
    "relu": nsd.Implicit("relu", 0.2),
    "relu plain": nsd.Implicit("relu", 0.2, centre=False),
    "tanh": nsd.Implicit("tanh", 0.2),
    "gelu": nsd.Implicit("gelu", 0.15),
    "elu": nsd.Implicit("elu", 0.2),
}
every_net = pytest.mark.parametrize("net", NETS.values(), ids=NETS)
both_precisions = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
N, N2, P = 1501, 777, 50


@pytest.fixture(autouse=True)
def _worth_it_for_any_size(monkeypatch):
    monkeypatch.setattr(engines, "_WORTH_COMPILING", 0)


def _x(n: int, p: int = P, seed: int = 0) -> Tensor:
    x = torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.cuda() / math.sqrt(p)


def _alike(n: int, p: int = P) -> Tensor:
    """Positive samples, like images: correlations from .3 to .99."""
    draw = torch.Generator().manual_seed(0)
    common, own, share = (torch.rand(s, dtype=torch.float64, generator=draw) for s in ((1, p), (n, p), (n, 1)))
    return ((share * common + (1.0 - share) * own**3) * (1.5 / math.sqrt(p))).cuda()


def _twins(net, x: Tensor, x2: Tensor | None = None) -> tuple[Prepared, Prepared]:
    fused, plain = (prepare(net, x, x2, tangent=False, fused=fused) for fused in (True, False))
    assert type(fused.engine).__name__ == "GpuEngine"
    assert plain.engine is None
    return fused, plain


def _filled(prepared: Prepared, kernels: tuple[str, ...] = KERNELS) -> list[Tensor]:
    rows = prepared.rows
    found = [torch.full(prepared.shape, math.nan, dtype=rows.dtype, device=rows.device) for _ in kernels]
    prepared.fill(tuple(found), kernels)
    return found


def _error(ours: Tensor, twin: Tensor) -> float:
    """The largest difference over the largest entry."""
    assert (ours.dtype, ours.device, ours.shape) == (twin.dtype, twin.device, twin.shape)
    return float((ours.double() - twin.double()).abs().max() / twin.double().abs().max())


def _assert_twins(net, x: Tensor, x2: Tensor | None = None, tol: float | None = None) -> None:
    fused, plain = _twins(net, x, x2)
    for name, ours, twin in zip(KERNELS, _filled(fused), _filled(plain), strict=True):
        error = _error(ours, twin)
        print(f"{net} {x.dtype} {name}: {error:.1e}")  # shown by pytest -s
        assert error <= (tol or TOLERANCE[x.dtype]), name
        if x2 is None:
            assert torch.equal(ours, ours.T), name
            assert torch.equal(ours.diagonal(), getattr(fused.equation.diagonal(slice(None)), name).to(x.dtype)), name


@both_precisions
@every_net
def test_square(net, dtype):
    _assert_twins(net, _x(N).to(dtype))


@both_precisions
@every_net
def test_rectangle(net, dtype):
    _assert_twins(net, _x(N).to(dtype), 1.5 * _x(N2, seed=1).to(dtype))


@both_precisions
@pytest.mark.parametrize("name", ["relu", "tanh", "gelu"])
def test_large_correlations(name, dtype):
    _assert_twins(NETS[name], _alike(400).to(dtype))


@both_precisions
@every_net
def test_near_duplicates(net, dtype):
    """A kinked φ has Q as steep as (1 − |ρ|)^(−1/2) there: the round-off of a Gram value shows as its root."""
    x, noise = _x(150), _x(30, seed=5)
    near = torch.cat([x[:30] + share * noise for share in (0.0, 1e-3, 1e-6, 1e-9)])
    x = torch.cat([x, near, -x[:30], 2.0 * x[:30]]).to(dtype)
    steep = bool(net.phi.kinks) and dtype == torch.float64
    _assert_twins(net, x, tol=1e-7 if steep else None)
    fused, plain = _twins(net, x)
    assert _error(_filled(fused)[0], _filled(plain)[0]) <= (1e-11 if dtype == torch.float64 else 1e-5)


@both_precisions
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_tiles_of_any_size_and_place(name, dtype):
    x, x2 = _x(400).to(dtype), _x(400, seed=4).to(dtype)
    tiles = [(0, 400, 0, 400), (0, 37, 20, 400), (40, 41, 0, 400), (0, 400, 399, 400), (100, 330, 90, 347), (390, 400, 0, 9)]
    for other in (None, x2):
        fused, plain = _twins(NETS[name], x, other)
        for top, bottom, start, stop in tiles:
            ours, twins = (p.tile(slice(top, bottom), slice(start, stop), KERNELS) for p in (fused, plain))
            for found, twin in zip(ours, twins, strict=True):
                assert _error(found, twin) <= TOLERANCE[dtype], (top, bottom, start, stop)


@pytest.mark.parametrize("sides", [(137, 253), (253, 137), (1, 500)])
@both_precisions
def test_mirrored_tiles_that_meet_the_diagonal_anywhere(sides, dtype, monkeypatch):
    fused, plain = _twins(NETS["relu"], _x(500).to(dtype))
    monkeypatch.setattr(type(fused.engine), "sides", sides)
    for ours, twin in zip(_filled(fused), _filled(plain), strict=True):
        assert torch.equal(ours, ours.T)
        assert _error(ours, twin) <= TOLERANCE[dtype]


@both_precisions
@pytest.mark.parametrize(("n", "n2", "p"), [(1, 1, 1), (1, 300, 3), (300, 1, 65), (129, 65, 64), (7, 5, 200)])
def test_sizes_that_are_no_multiple_of_anything(n, n2, p, dtype):
    for name in ("relu", "tanh"):
        _assert_twins(NETS[name], _x(n, p).to(dtype), _x(n2, p, seed=1).to(dtype), tol=1e-7 if p == 1 else None)


@both_precisions
def test_norms_over_six_decades(dtype):
    x = torch.nn.functional.normalize(_x(60, 6)) * torch.logspace(-3, 3, 60, dtype=torch.float64).cuda()[:, None]
    for name in ("relu", "tanh", "gelu"):
        _assert_twins(NETS[name], x.to(dtype))


def _blank(*shape: int, dtype: torch.dtype, device: str = "cuda") -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype, device=device)


def _assert_written(out: list[Tensor], dtype: torch.dtype) -> None:
    x, net = _x(300).to(dtype), NETS["tanh"]
    expected = nsd.exact_kernels(net, x)
    found = nsd.exact_kernels(net, x, out=out)
    assert found.conjugate is out[0]
    assert found.tangent is out[1]
    for ours, twin in ((out[0], expected.conjugate), (out[1], expected.tangent)):
        assert twin.is_cuda
        assert _error(ours.to(twin.device), twin) <= TOLERANCE[dtype]


@both_precisions
def test_outputs(dtype):
    _assert_written([_blank(300, 300, dtype=dtype) for _ in range(2)], dtype)
    _assert_written([_blank(400, 500, dtype=dtype)[9:309, 100:400] for _ in range(2)], dtype)
    _assert_written([_blank(300, 300, dtype=dtype, device="cpu") for _ in range(2)], dtype)


@pytest.mark.parametrize("layout", ["columns first", "stepped", "unequal"])
def test_outputs_of_other_layouts(layout):
    whole = _blank(300, 300, dtype=torch.float64)
    _assert_written(
        {
            "columns first": [whole.T, _blank(300, 300, dtype=torch.float64).T],
            "stepped": [_blank(300, 600, dtype=torch.float64)[:, ::2] for _ in range(2)],
            "unequal": [whole, _blank(300, 400, dtype=torch.float64)[:, :300]],
        }[layout],
        torch.float64,
    )


@both_precisions
@every_net
def test_as_on_a_cpu(net, dtype):
    x = _x(200).to(dtype)
    here = _filled(prepare(net, x.cpu(), fused=False))
    for ours, known in zip(_filled(prepare(net, x)), here, strict=True):
        assert _error(ours.cpu(), known) <= TOLERANCE[dtype]


def test_pairs_left_open_are_finished(monkeypatch):
    from notsodeep.kernels.exact.pairs import ImplicitPairs

    seen, pairs = [], ImplicitPairs.pairs
    monkeypatch.setattr(
        ImplicitPairs, "pairs", lambda self, i, j, g: (seen.append((i.tolist(), j.tolist())), pairs(self, i, j, g))[1]
    )
    x = _x(200, 400)
    (found,) = _filled(prepare(NETS["relu"], x), ("conjugate",))
    assert not seen
    x[150] = x[3] * (1.0 + 1e-9)
    (found,) = _filled(prepare(NETS["relu"], x), ("conjugate",))
    assert seen == [([3], [150])]
    assert not bool(found.isnan().any())


# On related samples: float32 against the twin in float64


def _related(n, seed=0, dtype=torch.float64):
    x = torch.randn(n, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / 200**0.5
    x[1], x[2], x[3], x[4] = x[0], x[0] + 1e-3 * x[10], 2.0 * x[0], -x[0]
    return x.to("cuda", dtype)


def _assert_close(ours, theirs, allowed):
    for mine, wanted in zip(ours, theirs, strict=True):
        assert float((mine.double() - wanted.double()).abs().max()) <= allowed * float(wanted.abs().max())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
@pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "elu"])
def test_squares_rectangles_and_tiles(name, dtype):
    x, x2, net = _related(1300, dtype=dtype), _related(700, seed=1, dtype=dtype), nsd.Implicit(name, 0.15)
    for other in (None, x2):
        fused = prepare(net, x, other)
        plain = prepare(net, x.double(), None if other is None else other.double(), tau0=nsd.tau0(x), fused=False)
        assert type(fused.engine).__name__ == "GpuEngine"
        outputs = [tuple(torch.empty(p.shape, dtype=p.rows.dtype, device="cuda") for _ in KERNELS) for p in (fused, plain)]
        fused.fill(outputs[0], KERNELS)
        plain.fill(outputs[1], KERNELS)
        _assert_close(*outputs, TOLERANCE[dtype])
        if other is None:
            assert all(torch.equal(kernel, kernel.T) for kernel in outputs[0])
        for left, right in ((slice(0, 300), slice(0, 300)), (slice(100, 411), slice(300, 700)), (slice(7, 8), slice(0, 700))):
            _assert_close(fused.tile(left, right, KERNELS), [kernel[left, right] for kernel in outputs[1]], TOLERANCE[dtype])


def test_out_is_written():
    x, net = _related(1000, dtype=torch.float32), nsd.Implicit("relu", 0.2)
    out = torch.zeros(1000, 1000, device="cuda")
    assert nsd.conjugate_kernel(net, x, out=out) is out
    assert torch.equal(out, nsd.conjugate_kernel(net, x))


# Explicit networks: the same kernel once for each layer

EXPLICIT = {
    "relu": nsd.Explicit(["relu"]),
    "two rectifiers": nsd.Explicit(["relu", "leaky_relu:0.1"]).centred(1.0),
    "tanh relu elu": nsd.Explicit(["tanh", "relu", "elu"]),
    "hard_tanh": nsd.Explicit(["hard_tanh"]),
    "five tanh": nsd.Explicit(["tanh"] * 5),
}
every_explicit = pytest.mark.parametrize("net", EXPLICIT.values(), ids=EXPLICIT)


@both_precisions
@every_explicit
def test_explicit_square_and_rectangle(net, dtype):
    _assert_twins(net, _x(N).to(dtype))
    _assert_twins(net, _x(N).to(dtype), 1.5 * _x(N2, seed=1).to(dtype))
    _assert_twins(net, _alike(400).to(dtype))


@both_precisions
@every_explicit
def test_explicit_any_one_or_more_of_the_kernels(net, dtype):
    fused, plain = _twins(net, _x(300).to(dtype))
    expected = dict(zip(KERNELS, _filled(plain), strict=True))
    for wanted in [(k,) for k in KERNELS] + [KERNELS[:2], KERNELS[1:]]:
        for name, found in zip(wanted, _filled(fused, wanted), strict=True):
            assert _error(found, expected[name]) <= TOLERANCE[dtype], wanted


@both_precisions
@every_explicit
def test_explicit_tiles(net, dtype, monkeypatch):
    x = _x(500).to(dtype)
    fused, plain = _twins(net, x)
    whole = _filled(plain)
    for left, right in ((slice(0, 37), slice(20, 400)), (slice(100, 330), slice(90, 347)), (slice(7, 8), slice(0, 500))):
        for found, twin in zip(fused.tile(left, right, KERNELS), whole, strict=True):
            assert _error(found, twin[left, right]) <= 2.0 * TOLERANCE[dtype]
    monkeypatch.setattr(type(fused.engine), "sides", (137, 253))
    for found, twin in zip(_filled(fused), whole, strict=True):
        assert _error(found, twin) <= TOLERANCE[dtype]
        assert torch.equal(found, found.T)


@both_precisions
@pytest.mark.parametrize("layers", [["relu", "tanh"], ["tanh", "relu"], ["tanh", "tanh", "abs"]])
def test_explicit_pairs_left_open_by_any_layer(layers, dtype, monkeypatch):
    from notsodeep.kernels.exact.pairs import ExplicitPairs

    seen, pairs = [], ExplicitPairs.pairs
    monkeypatch.setattr(
        ExplicitPairs, "pairs", lambda self, i, j, g: (seen.append((i.tolist(), j.tolist())), pairs(self, i, j, g))[1]
    )
    x = _x(200, 400).to(dtype)
    x[150] = x[3] * (1.0 + 1e-9)
    fused, plain = _twins(nsd.Explicit(layers), x)
    ours = _filled(fused, KERNELS[:2])
    assert seen == [([3], [150])]
    for found, twin in zip(ours, _filled(plain, KERNELS[:2]), strict=True):
        assert _error(found, twin) <= max(1e-7, TOLERANCE[dtype])
        assert torch.equal(found, found.T)
