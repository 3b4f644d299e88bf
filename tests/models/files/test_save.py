"""save and load: what comes back, and what is refused."""

import dataclasses
import json
import random
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import notsodeep as nsd
from notsodeep.activations import Mixed, Relu, Scaled
from notsodeep.fixed_points import ForwardBackward, PeacemanRachford
from notsodeep.models.files.save import read_tensors, write_tensors
from notsodeep.models.unrolled import DenseResponse
from tests.zoo import ACTIVATIONS, build

P, M, K = 5, 12, 3


def deq(name="relu", seed=0, **options):
    draw = torch.Generator().manual_seed(seed)
    return nsd.DEQ(nsd.Implicit(name, 0.2), P, M, K, generator=draw, **options)


def x(dtype=torch.float32):
    return torch.randn(4, P, generator=torch.Generator().manual_seed(9), dtype=dtype)


MODULES = {
    "relu": lambda: deq(),
    "options": lambda: deq(
        "tanh",
        solver=nsd.Broyden(memory=7),
        adjoint=nsd.fixed_points.PhantomAdjoint(3),
        tol=1e-4,
        max_steps=50,
        tau0=1.3,
        throw=False,
    ),
    "frozen, biased, float64": lambda: deq("elu", frozen=("A", "B"), bias=True, readout_bias=True, dtype=torch.float64),
    "learned variances": lambda: deq("tanh", learn_variances=True, precision=nsd.fixed_points.FullPrecision()),
    "spectral": lambda: deq(well_posed="spectral"),
    "monotone": lambda: deq("tanh", well_posed="monotone"),
    "split": lambda: deq(well_posed="monotone", solver=PeacemanRachford(alpha=None, solver=nsd.Broyden(memory=7))),
    "split, both ways": lambda: deq(
        solver=ForwardBackward(), adjoint=nsd.ImplicitAdjoint(PeacemanRachford(0.7, nsd.Picard()), tol=1e-4)
    ),
    "no readout": lambda: nsd.DEQ(nsd.Implicit("gelu", 0.1, centre=False), P, M),
    "half": lambda: deq().to(torch.bfloat16),
    "designed": lambda: nsd.ENN(nsd.design(nsd.Implicit("relu", 0.2)).explicit, P, (M, 7), K, bias=True, frozen="hidden"),
    "several kinds": lambda: nsd.ENN(
        nsd.Explicit(["relu", Mixed(["tanh", Scaled(Relu(), 0.3), "x*tanh(x)"])], gains=(0.5, 2.0, 0.0)), P, (M, 7), K
    ),
    "several kinds, stacked": lambda: nsd.models.to_deq(nsd.ENN(nsd.Explicit(Mixed(["relu", "tanh"])), P, 7, K)),
    "stacked": lambda: nsd.models.to_deq(nsd.ENN(nsd.Explicit(["relu", "tanh"]), P, M, K)),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_was_saved_comes_back(name, tmp_path):
    module = MODULES[name]()
    back = nsd.load(nsd.save(module, tmp_path / "a.safetensors"))
    assert repr(back) == repr(module)
    assert {k: (v.dtype, v.requires_grad) for k, v in back.named_parameters()} == {
        k: (v.dtype, v.requires_grad) for k, v in module.named_parameters()
    }
    if name != "half":  # a DEQ is not solved in bfloat16
        rows = x(next(module.parameters()).dtype)
        assert torch.equal(back(rows), module(rows))
    if isinstance(module, nsd.DEQ):
        assert (back.plan, back.adjoint, back.tau0) == (module.plan, module.adjoint, module.tau0)
        assert back.changed() == module.changed()


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if "custom" not in str(build(name))])
def test_every_activation_comes_back(name, tmp_path):
    module = nsd.ENN(nsd.Explicit([build(name)]), P, M)
    back = nsd.load(nsd.save(module, tmp_path / "a.safetensors"))
    assert back.net == module.net


def test_a_trained_deq_stays_trained(tmp_path):
    module = deq()
    with torch.no_grad():
        module.A.mul_(0.9)
    back = nsd.load(nsd.save(module, tmp_path / "a.safetensors"))
    assert back.changed() == {"A"}


def test_other_programs_open_the_weights(tmp_path):
    module = deq(bias=True)
    weights = load_file(nsd.save(module, tmp_path / "a.safetensors"))
    assert set(weights) == set(module.state_dict())
    assert torch.equal(weights["A"], module.A)


