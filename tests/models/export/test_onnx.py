"""to_onnx: files that ONNX Runtime reads to the same numbers."""

import math
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.activations import Polynomial, Rectifier
from notsodeep.models.export import onnx as export
from notsodeep.models.export.onnx import to_onnx
from tests.zoo import ACTIVATIONS, build

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

P = 6
LAYERS = ("relu", "tanh", build("two_kinks"))


class Beside(nn.Module):
    """All activations of one input, beside each other: (n, k, p)."""

    def __init__(self, layers, dtype):
        super().__init__()
        self.layers, self.in_features = layers, P
        self.one = nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, x):
        return torch.stack([phi(self.one * x) for phi in self.layers], dim=1)


def enn(layers=LAYERS, dtype=torch.float32, **options):
    draw = torch.Generator().manual_seed(0)
    return nsd.ENN(nsd.Explicit(layers), P, 16, 3, dtype=dtype, generator=draw, **options)


def deq(name="relu", dtype=torch.float32, var_a=0.2, **options):
    draw = torch.Generator().manual_seed(0)
    return nsd.DEQ(nsd.Implicit(name, var_a), P, 24, 2, dtype=dtype, generator=draw, **options)


def data(n, dtype=torch.float32):
    return torch.randn(n, P, generator=torch.Generator().manual_seed(n), dtype=dtype)


