"""A module without its weights as a JSON record, and the module built from one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep import activations
from notsodeep.activations import Activation, Custom, Mixed, custom
from notsodeep.arguments import count
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import ImplicitAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.fixed_points.plan import FullPrecision, MixedPrecision, Plan
from notsodeep.fixed_points.solvers import Anderson, Broyden, Picard
from notsodeep.fixed_points.splitting import ForwardBackward, PeacemanRachford
from notsodeep.models.convolutional import ConvDEQ, ConvENN
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.unrolled import DenseResponse, Unrolled
from notsodeep.runtime.json_values import from_record, made, to_record
from notsodeep.theory.architecture import Explicit, Implicit, Stacked
from notsodeep.theory.convolution import Convolutional

Written = DEQ | ENN | ConvDEQ | ConvENN | Unrolled
"""The networks that files hold; of an unrolled network, that of a DEQ."""
Functions = Mapping[str, Callable[[Tensor], Tensor]]
Record = dict[str, Any]

_ACTIVATIONS = [
    kind
    for kind in vars(activations).values()
    if isinstance(kind, type) and issubclass(kind, Activation) and kind is not Activation
]
_CHOICES = (
    Plan, Picard, Anderson, Broyden, PeacemanRachford, ForwardBackward, ImplicitAdjoint, PhantomAdjoint, UnrolledAdjoint,
    FullPrecision, MixedPrecision,
)  # fmt: skip
_KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (*_ACTIVATIONS, Mixed, Implicit, Explicit, Stacked, Convolutional, *_CHOICES)
}
_MODULES: dict[str, type[Any]] = {kind.__name__: kind for kind in (DEQ, ENN, ConvDEQ, ConvENN)}
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
# May differ between modules whose weights fit each other.
_MOST_STEPS = 10_000  # of an unrolled DEQ
_FREE = ("plan", "adjoint", "frozen", "changed")


def describe(module: nn.Module) -> Record:
    """The record of a DEQ, an ENN, either of images, or an unrolled DEQ; for any other module, the classes of its parts."""
    bias: object
    if isinstance(module, Unrolled) and isinstance(module.model, DEQ):
        return {
            "kind": "Unrolled",
            "model": describe(module.model),
            "steps": module.steps,
            "damping": module.damping,
            "learnt": module.shifts is not None,
            "response": module.response is not None,
            "resolvent": module.resolvent is not None,
            "frozen": _frozen(module),
        }
    if isinstance(module, DEQ):
        weight, bias = module.B, module.bias
        own = {
            "net": _net_record(module.net),
            "in_features": module.in_features,
            "width": module.width,
            "tau0": module.tau0,
            "learn_variances": module.log_variances is not None,
            "well_posed": module.well_posed,
            "plan": to_record(module.plan, _KINDS),
            "adjoint": to_record(module.adjoint, _KINDS),
            "changed": sorted(module.changed()),
        }
    elif isinstance(module, ConvDEQ):
        weight, bias = module.B, module.bias
        own = _of_images(module, module.width) | {
            "tau0": module.tau0,
            "plan": to_record(module.plan, _KINDS),
            "adjoint": to_record(module.adjoint, _KINDS),
        }
    elif isinstance(module, ConvENN):
        weight, bias, own = module.weights[0], module.biases, _of_images(module, list(module.widths))
    elif isinstance(module, ENN):
        own = {"net": _net_record(module.net), "in_features": module.in_features, "width": list(module.widths)}
        weight, bias = module.weights[0], module.biases
    else:
        parts = (f"{name or 'module'}: {type(part).__qualname__}" for name, part in module.named_modules())
        return {"kind": "module", "class": type(module).__qualname__, "form": "\n".join(parts)}
    record = {
        "kind": next(
            name for name, kind in _MODULES.items() if isinstance(module, kind)
        ),  # a parametrization renames the class
        "out_features": module.out_features,
        "bias": bias is not None,
        "readout_bias": module.readout.bias is not None,
        "dtype": str(weight.dtype).removeprefix("torch."),
        **own,
    }
    return record | {"frozen": _frozen(module)}


def _of_images(module: ConvDEQ | ConvENN, width: Any) -> Record:
    grid = None if module.grid is None else list(module.grid)
    return {"images": _net_record(module.images), "channels": module.channels, "width": width, "grid": grid}


def _frozen(module: nn.Module) -> list[str]:
    return [name for name, weight in module.named_parameters() if not weight.requires_grad]


def preprocessing_of(module: nn.Module) -> Record:
    """The preprocessing of a network as a part of its file's record; empty where it is not known."""
    known = getattr(module, "preprocessing", None)
    return {"preprocessing": known.to_record()} if isinstance(known, Preprocessing) else {}