def test_a_function_of_ones_own_is_asked_for(tmp_path):
    def bend(u):
        return torch.relu(u - 0.3) + 0.1 * u

    module = nsd.DEQ(nsd.Implicit(bend, 0.1), P, M, K)
    path = nsd.save(module, tmp_path / "a.safetensors")
    with pytest.raises(nsd.BadInput, match="'bend', and a file holds no code"):
        nsd.load(path)
    assert torch.equal(nsd.load(path, functions={"bend": bend})(x()), module(x()))


def test_no_byte_can_be_changed(tmp_path):
    path = nsd.save(nsd.ENN(nsd.Explicit("relu"), 3, 4, 2), tmp_path / "a.safetensors")
    whole = path.read_bytes()
    choose = random.Random(0)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << choose.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(nsd.BadInput):
            nsd.load(path)


def test_cut_or_overlong_files(tmp_path):
    path = nsd.save(deq(), tmp_path / "a.safetensors")
    whole = path.read_bytes()
    for content in (whole[:0], whole[:7], whole[:100], whole[: len(whole) // 2], whole[:-1], whole + b"more", b"\xff" * 50):
        path.write_bytes(content)
        with pytest.raises(nsd.BadInput, match="not a whole safetensors file"):
            nsd.load(path)


def test_a_header_that_promises_too_much(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**40) + b"{}")
    with pytest.raises(nsd.BadInput, match="not a whole"):
        nsd.load(path)


def forged(path, change):
    """A file whose sum is right, as somebody who knows how would write it."""
    stored = read_tensors(path)
    module = stored.record["module"]
    module["weights"] = stored.tensors
    change(module)
    del module["weights"]
    return write_tensors(path, stored.tensors, stored.record)


def split(**parts):
    return {"kind": "PeacemanRachford", **parts}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.update(width=10**8), "do not fit: A is"),
        (lambda m: m.update(width=10**12), "DEQ cannot be made"),
        (lambda m: m.update(width=0), "width"),
        (lambda m: m.update(width="wide"), "width"),
        (lambda m: m.update(kind="os.system"), "os.system"),
        (lambda m: m["net"].update(kind="eval"), "no kind 'eval'"),
        (lambda m: m["net"].update(phi={"kind": "Path"}), "no kind 'Path'"),
        (lambda m: m["net"].update(var_a=-1.0), "var_a"),
        (lambda m: m["net"].update(surprise=1), "surprise"),
        (lambda m: m["net"].update(phi=3), "phi = 3"),
        (lambda m: m.update(net=[]), "net = \\(\\)"),
        (lambda m: m.update(dtype="complex64"), "no dtype"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m["plan"].update(tol=-1.0), "tol"),
        (lambda m: m.update(plan=None), "plan = None"),
        (lambda m: m.update(changed=None), "has no weights None"),
        (lambda m: m.update(changed=[[1]]), "has no weights"),
        (lambda m: m.update(frozen=["C"]), "has no weights"),
        (lambda m: m.update(bias="x"), "bias = 'x'"),
        (lambda m: m.update(tau0=True), "tau0 = True"),
        (lambda m: m.update(tau0=float("nan")), "tau0 = nan"),
        (lambda m: m["net"].update(centre="x"), "centre = 'x'"),
        (lambda m: m["plan"]["solver"].update(memory=10**30), "memory = 1000"),
        (lambda m: m["plan"]["solver"].update(kind="PeacemanRachford"), "PeacemanRachford cannot be made"),
        (lambda m: m["plan"].update(solver=split(alpha="1")), "alpha = '1'"),
        (lambda m: m["plan"].update(solver=split(alpha=-1.0)), "alpha of PeacemanRachford"),
        (lambda m: m["plan"].update(solver=split(solver=split())), "solver = PeacemanRachford"),
        (lambda m: m["plan"].update(solver=split(split="f")), "split"),
        (lambda m: m["plan"].update(solver=split(kind="Splitting")), "no kind 'Splitting'"),
        (lambda m: m["plan"].update(solver=split(kind="Preconditioned", apply="f")), "no kind 'Preconditioned'"),
        (lambda m: m["adjoint"].update(callback="os.system"), "callback"),
        (lambda m: m["net"].update(phi={"kind": "Scaled", "inner": 7, "factor": 1.0}), "inner = 7"),
        (lambda m: m["net"].update(phi={"kind": "Polynomial", "coefficients": ["x"]}), "coefficients"),
        (lambda m: m["net"].update(phi={"kind": "Polynomial", "coefficients": [0.0] * 3000}), "3000 values in a row"),
        (lambda m: m["weights"].pop("B"), "B is missing"),
        (lambda m: m["weights"].update(C=torch.zeros(2)), "C is not expected"),
        (lambda m: m["weights"].update(A=torch.zeros(3, 3)), r"A is \(3, 3\) float32, not \(12, 12\) float32"),
        (lambda m: m["weights"].update(A=m["weights"]["A"].double()), "float64, not"),
    ],
)
def test_a_record_that_does_not_fit_its_weights(change, says, tmp_path):
    path = nsd.save(deq(), tmp_path / "a.safetensors")
    forged(path, change)
    with pytest.raises(nsd.BadInput, match=says):
        nsd.load(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda m: m.update(learnt="yes"),
            r"Unrolled cannot be made of a DEQ with damping = 1.0 and .* \['yes', True, False\]",
        ),
        (lambda m: m.update(response=[1]), "Unrolled cannot be made"),
        (lambda m: m.update(resolvent=None), "Unrolled cannot be made"),
        (lambda m: m.update(damping=0.0), "damping = 0.0"),
        (lambda m: m.update(damping=1.5), "damping = 1.5"),
        (lambda m: m.update(damping=float("nan")), "damping = nan"),
        (lambda m: m.update(damping="1"), "damping = '1'"),
        (lambda m: m.update(model={"kind": "Unrolled"}), "only a DEQ|cannot be made"),
        (lambda m: m.update(steps=-1), "steps"),
        (lambda m: m["model"].update(changed=["C"]), r"a\.safetensors.*names"),
    ],
)
def test_a_record_of_steps_that_does_not_fit(change, says, tmp_path):
    model = deq()
    response = DenseResponse(torch.eye(model.width), torch.zeros(model.width))
    path = nsd.save(nsd.models.Unrolled(model, 2, response=response), tmp_path / "a.safetensors")
    assert nsd.load(forged(path, lambda _: None)).steps == 2
    forged(path, change)
    with pytest.raises(nsd.BadInput, match=says):
        nsd.load(path)


