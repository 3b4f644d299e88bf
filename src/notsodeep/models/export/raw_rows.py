"""Networks between raw rows and answers, as exports write them."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.data.preprocessing import Preprocessing

PROPERTY = "notsodeep.preprocessing"
"""The property of an ONNX file that holds the preprocessing."""
_LARGEST_MEAN = 1000.0
"""In units of the scale: float32 then holds a raw column to 1e-4 of it; beyond, the file takes float64."""


class RawRows(nn.Module):
    """x ↦ network((x − mean)/scale), or that·s + m where the outputs are numbers with a mean m and a scale s of their own.

    The mean is subtracted by an operation of its own: folded into the weights of the first layer, it would cost as many digits
    as raw columns are far from 0.
    """

    def __init__(self, network: nn.Module, known: Preprocessing, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.known, self.dtype = network, known, dtype
        self.net, self.plan = getattr(network, "net", None), getattr(network, "plan", None)  # named in messages
        self.outer = torch.float32 if dtype == torch.float16 else dtype
        given = known.standardiser
        far = given is not None and float((given.mean / given.scale).abs().max()) > _LARGEST_MEAN
        self.raw = torch.float64 if far else self.outer

    def raw_rows(self, x: Tensor) -> Tensor:
        """Raw rows of which the network gets x."""
        given = self.known.standardiser
        return x if given is None else given.inverse(x.double()).to(self.raw)

    def forward(self, x: Tensor) -> Tensor:
        given, targets = self.known.standardiser, self.known.targets
        if given is not None:
            x = ((x - given.mean.to(x)) / torch.as_tensor(given.scale, dtype=torch.float64).to(x)).to(self.dtype)
        out: Tensor = self.network(x)
        if targets is None:
            return out
        out = out.to(self.outer)
        return out * torch.as_tensor(targets.scale, dtype=torch.float64).to(out) + targets.mean.to(out)


def add_answers(proto: Any, known: Preprocessing) -> None:
    """Write the preprocessing into an ONNX model: a property and, for classes, the output "label", their names."""
    from onnx import TensorProto, helper

    note = proto.metadata_props.add()
    note.key, note.value = PROPERTY, json.dumps(known.to_record())
    if known.classes is None:
        return
    words = isinstance(known.classes[0], str)
    kind = TensorProto.STRING if words else TensorProto.INT64
    graph = proto.graph
    graph.initializer.append(helper.make_tensor("classes", kind, [len(known.classes)], list(map(_stored, known.classes))))
    graph.node.append(helper.make_node("ArgMax", ["out"], ["place"], axis=-1, keepdims=0))
    graph.node.append(helper.make_node("Gather", ["classes", "place"], ["label"]))
    rows = graph.output[0].type.tensor_type.shape.dim[0].dim_param
    graph.output.append(helper.make_tensor_value_info("label", kind, [rows]))


def _stored(name: str | int) -> Any:
    return name.encode() if isinstance(name, str) else name
