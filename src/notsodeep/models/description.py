"""What a module is, apart from its weights, as one JSON record: enough to build it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep import activations
from notsodeep.activations import Activation, custom
from notsodeep.architecture import Explicit, Implicit, Stacked
from notsodeep.errors import BadInput
from notsodeep.models.deq import DEQ
from notsodeep.models.explicit import ENN
from notsodeep.numerics.adjoint import ImplicitAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.numerics.iteration import Plan
from notsodeep.numerics.precision import FullPrecision, MixedPrecision
from notsodeep.numerics.records import from_record, to_record
from notsodeep.numerics.solvers import Anderson, Broyden, Picard

Functions = Mapping[str, Callable[[Tensor], Tensor]]
Record = dict[str, Any]

_ACTIVATIONS = [
    kind
    for kind in vars(activations).values()
    if isinstance(kind, type) and issubclass(kind, Activation) and kind is not Activation
]
_CHOICES = (
    Plan,
    Picard,
    Anderson,
    Broyden,
    ImplicitAdjoint,
    PhantomAdjoint,
    UnrolledAdjoint,
    FullPrecision,
    MixedPrecision,
)
_KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (*_ACTIVATIONS, Implicit, Explicit, Stacked, *_CHOICES)
}
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
# What may differ between two modules whose weights are still each other's.
_FREE = ("plan", "adjoint", "frozen", "changed")


def describe(module: nn.Module) -> Record:
    """The record of a DEQ or an ENN; of any other module, its class only."""
    if isinstance(module, DEQ):
        weights = {"A": module.A, "B": module.B, "readout": module.readout.weight}
        return {
            "kind": "DEQ",
            "net": to_record(module.net, _KINDS),
            "in_features": module.in_features,
            "width": module.width,
            "out_features": module.out_features,
            "tau0": module.tau0,
            "bias": module.bias is not None,
            "readout_bias": module.readout.bias is not None,
            "learn_variances": module.log_variances is not None,
            "well_posed": module.well_posed,
            "dtype": _dtype_name(module.B),
            "plan": to_record(module.plan, _KINDS),
            "adjoint": to_record(module.adjoint, _KINDS),
            "frozen": [name for name, weight in weights.items() if weight is not None and not weight.requires_grad],
            "changed": sorted(module.changed()),
        }
    if isinstance(module, ENN):
        parts = {"hidden": module.weights[0], "readout": module.readout.weight}
        return {
            "kind": "ENN",
            "net": to_record(module.net, _KINDS),
            "in_features": module.in_features,
            "width": list(module.widths),
            "out_features": module.out_features,
            "bias": module.biases is not None,
            "readout_bias": module.readout.bias is not None,
            "dtype": _dtype_name(module.weights[0]),
            "frozen": [name for name, weight in parts.items() if weight is not None and not weight.requires_grad],
        }
    return {"kind": "module", "class": type(module).__qualname__}


def build(record: Record, functions: Functions | None = None) -> DEQ | ENN:
    """The module of a record, on the meta device: its shapes without its numbers, however large a file says that it is."""
    if not isinstance(record, dict) or record.get("kind") not in ("DEQ", "ENN"):
        raise BadInput(f"The record is of {_kind(record)}; only a DEQ or an ENN can be built from one.")
    parts = {key: from_record(part, _KINDS | {"Custom": _finder(functions or {})}) for key, part in record.items()}
    kind, plan, _ = parts.pop("kind"), parts.pop("plan", Plan()), parts.pop("changed", ())
    if parts.get("dtype") not in _DTYPES:
        raise BadInput(f"There is no dtype {parts.get('dtype')!r}; known are {', '.join(_DTYPES)}.")
    parts["dtype"] = _DTYPES[parts["dtype"]]
    try:
        if kind == "ENN":
            return ENN(**parts, device="meta")
        choices = {field.name: getattr(plan, field.name) for field in fields(Plan)}
        return DEQ(**parts, **choices, device="meta")
    except (TypeError, AttributeError, OverflowError, RuntimeError) as error:
        raise BadInput(f"No {kind} can be built from this record: {error}.") from error


def differences(theirs: Record, ours: Record) -> list[str]:
    """What of the architecture differs, each as "width: 512 in the file, 1024 here"; empty where the weights fit."""
    names = [name for name in {**ours, **theirs} if name not in _FREE]
    return [
        f"{name}: {_shown(theirs.get(name))} in the file, {_shown(ours.get(name))} here"
        for name in names
        if theirs.get(name) != ours.get(name)
    ]


def _shown(part: Any) -> str:
    """A record as a person writes it."""
    if isinstance(part, dict) and "Custom" not in str(part):
        return str(from_record(part, _KINDS))
    return str(part)


def _kind(record: Any) -> str:
    return f"{record.get('class') or record.get('kind')}" if isinstance(record, dict) else type(record).__name__


def _dtype_name(weight: Tensor) -> str:
    return str(weight.dtype).removeprefix("torch.")


def _finder(functions: Functions) -> Callable[..., Activation]:
    """A user's function is code, which no file holds: it is looked up by the name that it had."""

    def find(label: str, kinks_found: tuple[float, ...], **_: Any) -> Activation:
        if label not in functions:
            raise BadInput(
                f"This network has an activation of its own, {label!r}, and a file holds no code; pass the function: "
                f"load(path, functions={{{label!r}: f}})."
            )
        return custom(functions[label], kinks=kinks_found, name=label)

    return find