def answer(path, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["x"]
    return torch.from_numpy(session.run(["out"], {"x": x.numpy()})[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_activation(dtype, tmp_path):
    layers = {name: build(name) for name in ACTIVATIONS}
    layers |= {"poly": Polynomial((0.1, 0.2, 0.3)), "constant": Polynomial((0.1,)), "falling": Rectifier(0.0, 0.3)}
    module = Beside([*layers.values()], dtype)
    path = to_onnx(module, tmp_path / "all.onnx")
    x = torch.linspace(-5.0, 5.0, 7 * P, dtype=torch.float64).to(dtype).reshape(7, P)
    x[0, 0], x[0, 1], x[0, 2], x[0, 3] = 0.0, 200.0, -200.0, 900.0
    found, expected = answer(path, x), module(x)
    assert found.dtype == dtype
    gap = ((found - expected).abs() / (1.0 + expected.abs())).amax(dim=(0, 2))
    for name, size in zip(layers, gap.tolist(), strict=True):
        single = dtype == torch.float32 or "erf" in name or "gelu" in name  # which ONNX Runtime has in float32 only
        assert size <= (1e-6 if single else 1e-14), name


def test_a_network_in_one_file_for_any_batch(tmp_path, capfd):
    module = enn(bias=True, readout_bias=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = module.to_onnx(tmp_path / "network.onnx")
    assert path == tmp_path / "network.onnx"
    assert [file.name for file in tmp_path.iterdir()] == ["network.onnx"]
    assert capfd.readouterr() == ("", "")
    onnx.checker.check_model(str(path))
    for n in (1, 2, 40):
        torch.testing.assert_close(answer(path, data(n)), module(data(n)).detach(), rtol=1e-5, atol=1e-6)


def test_layers_of_several_kinds(tmp_path):
    layers = (nsd.activations.Mixed(["relu", "tanh", build("two_kinks")]), nsd.activations.Mixed(["gelu", "x"]))
    module = nsd.ENN(nsd.Explicit(layers, (0.5, 2.0, 1.5)), P, (16, 7), 3, bias=True)  # 16 = 6 + 5 + 5
    path = module.to_onnx(tmp_path / "a.onnx")
    torch.testing.assert_close(answer(path, data(9)), module(data(9)).detach(), rtol=1e-5, atol=1e-6)


def test_half_precision(tmp_path):
    module = enn(("relu", "relu"), dtype=torch.float16)
    found = answer(module.to_onnx(tmp_path / "half.onnx"), data(4, torch.float16))
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, module(data(4, torch.float16)).detach(), rtol=2e-2, atol=2e-2)
    with pytest.raises(nsd.BadInput, match=r"bfloat16.*float\(\)"):
        enn(dtype=torch.bfloat16).to_onnx(tmp_path / "brain.onnx")


@pytest.mark.parametrize(
    ("options", "dtype", "rtol"),
    [({"well_posed": "spectral"}, torch.float32, 1e-4), ({"well_posed": "monotone"}, torch.float64, 1e-8)],
)
def test_a_deq_is_a_loop(options, dtype, rtol, tmp_path):
    module = deq(dtype=dtype, **options).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    path = module.to_onnx(tmp_path / "deq.onnx")
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert "Loop" in {node.op_type for node in onnx.load(path).graph.node}
    for n in (1, 8):
        x = data(n, dtype) / math.sqrt(P)
        expected = module(x).detach()
        assert float((answer(path, x) - expected).abs().max()) <= rtol * float(expected.abs().max())


def test_a_loop_that_does_not_converge_leaves_no_file(tmp_path):
    module = deq("relu", var_a=0.9, max_steps=28)  # enough for Anderson mixing, not for plain steps
    with pytest.raises(nsd.NotConverged, match=r"loop of plain steps.*within 28 steps"):
        module.to_onnx(tmp_path / "deq.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_stacked_layers(tmp_path):
    module = nsd.models.to_deq(enn())
    path = module.to_onnx(tmp_path / "stacked.onnx")
    torch.testing.assert_close(answer(path, data(5)), module(data(5)).detach(), rtol=1e-4, atol=1e-5)


def test_a_file_with_other_numbers_is_not_kept(tmp_path, monkeypatch):
    kept, write = tmp_path / "network.onnx", export._exported
    kept.write_text("the old one")
    monkeypatch.setattr(export, "_exported", lambda _, *rest: write(enn(("tanh", "tanh")), *rest))
    with pytest.raises(nsd.NoMatch, match="off by") as caught:
        enn().to_onnx(kept)
    assert caught.value.residual > 1e-2
    assert [file.name for file in tmp_path.iterdir()] == ["network.onnx"]
    assert kept.read_text() == "the old one"


@pytest.fixture
def instant(monkeypatch):
    """An exporter that takes no time."""
    monkeypatch.setattr(export, "_exported", lambda *_: b"a graph")


@pytest.mark.usefixtures("instant")
def test_methods_pass_on_their_arguments(tmp_path):
    path = tmp_path / "network.onnx"
    for module in (enn(), deq(), nsd.models.Compiled(enn(), None, None)):
        assert module.to_onnx(str(path), check=False) == path
        assert path.read_bytes() == b"a graph"
        path.unlink()
        with pytest.raises(nsd.BadInput, match="cannot run"):
            module.to_onnx(path)
        assert not list(tmp_path.iterdir())


def test_what_onnx_runtime_cannot_run_says_so(tmp_path):
    with pytest.raises(nsd.BadInput, match=r"cannot run ENN of Explicit\(Softplus.*float64.*check=False"):
        enn([nn.Softplus()], dtype=torch.float64).to_onnx(tmp_path / "network.onnx")
    assert not list(tmp_path.iterdir())


def test_what_has_no_operator_says_so(tmp_path):
    with pytest.raises(nsd.BadInput, match=r"Explicit\(bessel.*cannot be written as ONNX.*i0e"):
        enn([nsd.custom(lambda x: torch.special.i0e(x), name="bessel")]).to_onnx(tmp_path / "network.onnx")
    assert not list(tmp_path.iterdir())


def test_bad_arguments(tmp_path, monkeypatch):
    with pytest.raises(nsd.BadInput, match=r"Cannot write.*No such file"):
        enn().to_onnx(tmp_path / "nowhere" / "network.onnx")
    (tmp_path / "file").write_text("")
    with pytest.raises(nsd.BadInput, match="Cannot write"):
        enn().to_onnx(tmp_path / "file" / "network.onnx")
    with pytest.raises(nsd.BadInput, match=r"in_features and weights.*got ReLU"):
        to_onnx(nn.ReLU(), tmp_path / "network.onnx")
    monkeypatch.setattr(export, "_LARGEST", 100)
    with pytest.raises(nsd.BadInput, match="2 GiB"):
        enn().to_onnx(tmp_path / "network.onnx")


@pytest.mark.parametrize("name", ["onnx", "onnxscript"])
def test_without_the_packages(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(nsd.BadInput, match=rf"need {name}: pip install 'notsodeep\[onnx\]'"):
        enn().to_onnx(tmp_path / "network.onnx")


@pytest.mark.usefixtures("instant")
def test_without_a_runtime_it_warns(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.warns(nsd.NumericsWarning, match="not checked") as caught:
        path = enn().to_onnx(tmp_path / "network.onnx")
    assert caught[0].filename == __file__
    assert path.read_bytes() == b"a graph"


def test_several_threads_write_at_once(tmp_path):
    """torch's exporter is the whole process's: one after another, and nobody blames the activation."""
    network = enn()
    with ThreadPoolExecutor(4) as threads:
        paths = list(threads.map(lambda k: network.to_onnx(tmp_path / f"{k}.onnx"), range(4)))
    assert len({path.read_bytes() for path in paths}) == 1


def test_the_remedy_is_that_of_the_reason(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise AssertionError("the place was lost")

    monkeypatch.setattr(torch.onnx, "export", broken)
    with pytest.raises(nsd.BadInput, match=r"the place was lost.* AssertionError inside torch's exporter"):
        enn().to_onnx(tmp_path / "a.onnx")
