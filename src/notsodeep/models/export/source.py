"""Explicit networks as the text of a program that needs torch alone."""

from __future__ import annotations

import base64
import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from notsodeep.activations.base import Activation
from notsodeep.activations.mixed import Mixed, Units, kinds_of
from notsodeep.arguments import path as checked_path
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.errors import BadInput
from notsodeep.models.export.activation_source import source_expression
from notsodeep.runtime.files import write_whole
from notsodeep.theory.architecture import Explicit, Implicit, Stacked

if TYPE_CHECKING:
    from notsodeep.models.enn import ENN
    from notsodeep.models.predictor import Predictor

_COLUMNS = 116  # of a line of weights
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

_DECODE = f'''
def decode(shape, dtype, text):
    """The tensor whose little-endian bytes are `text` in base64: four characters of six bits are three bytes."""
    codes = torch.frombuffer(bytearray("".join(text.split()), "ascii"), dtype=torch.uint8).int()
    values = torch.zeros(128, dtype=torch.int32)
    values[list(b"{_ALPHABET}")] = torch.arange(64, dtype=torch.int32)
    six = values.index_select(0, codes).reshape(-1, 4)
    words = six[:, 0] << 18 | six[:, 1] << 12 | six[:, 2] << 6 | six[:, 3]
    octets = torch.stack([words >> 16, words >> 8 & 255, words & 255], dim=1).to(torch.uint8).flatten()
    size = torch.empty((), dtype=dtype).element_size() * torch.Size(shape).numel()
    return octets[:size].view(dtype).reshape(shape)


def load():
    """The network with its weights."""
    network = Network()
    network.load_state_dict({{name: decode(*stored) for name, stored in WEIGHTS.items()}})
    return network
'''


def to_source(module: ENN) -> str:
    """A program that holds the network: `import torch`, its activations, `class Network`, its weights, and `load()`.

        x^(l) = σ_l(W_l x^(l−1) (+ c_l))/√m_l, out = R x^(L) (+ c)

    The weights are inside, as base64 in their own dtype, under the names of `state_dict`, which both networks share. Run as a
    program, it prints its shapes and the norm of its output on a fixed input, with the norm found here.
    """
    _check_explicit(module)
    names = _names(module.net.layers)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    if module.net.has_gains:  # they matter to training alone: the text has them inside its weights
        state |= {f"weights.{k}": weight.detach().cpu().contiguous() for k, weight in enumerate(module.effective_weights())}
        readout = module.readout.effective_weight()
        state |= {} if readout is None else {"readout.weight": readout.detach().cpu().contiguous()}
    sizes = (module.in_features, *module.widths, *([] if module.out_features is None else [module.out_features]))
    return program(module, Text(sizes, _formula(module), names, *_network(module, names)), state)


@dataclass(frozen=True)
class Text:
    """The parts of a program that are of one kind of network."""

    sizes: tuple[int, ...]
    """features of a sample, units of each layer, outputs"""
    formula: str
    names: dict[Activation, str]
    """the activations and their names"""
    made: Sequence[str]
    """the lines that make the weights"""
    steps: Sequence[str]
    """the lines that lead from x to the outputs"""


def program(module: Predictor, text: Text, state: dict[str, Tensor]) -> str:
    """The program that holds a network with the weights `state`, by their names there."""
    known, dtype = module.preprocessing, next(iter(state.values())).dtype
    functions = [source_expression(phi).function(name, f"{phi}.") for phi, name in text.names.items()]
    parts = [
        _header(module, text),
        "import torch\n",
        *("\n" + function for function in functions),
        _class(text) + ("" if known is None else _predict(known, dtype)),
        _DECODE,
        _weights(state),
        *([] if known is None else [_preprocessing(known)]),
        _main(module, text, dtype),
    ]
    return "\n".join(parts)


def written(text: str, path: str | os.PathLike[str] | None) -> str:
    """The text, which is also written to a file where one is named."""
    if path is not None:
        write_whole(checked_path(path), lambda to: to.write_text(text, encoding="utf-8"))
    return text