def build(record: Record, functions: Functions | None = None) -> Written:
    """The module of a record, on the meta device: a file's claim about its size costs no memory."""
    if not isinstance(record, dict) or record.get("kind") not in (*_MODULES, "Unrolled"):
        known = "a DEQ, an ENN, a ConvDEQ, a ConvENN or an unrolled DEQ"
        raise BadInput(f"The record is of {_kind(record)}; only {known} can be built from one.")
    if record["kind"] == "Unrolled":
        return _unrolled(record, build(record.get("model", {}), functions))
    kinds = _KINDS | {"Custom": _finder(functions or {})}
    names = {key: record.get(key, []) for key in ("changed", "frozen")}
    parts = {key: from_record(part, kinds) for key, part in record.items() if key not in names}
    kind = parts.pop("kind")
    if parts.get("dtype") not in _DTYPES:
        raise BadInput(f"There is no dtype {parts.get('dtype')!r}; known are {', '.join(_DTYPES)}.")
    parts |= {"dtype": _DTYPES[parts["dtype"]], "device": "meta"}
    if issubclass(_MODULES[kind], DEQ | ConvDEQ):
        plan = parts.pop("plan", None)
        if not isinstance(plan, Plan):
            raise BadInput(f"{kind} cannot be made with plan = {plan!r:.60}.")
        parts |= {field.name: getattr(plan, field.name) for field in fields(Plan)}
    module: DEQ | ENN | ConvDEQ | ConvENN = made(_MODULES[kind], kind, parts)
    if not isinstance(names["changed"], list) or not all(isinstance(name, str) for name in names["changed"]):
        raise BadInput(f"{kind} has no weights {names['changed']!r:.60}.")
    _freeze(module, names["frozen"])
    return module


def _unrolled(record: Record, model: nn.Module) -> Unrolled:
    damping = record.get("damping")
    flags = [record.get(name, False) for name in ("learnt", "response", "resolvent")]
    usual = isinstance(damping, float) and 0.0 < damping <= 1.0 and all(isinstance(flag, bool) for flag in flags)
    if not isinstance(model, DEQ) or not usual:
        raise BadInput(
            f"Unrolled cannot be made of a {type(model).__name__} with damping = {damping!r:.60} and learnt, response, "
            f"resolvent = {flags!r:.60}."
        )
    steps = count(record.get("steps"), "steps", least=0, most=_MOST_STEPS)
    unit = torch.empty(model.width, dtype=model.B.dtype, device="meta")
    dense = [DenseResponse(torch.empty_like(model.A), unit.clone()) if there else None for there in flags[1:]]
    made = Unrolled(model, steps, damping, [unit] if flags[0] else None, *dense)
    _freeze(made, record.get("frozen", []))
    return made


def _freeze(module: nn.Module, names: Any) -> None:
    weights = dict(module.named_parameters())
    if not isinstance(names, list):
        raise BadInput(f"{type(module).__name__} has no weights {names!r:.60}.")
    for name in names:
        if not isinstance(name, str) or name not in weights:
            raise BadInput(f"{type(module).__name__} has no weights {name!r:.60}.")
        weights[name].requires_grad_(False)


def differences(theirs: Record, ours: Record) -> list[str]:
    """Differences of two architectures, as "width: 512 in the file, 1024 here"; empty where the weights fit."""
    names = [name for name in {**ours, **theirs} if name not in _FREE]
    pairs = {name: (theirs.get(name), ours.get(name)) for name in names if theirs.get(name) != ours.get(name)}
    if "form" in pairs:
        lines = zip_longest(*(str(form).splitlines() for form in pairs["form"]), fillvalue="nothing")
        pairs["form"] = next((there.strip(), here.strip()) for there, here in lines if there != here)
    return [f"{name}: {_shown(there)} in the file, {_shown(here)} here" for name, (there, here) in pairs.items()]


def _shown(part: Any) -> str:
    """A part of a record in readable form."""
    if isinstance(part, dict) and "Custom" not in str(part):
        return str(from_record(part, _KINDS))
    return str(part)


def _net_record(net: Any) -> Any:
    record = to_record(net, _KINDS)
    seen: dict[str, Custom] = {}
    for phi in _customs(net):
        if seen.setdefault(phi.label, phi).function is not phi.function:
            raise BadInput(
                f"Two activations of this network are called {phi.label!r}: name them apart with nsd.custom(f, name=…)."
            )
    return record


def _customs(value: Any) -> Iterator[Custom]:
    """The user's own functions in a network."""
    if isinstance(value, Custom):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _customs(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _customs(item)


def _kind(record: Any) -> str:
    return f"{record.get('class') or record.get('kind')}" if isinstance(record, dict) else type(record).__name__


def _finder(functions: Functions) -> Callable[..., Activation]:
    """Looks up a user's function by its name: a file holds no code."""

    def find(label: str, kinks_found: tuple[float, ...], **_: Any) -> Activation:
        if label not in functions:
            raise BadInput(
                f"This network has an activation of its own, {label!r}, and a file holds no code; pass the function: "
                f"load(path, functions={{{label!r}: f}})."
            )
        return custom(functions[label], kinks=kinks_found, name=label)

    return find