def test_a_name_that_two_functions_share(tmp_path):
    net = nsd.Explicit([lambda u: torch.tanh(u), lambda u: torch.sin(u)])
    with pytest.raises(nsd.BadInput, match="Two activations of this network are called '<lambda>'"):
        nsd.save(nsd.ENN(net, P, M), tmp_path / "a.safetensors")
    named = nsd.Explicit([nsd.custom(torch.tanh, name="first"), nsd.custom(torch.sin, name="second")])
    module = nsd.ENN(named, P, M)
    nsd.save(module, tmp_path / "a.safetensors")
    back = nsd.load(tmp_path / "a.safetensors", functions={"first": torch.tanh, "second": torch.sin})
    assert torch.equal(back(x()), module(x()))


def test_a_class_that_only_has_the_name_of_one_of_ours(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Tanh(nsd.activations.Activation):
        lipschitz = 3.0

        def __call__(self, x):
            return torch.tanh(3.0 * x)

        def derivative(self, x):
            return 3.0 * torch.cosh(3.0 * x) ** -2

    with pytest.raises(nsd.BadInput, match="class of your own"):
        nsd.save(nsd.ENN(nsd.Explicit([Tanh()]), P, M), tmp_path / "a.safetensors")


def test_what_is_frozen_stays_frozen_however_it_was(tmp_path):
    enn = nsd.ENN(nsd.Explicit(["relu", "relu"]), P, M, K, bias=True, readout_bias=True)
    enn.weights[1].requires_grad_(False)
    enn.readout.bias.requires_grad_(False)
    back = nsd.load(nsd.save(enn, tmp_path / "a.safetensors"))
    assert [n for n, w in back.named_parameters() if not w.requires_grad] == ["weights.1", "readout.bias"]
    bounded = deq(well_posed="spectral")
    with torch.no_grad():
        nsd.save(bounded, tmp_path / "a.safetensors")
    assert all(weight.requires_grad for weight in nsd.load(tmp_path / "a.safetensors").parameters())


def test_many_frozen_weights_and_numbers_of_numpy(tmp_path):
    deep = nsd.ENN(nsd.Explicit(["tanh"] * 150), P, 4, 2, bias=True, frozen="hidden")
    assert len(nsd.load(nsd.save(deep, tmp_path / "a.safetensors")).weights) == 150
    tolerant = deq(tol=np.float32(1e-4))
    assert nsd.load(nsd.save(tolerant, tmp_path / "a.safetensors")).plan.tol == pytest.approx(1e-4)


def test_headers_that_no_library_of_ours_reads(tmp_path):
    path = nsd.save(deq(), tmp_path / "a.safetensors")
    whole = path.read_bytes()
    for old, new in [(b'"F32"', b'"F8_E5M2"'), (b'"shape":[12,12]', b'"shape":[0,9223372036854775808]')]:
        size = struct.unpack("<Q", whole[:8])[0]
        header = whole[8 : 8 + size].replace(old, new, 1)
        path.write_bytes(struct.pack("<Q", len(header)) + header + whole[8 + size :])
        with pytest.raises(nsd.BadInput):
            nsd.load(path)
    with pytest.raises(nsd.BadInput, match=r"not a whole|no file|not the path of a file"):
        nsd.load("a" * 5000)


def test_records_that_go_too_deep(tmp_path):
    path = nsd.save(deq(), tmp_path / "a.safetensors")

    def nest(module):
        for _ in range(30):
            module["net"]["phi"] = {"kind": "Centred", "inner": module["net"]["phi"], "offset": 0.0}

    forged(path, nest)
    with pytest.raises(nsd.BadInput, match="nested more than"):
        nsd.load(path)


def test_a_file_larger_than_the_memory_is_not_read(tmp_path, monkeypatch):
    path = nsd.save(deq(), tmp_path / "a.safetensors")
    monkeypatch.setattr("notsodeep.models.files.save.available_bytes", lambda _: 100)
    with pytest.raises(nsd.BadInput, match="of memory are free"):
        nsd.load(path)


def test_files_of_others(tmp_path):
    save_file({"A": torch.zeros(2)}, tmp_path / "other.safetensors")
    write_tensors(tmp_path / "bare.safetensors", {"A": torch.zeros(2)}, {})
    write_tensors(tmp_path / "new.safetensors", {"A": torch.zeros(2)}, {"format": 99})
    for name, says in [
        ("other", "not one of notsodeep"),
        ("bare", "describes no network"),
        ("new", "format 99"),
        ("missing", "no file"),
    ]:
        with pytest.raises(nsd.BadInput, match=says):
            nsd.load(tmp_path / f"{name}.safetensors")
    with pytest.raises(nsd.BadInput, match="is a folder"):
        nsd.load(tmp_path)


def test_what_cannot_be_saved_leaves_no_file(tmp_path):
    class Own(nsd.fixed_points.Solver):
        def init(self, z):  # noqa: ARG002
            return None

        def step(self, memory, z, fz, size):  # noqa: ARG002
            return fz, None

    path = tmp_path / "a.safetensors"
    with pytest.raises(nsd.BadInput, match="Own is a class of your own, which cannot be written"):
        nsd.save(deq(solver=Own()), path)
    with pytest.raises(nsd.BadInput, match="Own is a class of your own, which cannot be written"):
        nsd.save(deq(solver=PeacemanRachford(solver=Own())), path)
    with pytest.raises(nsd.BadInput, match="got Linear"):
        nsd.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(nsd.BadInput, match="Cannot write"):
        nsd.save(deq(), tmp_path / "nowhere" / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_the_record_is_plain_json(tmp_path):
    path = nsd.save(deq(), tmp_path / "a.safetensors")
    size = struct.unpack("<Q", path.read_bytes()[:8])[0]
    header = json.loads(path.read_bytes()[8 : 8 + size])
    record = json.loads(header["__metadata__"]["notsodeep"])["module"]
    assert record["kind"] == "DEQ"
    assert record["net"] == {"kind": "Implicit", "phi": {"kind": "Rectifier", "positive": 1.0, "negative": 0.0}} | {
        "var_a": 0.2,
        "var_b": 0.8,
        "centre": True,
    }