def _check_explicit(module: object) -> None:
    net = getattr(module, "net", None)
    if isinstance(module, nn.Module) and isinstance(net, Explicit):
        return
    hint = "to_source takes an ENN."
    if isinstance(net, Implicit):
        hint = "A DEQ solves for its state with notsodeep's solvers; compile_deq gives the explicit network first."
    elif isinstance(net, Stacked):
        hint = "to_explicit turns a DEQ of stacked layers into an ENN."
    raise BadInput(f"{type(module).__name__} cannot be written as a program of its own. {hint}")


def _names(layers: tuple[Units, ...]) -> dict[Activation, str]:
    """A name for each distinct activation, in the order of the layers."""
    distinct = list(dict.fromkeys(kind for layer in layers for kind in kinds_of(layer)))
    return {phi: "sigma" if len(distinct) == 1 else f"sigma_{k}" for k, phi in enumerate(distinct, 1)}


def _formula(module: ENN) -> str:
    bias = "" if module.biases is None else " + c_l"
    out = "x^(L)"
    if module.readout.weight is not None:
        out = "R x^(L)" + ("" if module.readout.bias is None else " + c")
    return f"x^(l) = σ_l(W_l x^(l−1){bias})/√m_l for l = 1 … L,   out = {out};   m_l is the width of layer l."


def _header(module: Predictor, program: Text) -> str:
    try:
        by = f"notsodeep {version('notsodeep')}"
    except PackageNotFoundError:
        by = "notsodeep"
    rows = f"x of shape (n, {module.in_features})"
    if module.preprocessing is not None:
        rows += ", centred and scaled;\n# its method `predict` takes raw rows, (n, p), a tensor or lists of numbers"
    text = textwrap.dedent(f"""\
        # A feed-forward network ({" → ".join(map(str, program.sizes))}), written by {by}. It needs torch and nothing else.
        #
        #     {program.formula}
        #
        # `load()` gives the network with its weights, a torch.nn.Module that takes <rows>.
        """)
    return text.replace("<rows>", rows)


def _predict(known: Preprocessing, dtype: torch.dtype) -> str:
    """The method of `Network` that answers for raw rows."""
    lines = ["x = torch.as_tensor(rows, dtype=torch.float64)"]
    lines += [] if known.standardiser is None else ["x = (x - MEAN) / SCALE"]
    lines += ["with torch.no_grad():", f"    out = self(x.to({dtype}))"]
    what = "The outputs"
    if known.classes is not None:
        what = "The classes"
        lines.append("return [CLASSES[k] for k in out.argmax(1).tolist()]")
    elif known.targets is not None:
        what = "The numbers, in their own units,"
        lines.append("out = out.double() * TARGET_SCALE + TARGET_MEAN")
        lines.append("return out[:, 0] if out.shape[1] == 1 else out")
    else:
        lines.append("return out")
    body = "".join(f"        {line}\n" for line in lines)
    return f'\n    def predict(self, rows):\n        """{what} of raw rows, (n, p)."""\n{body}'


def _preprocessing(known: Preprocessing) -> str:
    """The constants that `Network.predict` uses."""
    lines = [] if known.classes is None else [f"CLASSES = {list(known.classes)!r}"]
    for prefix, given in (("", known.standardiser), ("TARGET_", known.targets)):
        for name, value in () if given is None else (("MEAN", given.mean), ("SCALE", given.scale)):
            stored = _stored(value.cpu().contiguous()) if isinstance(value, Tensor) else repr(value)
            lines.append(f"{prefix}{name} = {f'decode(*{stored})' if isinstance(value, Tensor) else stored}")
    return "".join(f"\n{line}\n" for line in lines)


