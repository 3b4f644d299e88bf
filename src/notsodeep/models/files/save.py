"""Networks as files: `save` and `load`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from notsodeep.arguments import device as checked_device, instance
from notsodeep.errors import BadInput, NotSoDeepError
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.files.description import Functions, Record, build, describe, differences
from notsodeep.models.files.tensor_file import read_tensors, write_tensors

TRAINING = "training/"  # what a checkpoint holds beside the weights
_SHOWN = 3


def save(module: DEQ | ENN, path: str | Path) -> Path:
    """Write a DEQ or an ENN, weights and all that is needed to build it again, as one safetensors file.

    The weights go by the names of `state_dict`, so other programs can open them; the rest is JSON in the file's metadata. There
    is no code in it: an activation that is your own function is stored by its name, and `load` asks you for it.
    """
    if not isinstance(module, DEQ | ENN):
        raise BadInput(
            f"save writes a DEQ or an ENN, got {type(module).__name__}; of a larger model, save its parts, or its state_dict."
        )
    return write_tensors(path, module.state_dict(), {"module": describe(module)})


def load(path: str | Path, functions: Functions | None = None, device: torch.device | str | None = None) -> DEQ | ENN:
    """The network that `save` wrote, or that a checkpoint of `fit` holds; on the CPU unless `device` says where.

    `functions` gives the activations that are not the package's own, by name. A file that was changed, cut short, or whose
    weights do not fit what it says of them raises `BadInput`, and nothing of it is loaded.
    """
    where = checked_device(device)
    if functions is not None:
        instance(functions, Mapping, "functions", "the activations by name, {'mine': function}")
    stored = read_tensors(path)
    try:
        record = module_record(stored.record)
        module = build(record, functions)
    except NotSoDeepError as error:
        raise BadInput(f"{str(path)!r}: {error}") from error
    weights = {name: tensor for name, tensor in stored.tensors.items() if not name.startswith(TRAINING)}
    refuse_other_weights(weights, module, path)
    module.load_state_dict(weights, assign=True)
    if isinstance(module, DEQ):
        module.mark_changed(record.get("changed", ()))
    return module if where is None else module.to(where)


def refuse_other_architecture(record: Record, module: nn.Module, path: str | Path) -> None:
    """`BadInput` that names what differs, unless the record is of a network like `module`."""
    found = differences(module_record(record), describe(module))
    if found:
        raise BadInput(
            f"{str(path)!r} holds another network: {'; '.join(found)}. Nothing was loaded.", differences=found
        )


def refuse_other_weights(weights: dict[str, Tensor], module: nn.Module, path: str | Path) -> None:
    """`BadInput` that names tensors which are missing, too many, or of another shape or dtype than the module's."""
    theirs, ours = ({name: _form(w) for name, w in state.items()} for state in (weights, module.state_dict()))
    wrong = [
        f"{name} is {theirs.get(name, 'missing')}, not {form}"
        for name, form in ours.items()
        if theirs.get(name) != form
    ]
    wrong += [f"{name} is not expected" for name in theirs if name not in ours]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise BadInput(
            f"The weights in {str(path)!r} do not fit: {', '.join(wrong[:_SHOWN])}{more}. Nothing was loaded."
        )


def module_record(record: Record) -> Record:
    """The part of a file's record that describes its network."""
    module = record.get("module")
    if not isinstance(module, dict):
        raise BadInput("the file's record describes no network.")
    return module


def _form(weight: Tensor) -> str:
    return f"{tuple(weight.shape)} {str(weight.dtype).removeprefix('torch.')}"
