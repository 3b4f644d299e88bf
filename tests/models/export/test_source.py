"""to_source: a program that needs torch alone."""

import ast
import copy
import subprocess
import sys

import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import Centred, Mixed, Relu
from notsodeep.models.export.source import to_source
from tests.zoo import build

P = 6
LAYERS = [Centred(Relu(), 0.4), "hermite:0,1,0.3,0.1", build("two_kinks"), Centred(Relu(), 0.4)]
VARIANTS = {
    "plain": {"out_features": 3},
    "biases": {"out_features": 3, "bias": True, "readout_bias": True},
    "features": {"bias": True},
    "widths": {"out_features": 1, "width": [7, 5, 3, 2]},
    "several kinds": {
        "layers": [Mixed(["relu", build("two_kinks"), "tanh"]), "relu", Mixed(["tanh", "sin"])],
        "width": [7, 5, 3],
        "bias": True,
    },
}


def enn(dtype=torch.float32, layers=LAYERS, width=16, **options):
    draw = torch.Generator().manual_seed(0)
    module = nsd.ENN(nsd.Explicit(layers), P, width, dtype=dtype, generator=draw, **options)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "bias" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return module


def data(dtype):
    return torch.randn(9, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def gap(found, expected):
    with torch.no_grad():
        return float((found - expected).abs().max() / expected.abs().max())


def run(module):
    space = {"__name__": "network"}
    exec(compile(to_source(module), "network.py", "exec"), space)
    return space


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)]
)
def test_the_same_outputs(variant, dtype, rtol):
    module = enn(dtype, **VARIANTS[variant])
    found = run(module)["load"]()
    x = data(dtype)
    expected = module(x)
    assert found(x).dtype == dtype
    assert gap(found(x), expected) <= rtol
    for name, weight in module.state_dict().items():
        assert torch.equal(found.state_dict()[name], weight)


def test_states_go_both_ways():
    module, other = enn(out_features=3, bias=True), enn(out_features=3, bias=True)
    network = run(module)["Network"]()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.5)
    network.load_state_dict(other.state_dict())
    torch.testing.assert_close(network(data(torch.float32)), other(data(torch.float32)))
    module.load_state_dict(network.state_dict())
    torch.testing.assert_close(module(data(torch.float32)), other(data(torch.float32)))
    network(data(torch.float32)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_only_torch_is_imported_and_lines_are_short():
    text = enn(out_features=3).to_source()
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["import torch"]
    assert not any(isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval") for node in ast.walk(tree))
    assert max(map(len, text.splitlines())) <= 128
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == [
        *("sigma_1", "sigma_2", "sigma_3"),  # the first activation is used twice and written once
        *("decode", "load"),
    ]
    assert f"notsodeep {nsd.__version__}" in text.splitlines()[0]


BLOCKED = """
import runpy, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "notsodeep":
            raise ImportError("blocked")
sys.meta_path.insert(0, Block())
import torch
x = torch.load(sys.argv[2])
torch.save(runpy.run_path(sys.argv[1])["load"]()(x).detach(), sys.argv[3])
runpy.run_path(sys.argv[1], run_name="__main__")
assert "notsodeep" not in sys.modules
"""


def test_a_compiled_network_runs_without_this_package(tmp_path):
    x = torch.randn(40, P, generator=torch.Generator().manual_seed(0)) / P**0.5
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), P, 12, 2, generator=torch.Generator().manual_seed(0))
    compiled = nsd.compile_deq(deq, x)
    program, given, answer = (tmp_path / name for name in ("network.py", "x.pt", "out.pt"))
    program.write_text(compiled.to_source(), encoding="utf-8")
    torch.save(x, given)
    done = subprocess.run(
        [sys.executable, "-I", "-c", BLOCKED, program, given, answer], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert gap(torch.load(answer), compiled.network(x)) <= 1e-5
    (line,) = done.stdout.splitlines()
    assert line.startswith("(n, 6) -> (n, 2), ")
    now, then = (part.split(": ")[1] for part in line.split("; "))
    assert float(now) == pytest.approx(float(then), rel=1e-4)
    assert float(now) > 0


def test_the_printed_norms_differ_where_a_weight_was_changed(capsys):
    text = enn(out_features=3).to_source()
    begin = text.index('"readout.weight"')
    begin = text.index('"""\n', begin) + 4
    changed = text[:begin] + "AAAAAAAAAAAAAAAA" + text[begin + 16 :]
    exec(compile(changed, "network.py", "exec"), {"__name__": "__main__"})
    now, then = (part.split(": ")[1] for part in capsys.readouterr().out.split("; "))
    assert float(now) != pytest.approx(float(then), rel=1e-4)


def test_what_is_no_explicit_network():
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), P, 4, 2)
    with pytest.raises(nsd.BadInput, match="compile_deq gives the explicit network first"):
        to_source(deq)
    with pytest.raises(nsd.BadInput, match="to_explicit"):
        to_source(nsd.models.to_deq(enn(out_features=3)))
    with pytest.raises(nsd.BadInput, match=r"Linear cannot.*takes an ENN"):
        to_source(torch.nn.Linear(2, 2))


def test_the_module_is_left_as_it_is():
    module = enn(out_features=3)
    before = copy.deepcopy(module.state_dict())
    seed = torch.get_rng_state()
    run(module)["load"]()
    assert torch.equal(torch.get_rng_state(), seed)
    assert all(torch.equal(weight, before[name]) for name, weight in module.state_dict().items())