def _network(module: ENN, names: dict[Activation, str]) -> tuple[list[str], list[str]]:
    """The lines that make the weights, and those of `forward`."""
    made = ["self.weights = torch.nn.ParameterList(", *_listed(module.weights), ")"]
    if module.biases is not None:
        made += ["self.biases = torch.nn.ParameterList(", *_listed(module.biases), ")"]
    readout, weight, bias = module.readout, "", ""
    if readout.weight is not None:
        entries = [("weight", readout.weight), ("bias", readout.bias)]
        made += ["self.readout = torch.nn.ParameterDict(", "    {"]
        made += [f'        "{name}": {zeros(p)},' for name, p in entries if p is not None]
        made += ["    }", ")"]
        weight, bias = ', self.readout["weight"]', "" if readout.bias is None else ', self.readout["bias"]'
    steps = []
    for layer, (sigma, width) in enumerate(zip(module.net.layers, module.widths, strict=True)):
        shift = "" if module.biases is None else f", self.biases[{layer}]"
        steps.append(f"h = torch.nn.functional.linear(x, self.weights[{layer}]{shift})")
        steps += _activated(sigma, width, names)
    steps.append(f"return torch.nn.functional.linear(x{weight}{bias})" if weight else "return x")
    return made, steps


def _class(text: Text) -> str:
    init, forward = ("\n".join(f"        {line}" for line in lines) for lines in (text.made, text.steps))
    shapes = f"(n, {text.sizes[0]}) to (n, {text.sizes[-1]})"
    return "\n".join(
        [
            "\nclass Network(torch.nn.Module):",
            f'    """{shapes}; all weights 0 until they are loaded."""',
            "\n    def __init__(self):\n        super().__init__()",
            init,
            "\n    def forward(self, x):",
            forward,
            "",
        ]
    )


def _activated(layer: Units, width: int, names: dict[Activation, str]) -> list[str]:
    """The lines from pre-activations h to the features x of a layer."""
    if not isinstance(layer, Mixed):
        return [f"x = {names[layer]}(h) * {1.0 / math.sqrt(width)!r}  # 1/√{width}"]
    shares = layer.shares(width)
    parts = zip(layer.kinds, shares, layer.scales(width), strict=True)
    blocks = [
        f"{names[kind]}(h[{k}]) * {scale / math.sqrt(width)!r},  # 1/√({len(shares)} · {units})"
        for k, (kind, units, scale) in enumerate(parts)
    ]
    return [
        f"h = h.split({shares}, dim=-1)",
        "x = torch.cat(",
        "    [",
        *(f"        {block}" for block in blocks),
        "    ],",
        "    dim=-1,",
        ")",
    ]


def zeros(parameter: Tensor) -> str:
    """The text of a parameter of this shape and dtype."""
    shape = ", ".join(map(str, parameter.shape))
    return f"torch.nn.Parameter(torch.zeros({shape}, dtype={parameter.dtype}))"


def _listed(parameters: nn.ParameterList) -> list[str]:
    return ["    [", *(f"        {zeros(p)}," for p in parameters), "    ]"]


def _weights(state: dict[str, Tensor]) -> str:
    entries = [f'    "{name}": {_stored(tensor)},\n' for name, tensor in state.items()]
    return "\nWEIGHTS = {\n" + "".join(entries) + "}\n"


def _stored(tensor: Tensor) -> str:
    """The arguments of `decode` for a tensor."""
    octets = tensor.flatten().view(torch.uint8).numpy().tobytes()
    # Filled up to groups of three bytes: base64 then needs no padding.
    text = base64.b64encode(octets + bytes(-len(octets) % 3)).decode("ascii")
    rows = "\n".join(text[k : k + _COLUMNS] for k in range(0, len(text), _COLUMNS))
    return f'({tuple(tensor.shape)}, {tensor.dtype}, """\n{rows}\n""")'


@torch.no_grad()
def _main(module: Predictor, text: Text, dtype: torch.dtype) -> str:
    x = torch.linspace(-1.0, 1.0, module.in_features, dtype=torch.float64).to(next(module.parameters()))[None]
    norm = float(module(x).double().norm())
    return textwrap.dedent(f"""\

        if __name__ == "__main__":
            with torch.no_grad():
                x = torch.linspace(-1.0, 1.0, {module.in_features}, dtype=torch.float64).to({dtype})
                norm = float(load()(x[None]).double().norm())
            print(f"(n, {module.in_features}) -> (n, {text.sizes[-1]}), norm of the output at linspace(-1, 1): {{norm:.6g}}; "
                  "when it was written: {norm:.6g}")
        """)
