"""to_onnx of modules with a fixed point of their own."""

import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.fixed_points import Loop, Steps, exporting
from notsodeep.models.export import onnx as export

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Images(nn.Module):
    """z = tanh(K * z + U * x) over images, and its mean over the pixels."""

    def __init__(self, size=0.05, solver=None, **options):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(1, 4, 3, padding=1)
        self.drop, self.solver, self.options = nn.Dropout(0.5), solver or nsd.Anderson(), options
        nn.init.normal_(self.inner.weight, std=size)

    def forward(self, x):
        u = self.outer(x)
        found = nsd.fixed_point(lambda z: torch.tanh(self.inner(z) + u), torch.zeros_like(u), self.solver, **self.options)
        return self.drop(found.value).mean((2, 3))


class Two(nn.Module):
    """Two inputs and two outputs; the number of samples from wherever it is told to."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x, y):
        z0 = torch.zeros(self.count(x), 2)
        z = nsd.fixed_point(lambda z: torch.cos(0.3 * z + x[:, :2]) + 0.1 * y, z0).value
        return z, z.sum(1)


class Steep(nn.Module):
    """z = x − 1.5 tanh z: where x is small, plain steps go round in circles, smaller ones do not."""

    def __init__(self, solver):
        super().__init__()
        self.solver = solver

    def forward(self, x):
        return nsd.fixed_point(lambda z: x - 1.5 * torch.tanh(z), torch.zeros_like(x), self.solver, max_steps=60).value


def data(n):
    return torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(n))


def answers(path, *inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    found = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
    return names, [out.name for out in session.get_outputs()], [torch.from_numpy(out) for out in found]


@pytest.mark.parametrize(("how", "node"), [(Loop(), True), (Steps(20), False)])
def test_a_convolution_of_ones_own(how, node, tmp_path):
    module = Images().train()
    with exporting() as around:
        path = nsd.models.to_onnx(module, tmp_path / "images.onnx", data(3), how)
    assert module.training
    proto = onnx.load(path)
    assert ("Loop" in {each.op_type for each in proto.graph.node}) is node
    (told,) = [each.value for each in proto.metadata_props if each.key == "notsodeep.fixed_points"]
    assert told.startswith("loop of plain steps, at most 200" if node else "20 plain steps, no check")
    assert "residual on the example" in told
    assert [record.how for record in around.written] == [how]
    module.eval()
    for n in (1, 3, 8):
        names, outputs, (found,) = answers(path, data(n))
        assert (names, outputs) == (["x"], ["out"])
        torch.testing.assert_close(found, module(data(n)).detach(), rtol=1e-4, atol=1e-5)


def test_several_inputs_and_outputs(tmp_path):
    module, x, y = Two(lambda x: x.shape[0]), torch.randn(1, 3), torch.randn(1, 2)
    path = nsd.models.to_onnx(module, tmp_path / "two.onnx", (x, y))
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    names, outputs, found = answers(path, x, y)
    assert (names, outputs) == (["x1", "x2"], ["out1", "out2"])
    for one, other in zip(found, module(x, y), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_number_of_samples_that_became_a_constant(tmp_path):
    with pytest.raises(nsd.BadInput, match=r"constant 3.*x\.shape\[0\]"):
        nsd.models.to_onnx(Two(len), tmp_path / "two.onnx", (torch.randn(3, 3), torch.randn(3, 2)))
    assert not list(tmp_path.iterdir())


def test_a_loop_that_does_not_reach_what_the_solver_does(tmp_path):
    x, module = torch.tensor([[9.0], [0.3], [0.2]]), Steep(nsd.Anderson())
    assert bool(module(x).isfinite().all())
    with pytest.raises(nsd.NotConverged, match=r"within 60 steps for 2 of 3 samples.*Anderson.*damping=0.3") as caught:
        nsd.models.to_onnx(module, tmp_path / "steep.onnx", x)
    assert caught.value.residual > 0.1
    assert not list(tmp_path.iterdir())
    with exporting() as graph:
        answer, (record,) = graph.rehearse(Steep(nsd.Picard(damping=0.3)), x)
    assert record.failed == 0
    torch.testing.assert_close(answer, module(x), rtol=1e-4, atol=1e-5)


def test_too_few_steps_are_not_kept(tmp_path):
    with pytest.raises(nsd.NoMatch, match=r"off by.*Its 1 plain steps leave a residual of"):
        nsd.models.to_onnx(Images(size=0.15), tmp_path / "images.onnx", data(3), Steps(1))
    assert not list(tmp_path.iterdir())


def test_bad_examples(tmp_path):
    path = tmp_path / "images.onnx"
    with pytest.raises(nsd.BadInput, match="pass inputs of it"):
        nsd.models.to_onnx(Images(), path)
    with pytest.raises(nsd.BadInput, match="a tensor or a tuple"):
        nsd.models.to_onnx(Images(), path, [1.0])
    with pytest.raises(nsd.BadInput, match=r"the same samples; got \(3, 1, 6, 6\), \(2, 1, 6, 6\)"):
        nsd.models.to_onnx(Images(), path, (data(3), data(2)))


class Returns(nn.Module):
    """forward(x) = answer(layer(x))."""

    def __init__(self, answer):
        super().__init__()
        self.layer, self.answer = nn.Linear(3, 2), answer

    def forward(self, x):
        return self.answer(self.layer(x))


@pytest.mark.parametrize(
    ("example", "says"),
    [
        (torch.randn(4, 5), r"here with \(1, 5\) float32: .*Pass inputs as its forward takes them"),
        (torch.ones(4, 3, dtype=torch.long), r"here with \(1, 3\) int64"),
        (torch.randn(4, 3).double(), r"here with \(1, 3\) float64"),
        (torch.randn(4), r"here with \(1,\) float32"),
        ((torch.randn(4, 3), torch.randn(4, 3)), r"here with \(1, 3\) float32, \(1, 3\) float32: .*positional"),
    ],
)
def test_examples_that_the_module_does_not_take(example, says, tmp_path):
    with pytest.raises(nsd.BadInput, match=f"Returns fails on the example, {says}"):
        nsd.models.to_onnx(Returns(lambda y: y), tmp_path / "file.onnx", example)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda y: (y, None), "returns NoneType among its 2 outputs"),
        (lambda y: (y, 3), "returns int among its 2 outputs"),
        (lambda _: (), "returns nothing among its 0 outputs"),
    ],
)
def test_outputs_that_are_no_tensors(answer, says, tmp_path):
    with pytest.raises(nsd.BadInput, match=f"{says}.*tensors only"):
        nsd.models.to_onnx(Returns(answer), tmp_path / "file.onnx", torch.randn(4, 3))
    assert not list(tmp_path.iterdir())


def test_what_is_no_module(tmp_path):
    with pytest.raises(nsd.BadInput, match=r"takes a torch module, got function.*nn\.Module"):
        nsd.models.to_onnx(lambda x: x, tmp_path / "file.onnx", torch.randn(4, 3))


def test_the_output_that_differs_is_named(tmp_path, monkeypatch):
    write = export._exported
    other = Returns(lambda y: (y, y + 1.0)).eval()
    module = Returns(lambda y: (y, y))
    other.load_state_dict(module.state_dict())
    monkeypatch.setattr(export, "_exported", lambda _, *rest: write(other, *rest))
    with pytest.raises(nsd.NoMatch, match=r"off by .* in 'out2' on 1 samples"):
        nsd.models.to_onnx(module, tmp_path / "file.onnx", torch.randn(4, 3))
    assert not list(tmp_path.iterdir())
