"""Networks as safetensors files, without code: `save`, `load`, and the tensors and JSON record below them.

The record and a sum over everything are in the file's metadata: any reader opens it, and `read_tensors` finds a changed byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn

from notsodeep.arguments import device as checked_device, instance, path as checked_path
from notsodeep.arrays import available_bytes
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.errors import BadInput, NotSoDeepError
from notsodeep.models.deq import DEQ
from notsodeep.models.files.description import Functions, Record, Written, build, describe, differences, preprocessing_of
from notsodeep.models.unrolled import Unrolled
from notsodeep.runtime.files import write_whole

TRAINING = "training/"  # prefix of the tensors that a checkpoint holds besides the weights
_SHOWN = 3
_FORMAT = 1
_RECORD, _SUM = "notsodeep", "sha256"


def save(module: Written, path: str | Path) -> Path:
    """Write a network as one safetensors file: its weights, its preprocessing, all that builds it again.

    The weights have the names of `state_dict`, so other programs can read them; the rest is JSON in the file's metadata. A file
    holds no code: an activation that is your own function is stored by its name, and `load` asks for the function.

    Args:
        module: A DEQ or an ENN, a ConvDEQ or a ConvENN, or an unrolled DEQ.
        path: The file; an existing one is replaced once the new one is complete.

    Returns:
        The path.

    Raises:
        BadInput: `module` is none of these, or two of its own activations have the same name.
    """
    if not isinstance(module, Written) or (isinstance(module, Unrolled) and not isinstance(module.model, DEQ)):
        inside = f" of a {type(module.model).__name__}" if isinstance(module, Unrolled) else ""
        raise BadInput(
            f"save writes a DEQ, an ENN, a ConvDEQ, a ConvENN or an unrolled DEQ, got {type(module).__name__}{inside}; of a "
            "larger model, save its parts, or its state_dict."
        )
    return write_tensors(path, module.state_dict(), {"module": describe(module), **preprocessing_of(module)})


def load(path: str | Path, functions: Functions | None = None, device: torch.device | str | None = None) -> Written:
    """The network that `save` wrote, or that a checkpoint of `fit` holds.

    Args:
        path: The file.
        functions: The activations that are not the package's own, by name.
        device: Where the network is put; None is the CPU.

    Returns:
        The network, with its weights and, unless the file is older than preprocessing, that.

    Raises:
        BadInput: The file was changed or cut short, its weights or its preprocessing do not fit its network, or a function is
            missing.
    """
    where = checked_device(device)
    if functions is not None:
        instance(functions, Mapping, "functions", "the activations by name, {'mine': function}")
    stored = read_tensors(path)
    try:
        record = _module_record(stored.record)
        module = build(record, functions)
        if "preprocessing" in stored.record:
            module.preprocessing = Preprocessing.from_record(stored.record["preprocessing"])
    except NotSoDeepError as error:
        raise BadInput(f"{str(path)!r}: {error}") from error
    weights = network_weights(stored)
    check_same_weights(weights, module, path)
    module.load_state_dict(weights, assign=True)
    deq, its = (module.model, record["model"]) if isinstance(module, Unrolled) else (module, record)
    if isinstance(deq, DEQ):
        try:
            deq.mark_changed(its.get("changed", ()))
        except BadInput as error:
            raise BadInput(f"{str(path)!r}: {error}") from error
    return module if where is None else module.to(where)


@dataclass(frozen=True, eq=False)
class Stored:
    """The content of a file whose sum was right."""

    record: dict[str, Any]
    tensors: dict[str, Tensor]


def write_tensors(path: str | Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> Path:
    """Write tensors and a record as one file, complete or not at all."""
    target = checked_path(path)
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format": _FORMAT, **record})
    metadata = {"format": "pt", _RECORD: text, _SUM: _digest(text, plain)}
    return write_whole(target, lambda to: to.write_bytes(serialise(plain, metadata)))


def read_tensors(path: str | Path) -> Stored:
    """The content of a file that `write_tensors` wrote; `BadInput` for one that was cut short or changed."""
    path = checked_path(path)
    try:
        return _read(path)
    except (SafetensorError, OSError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{str(path)!r} is not a whole safetensors file: {error}. Nothing was loaded.") from error


def network_weights(stored: Stored) -> dict[str, Tensor]:
    """The weights of the network, without the further tensors of a checkpoint."""
    return {name: tensor for name, tensor in stored.tensors.items() if not name.startswith(TRAINING)}


def check_same_architecture(record: Record, module: nn.Module, path: str | Path) -> None:
    """Raise `BadInput` that names the differences, unless the record is of a network like `module`."""
    found = differences(_module_record(record), describe(module))
    if found:
        raise BadInput(f"{str(path)!r} holds another network: {'; '.join(found)}. Nothing was loaded.", differences=found)


def check_same_weights(weights: dict[str, Tensor], module: nn.Module, path: str | Path) -> None:
    """Raise `BadInput` that names tensors which are missing, unexpected, or of another shape or dtype than the module's."""
    theirs, ours = ({name: _form(w) for name, w in state.items()} for state in (weights, module.state_dict()))
    wrong = [f"{n} is {theirs.get(n, 'missing')}, not {form}" for n, form in ours.items() if theirs.get(n) != form]
    wrong += [f"{name} is not expected" for name in theirs if name not in ours]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise BadInput(f"The weights in {str(path)!r} do not fit: {', '.join(wrong[:_SHOWN])}{more}. Nothing was loaded.")


def _module_record(record: Record) -> Record:
    """The part of a file's record that describes its network."""
    module = record.get("module")
    if not isinstance(module, dict):
        raise BadInput("the file's record describes no network.")
    return module


def _form(weight: Tensor) -> str:
    return f"{tuple(weight.shape)} {str(weight.dtype).removeprefix('torch.')}"


def _read(path: Path) -> Stored:
    if path.is_dir():
        raise BadInput(f"{str(path)!r} is a folder; name a file in it.")
    if not path.is_file():
        raise BadInput(f"There is no file {str(path)!r}.")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if set(metadata) != {"format", _RECORD, _SUM} or metadata["format"] != "pt":
            raise BadInput(f"{str(path)!r} is a safetensors file, but not one of notsodeep: it has no record of its network.")
        size, free = path.stat().st_size, available_bytes(torch.device("cpu"))
        if size > free:
            raise BadInput(f"{str(path)!r} takes {size / 2**30:.1f} GiB and {free / 2**30:.1f} GiB of memory are free.")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    if _digest(metadata[_RECORD], tensors) != metadata[_SUM]:
        raise BadInput(
            f"{str(path)!r} was changed after it was written: its SHA-256 is another. Nothing was loaded; use another copy."
        )
    try:
        record = json.loads(metadata[_RECORD])
        form = record["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInput(f"The record in {str(path)!r} cannot be read: {error}.") from error
    if form != _FORMAT:
        raise BadInput(f"{str(path)!r} is of format {form!r}; this version reads format {_FORMAT}. Update notsodeep.")
    return Stored(record, tensors)


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the record and of each tensor's name, dtype, shape and bytes, in order of the names."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
