"""Activations typed as text: what they compute, and what is refused."""

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch.nn import functional

import notsodeep as nsd
from notsodeep.activations import Centred, Formula, activation, custom, expression
from notsodeep.errors import BadInput, NumericsWarning
from notsodeep.models.export.activation_source import source_expression as written

TWINS = {
    "x": lambda x: x,
    "-x": lambda x: -x,
    "+x + 1": lambda x: x + 1.0,
    "x*tanh(x)": lambda x: x * torch.tanh(x),
    "max(x, 0) - 0.1*x": lambda x: torch.relu(x) - 0.1 * x,
    "max(0, x)": torch.relu,
    "min(x, 1)": lambda x: x.clamp(max=1.0),
    "min(2, x)": lambda x: x.clamp(max=2.0),
    "max(x, 0.5*x**2 - 3)": lambda x: torch.maximum(x, 0.5 * x.square() - 3.0),
    "min(x, 1 - x)": lambda x: torch.minimum(x, 1.0 - x),
    "clip(x, -1, 2)": lambda x: x.clamp(-1.0, 2.0),
    "clamp(2*x, -sqrt(2), pi/2)": lambda x: (2.0 * x).clamp(-math.sqrt(2.0), math.pi / 2.0),
    "log(1 + exp(x))": functional.softplus,
    "log(exp(2*x) + 1)": lambda x: functional.softplus(2.0 * x),
    "1/(1 + exp(-x))": torch.sigmoid,
    "x/(exp(-x) + 1.0)": functional.silu,
    "sin(3*x)/3 + cos(x)": lambda x: torch.sin(3.0 * x) / 3.0 + torch.cos(x),
    "x*exp(-x**2/2)": lambda x: x * torch.exp(-0.5 * x.square()),
    "-x**2": lambda x: -x.square(),
    "x**3 - 2**3**0.5*x": lambda x: x.pow(3) - 2.0 ** math.sqrt(3.0) * x,
    "1/cosh(x) - sinh(x/4)": lambda x: 1.0 / torch.cosh(x) - torch.sinh(x / 4.0),
    "log(2 + abs(x))**2": lambda x: torch.log(2.0 + x.abs()).square(),
    "(1 + x**2)**-0.5": lambda x: torch.rsqrt(1.0 + x.square()),
    "sqrt(1 + x*x) + e": lambda x: torch.hypot(x, torch.ones_like(x)) + math.e,
    "erf(x) + atan(x) + arctan(x/2)": lambda x: torch.erf(x) + torch.atan(x) + torch.atan(x / 2.0),
    "sign(x) + x": lambda x: torch.sign(x) + x,
    "relu(x - 1) + sigmoid(x)": lambda x: torch.relu(x - 1.0) + torch.sigmoid(x),
    "softplus(x) - gelu(x)": lambda x: functional.softplus(x, threshold=60.0) - functional.gelu(x),
    "silu(x) + swish(-x) + elu(x)": lambda x: functional.silu(x) + functional.silu(-x) + functional.elu(x),
    "1e-1*x + .5*abs(x) + 1_0.": lambda x: 0.1 * x + 0.5 * x.abs() + 10.0,
}
HOSTILE = {
    "import": "__import__('os')",
    "import, no quotes": "__import__(x)",
    "attribute": "x.__class__",
    "method": "x.numpy()",
    "spaced attribute": "x . real",
    "lambda": "(lambda: 0)()",
    "lambda of x": "(lambda x: x)(x)",
    "conditional": "x if x else x",
    "f-string": "f'{x}'",
    "walrus": "(x := 1)",
    "list": "[x for x in x]",
    "generator": "max(x for x in x)",
    "generator for two": "max((x for x in x), 0)",
    "dictionary": "{x: x}",
    "tuple": "x, x",
    "index": "x[0]",
    "string": "'x'",
    "bytes": "b'x'",
    "complex": "1j*x",
    "true": "True*x",
    "none": "None",
    "ellipsis": "...",
    "keyword": "clip(x, min=0, max=1)",
    "starred": "max(*x)",
    "starred beside": "max(x, *x)",
    "mapping": "max(**x)",
    "comparison": "x < 1",
    "membership": "s in (x)",
    "identity": "x is x",
    "and": "x and x",
    "not": "not x",
    "invert": "~x",
    "matrix product": "x @ x",
    "remainder": "x % 2",
    "floor": "x // 2",
    "shift": "x << 1",
    "await": "await x",
    "yield": "(yield x)",
    "assignment": "x = 1",
    "statements": "x; x",
    "comment": "x # x",
    "continued": "x + \\\nx",
    "newline": "x +\nx",
    "newline inside": "(x\n+ x)",
    "tab": "x\t* 2",
    "null": "x\x00*2",
    "surrogate": "\ud800*x",
    "zero width": "x\u200b*2",
    "right to left": "\u202ex*2",
    "Cyrillic": "\u0445*2",
    "full width": "\uff58*2",
    "empty": "",
    "blank": "   ",
    "breaks off": "x +",
    "open": "(x",
    "closed": "x)",
    "spaced power": "x * * 2",
    "huge": "1e999*x",
    "over float32": "1e39*x",
    "many digits": "9" * 150 + "*x",
    "tower": "9**9**9",
    "high tower": "9**9**9**9*x",
    "overflow": "1e30*1e30*x",
    "by zero": "x*(1/0)",
    "not real": "x*(-8)**(1/3)",
    "root": "x*sqrt(-1)",
    "hexadecimal": "0x10*x",
    "long": "x+" * 200 + "x",
    "parentheses": "(" * 10**5 + "x" + ")" * 10**5,
    "a hundred parentheses": "(" * 99 + "x" + ")" * 99,
    "parentheses of nothing": "(" * 200,
    "minuses": "-" * 199 + "x",
    "deep minuses": "-" * 60 + "x",
    "nodes": "x+" * 99 + "x",
    "deep": "abs(" * 29 + "-x" + ")" * 29,
    "exponent": "x**17",
    "small exponent": "x**-17",
    "exponent of x": "2**x",
    "no function": "tan(x)",
    "builtin": "eval(x)",
    "dunder": "__builtins__*x",
    "no variable": "tanh(2)",
    "number": "3",
    "same everywhere": "x - x",
    "same on the grid": "max(x, 100)",
    "zeroth power": "x**0",
    "pole": "1/x",
    "logarithm": "log(x)",
    "hole": "sin(x)/x",
    "pole off the grid": "1/(x - pi/3)",
    "touching pole": "x + 1/(3*x - 1)**2",
    "poles": "sin(x)/cos(x)",
    "negative power": "(x - 0.3)**-2",
    "hidden pole": "tanh(1/(x - 0.1))",
    "too steep": "exp(x**2)",
    "half power": "x**0.5",
    "slope": "1/(2 + exp(20*x))",
}
REMEDIES = {
    "x^2": "write \\*\\* for \\^",
    "3x": "'3x' lacks an operator: write 3\\*x",
    "2exp(x)": "'2exp'.* write 2\\*exp",
    "2(x + 1)": "write 2\\*\\(",
    "(x + 1)(x - 1)": "write \\)\\*\\(",
    "x(x + 1)": "write x\\*",
    "sin x": "'sin x'.* write sin\\(x\\)",
    "x*2×3": "write \\* for ×",
    "x²": "'²'.* write \\*\\*2",
    "|x|": "abs",
    "\u0445*2": "CYRILLIC",
    "tan(x)": "'tan\\(x\\)'.* write tanh",
    "X*2": "'X' is unknown: write x\\.",
    "tanh*x": "write tanh\\(x\\)",
    "foo(x)": "softplus",
    "max(x)": "has 1 arguments and takes 2: write max\\(x, 0\\)",
    "clip(x, 2, 1)": "the lower first: write clip\\(x, -1, 1\\)",
    "clip(x, -x, 1)": "two numbers",
    "0,5*x": "write \\. in a number",
    "log(x)": "'log\\(x\\)' is not finite at x = -64",
    "1/x": "not finite at x = 0",
    "1/(x - 0.3)": "divides by 0 at x = 0.3: ",
    "tanh((3*x - 1)**-2)": "'\\(3\\*x-1\\)\\*\\*-2' divides by 0 at x = 0.3333",
    "9**9**9*x": "'9\\*\\*9\\*\\*9' has the exponent 3.8.*e\\+08",
    "sign(gelu(x))": "jumps at x = -38.* underflows to 0 there",
    "x + sign(exp(-x**2))": "'sign\\(exp\\(-x\\*\\*2\\)\\)' jumps at x = -?27.* underflows to 0 there",
    "2**x": "exp\\(log\\(2\\)\\*x\\)",
    "x +": "cannot be read",
}


@pytest.fixture(autouse=True)
def quiet():
    """Whether an oscillating expression is warned about is not what these tests ask."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)
        yield


@pytest.mark.parametrize("text", TWINS)
def test_it_computes_what_it_says(text):
    phi, twin = expression(text), TWINS[text]
    for dtype in (torch.float32, torch.float64):
        x = torch.linspace(-6.0, 6.0, 997, dtype=dtype).reshape(-1, 1)
        assert phi(x).dtype == dtype
        # A few roundings at the scale of the terms, which may cancel.
        torch.testing.assert_close(phi(x), twin(x), rtol=1e2 * torch.finfo(dtype).eps, atol=1e2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("text", TWINS)
def test_its_text_needs_torch_alone(text):
    phi = Centred(expression(text), 0.25)
    space = {"torch": torch, "__builtins__": {}}
    exec(written(phi).function("phi", str(phi)), space)
    x = torch.linspace(-6.0, 6.0, 997, dtype=torch.float64)
    torch.testing.assert_close(space["phi"](x), phi(x), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("text", TWINS)
def test_two_derivatives(text):
    """By torch, beside those of the hand-written twin; none is NaN, at the kinks neither."""
    phi, twin = expression(text), TWINS[text]
    x = torch.linspace(-5.9, 6.1, 41, dtype=torch.float64)
    both = []
    for function in (phi, twin):
        at = x.clone().requires_grad_()
        (first,) = torch.autograd.grad((function(at) + 0.0 * at.square()).sum(), at, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), at)
        both.append(torch.stack([first.detach(), second]))
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(phi.derivative(x), both[1][0], rtol=1e-10, atol=1e-10)
    assert torch.isfinite(phi.derivative(torch.tensor([0.0, *phi.kinks], dtype=torch.float64))).all()


@pytest.mark.parametrize("text", ["log(1 + exp(x))", "1/(1 + exp(-x))", "x*tanh(log(1 + exp(x)))", "x/(1 + exp(-3*x))"])
def test_nothing_overflows_that_need_not(text):
    x = torch.tensor([-1e4, -200.0, 200.0, 1e4], requires_grad=True)
    value = expression(text)(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert torch.isfinite(value).all()
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_refused_in_one_sentence(text):
    with pytest.raises(BadInput) as raised:
        expression(text)
    said = str(raised.value)
    assert ": write " in said or "nsd.custom" in said
    assert said.isprintable()
    assert len(said) <= 400
    assert raised.value.__cause__ is None
    with pytest.raises(BadInput):
        activation(text)


@pytest.mark.parametrize(("text", "words"), REMEDIES.items())
def test_a_refusal_quotes_and_helps(text, words):
    with pytest.raises(BadInput, match=words):
        expression(text)


@pytest.mark.parametrize("spec", [None, 3, b"x*2", ["x*2"]])
def test_only_text_is_read(spec):
    with pytest.raises(BadInput, match="must be text"):
        expression(spec)


def test_the_limits_themselves_are_within():
    assert expression("-" * 29 + "x")(torch.tensor(2.0)) == -2.0
    assert expression("x*1." + "0" * 196)(torch.tensor(2.0)) == 2.0
    assert expression("x**16/1e20 + x")(torch.tensor(1.0)) == 1.0


def test_the_same_text_is_the_same_activation():
    ours, again, other = expression("x*tanh(x)"), expression("  x * tanh( x ) "), expression("x*tanh(2*x)")
    assert ours == again
    assert hash(ours) == hash(again)
    assert ours != other
    assert str(again) == "x*tanh(x)"
    assert not ours.may_change
    assert nsd.Implicit("x*tanh(x)", 0.2) == nsd.Implicit("x * tanh(x)", 0.2)


@pytest.mark.parametrize("send", [lambda phi: pickle.loads(pickle.dumps(phi)), copy.deepcopy, copy.copy])
def test_it_can_be_sent(send):
    phi = expression("max(x, 0) - 0.1*x")
    sent, x = send(phi), torch.linspace(-3.0, 3.0, 11)
    assert sent == phi
    assert sent.kinks == (0.0,)
    assert torch.equal(sent(x), phi(x))
    assert len(pickle.dumps(phi)) < 200


def test_what_is_found_of_it():
    assert expression("max(x, 0) - 0.1*x").lipschitz == pytest.approx(0.9)
    assert expression("clip(x, -1, 1)").kinks == (-1.0, 1.0)
    jumping = expression("sign(x) + x")
    assert jumping.jumps == ((0.0, pytest.approx(2.0)),)
    assert jumping.lipschitz == math.inf
    assert expression("x*tanh(x)").lipschitz_is_estimate


@pytest.mark.parametrize(
    ("text", "kinks"),
    [
        ("x**4 + 1e-3*abs(x - 1)", [1.0]),
        ("max(x, exp(-x))", [0.5671432904097838]),
        ("exp(x) + clip(x, -1/3, 0.5)", [-1.0 / 3.0, 0.5]),
        ("x**3 + relu(x - 0.1) + min(0.2, x)", [0.1, 0.2]),
        ("abs(x - 3)**1.5 + sqrt(abs(x + 3))", [-3.0, 3.0]),
        ("sqrt(x**2)", [0.0]),
        ("1/(1 + x**2) + x/(2 + cos(x))", []),
    ],
)
def test_kinks_too_slight_to_be_seen_are_known(text, kinks):
    assert expression(text).kinks == pytest.approx(kinks, abs=1e-12)


def test_doubts_are_said_each_time():
    for _ in range(2):
        with pytest.warns(NumericsWarning, match="varies too fast"):
            expression("sin(30000*x)")


@pytest.mark.parametrize("spec", ["x", "x*tanh(x)", "tanh(x)", "1 - x", "x-1", " max( x , 0 ) ", "x**2", "-x", "x/2"])
def test_the_registry_knows_an_expression(spec):
    assert activation(spec) == expression(spec)


@pytest.mark.parametrize("spec", ["xx", "maxx", "foo", "x:2", "foo:0.1"])
def test_a_bare_word_is_a_name(spec):
    with pytest.raises(BadInput, match="There is no activation named"):
        activation(spec)


@pytest.mark.parametrize("spec", ["3x", "tanh(X)", "x²", "x^2", "tan(x)"])
def test_the_registry_hands_on_the_refusal(spec):
    with pytest.raises(BadInput, match="expression"):
        activation(spec)


@pytest.mark.parametrize(
    ("text", "name"), [("tanh(x)", "tanh"), ("max(x, 0.1*x)", "leaky_relu:0.1"), ("log(1 + exp(x))", "softplus")]
)
def test_kernels_are_those_of_the_named_twin(text, name):
    x = torch.randn(7, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / math.sqrt(20.0)
    for kernel in (nsd.conjugate_kernel, nsd.tangent_kernel):
        for net in (lambda phi: nsd.Implicit(phi, 0.2), lambda phi: nsd.Explicit([phi, phi])):
            torch.testing.assert_close(kernel(net(text), x), kernel(net(name), x), rtol=1e-10, atol=1e-10)


def test_a_file_holds_it(tmp_path):
    """As text: unlike a function of the user's own, it is read back with nothing beside the file."""
    layers = ["max(x, 0) - 0.1*x", Centred(expression("x*tanh(x)"), 0.3)]
    module = nsd.ENN(nsd.Explicit(layers), 5, 8, 2, generator=torch.Generator().manual_seed(0))
    nsd.save(module, tmp_path / "network.safetensors")
    loaded, x = nsd.load(tmp_path / "network.safetensors"), torch.linspace(-1.0, 1.0, 15).reshape(3, 5)
    assert loaded.net == module.net
    assert torch.equal(loaded(x), module(x))


def test_onnx(tmp_path):
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    layers = ["max(x*tanh(log(1 + exp(x))), -0.1*x) - clip(x**3, -2, 2)/(1 + abs(x))"]
    module = nsd.ENN(nsd.Explicit(layers), 5, 8, 2, generator=torch.Generator().manual_seed(0))
    path = module.to_onnx(tmp_path / "network.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = torch.linspace(-3.0, 3.0, 15).reshape(3, 5)
    torch.testing.assert_close(torch.from_numpy(session.run(["out"], {"x": x.numpy()})[0]), module(x).detach())


def test_custom_sees_the_same_function():
    ours, twin = expression("max(x, 0) - 0.1*x"), custom(TWINS["max(x, 0) - 0.1*x"])
    assert isinstance(ours, Formula)
    assert (ours.kinks, ours.jumps, ours.lipschitz) == (twin.kinks, twin.jumps, twin.lipschitz)
