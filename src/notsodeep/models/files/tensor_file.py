"""Tensors and one JSON record in a safetensors file: no code in it, whole or refused.

The record and a sum over everything are in the file's own metadata: any reader of safetensors opens it, and a changed byte is
found.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from notsodeep.arguments import path as checked_path
from notsodeep.arrays import available_bytes
from notsodeep.errors import BadInput
from notsodeep.runtime.files import write_whole

_FORMAT = 1
_RECORD, _SUM = "notsodeep", "sha256"


@dataclass(frozen=True, eq=False)
class Stored:
    """What a file holds, after its sum was found right."""

    record: dict[str, Any]
    tensors: dict[str, Tensor]


def write_tensors(path: str | Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> Path:
    """The whole file or none: written beside its place, flushed to the disc, and moved there."""
    target = checked_path(path)
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format": _FORMAT, **record})
    metadata = {"format": "pt", _RECORD: text, _SUM: _digest(text, plain)}
    return write_whole(target, lambda to: to.write_bytes(serialise(plain, metadata)))


def read_tensors(path: str | Path) -> Stored:
    """The whole content, or `BadInput`: nothing of a file that was cut short or changed is given out."""
    path = checked_path(path)
    try:
        return _read(path)
    except (SafetensorError, OSError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{str(path)!r} is not a whole safetensors file: {error}. Nothing was loaded.") from error


def _read(path: Path) -> Stored:
    if path.is_dir():
        raise BadInput(f"{str(path)!r} is a folder; name a file in it.")
    if not path.is_file():
        raise BadInput(f"There is no file {str(path)!r}.")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if set(metadata) != {"format", _RECORD, _SUM} or metadata["format"] != "pt":
            raise BadInput(
                f"{str(path)!r} is a safetensors file, but not one of notsodeep: it has no record of its network."
            )
        size, free = path.stat().st_size, available_bytes(torch.device("cpu"))
        if size > free:
            raise BadInput(f"{str(path)!r} takes {size / 2**30:.1f} GiB and {free / 2**30:.1f} GiB of memory are free.")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    if _digest(metadata[_RECORD], tensors) != metadata[_SUM]:
        raise BadInput(
            f"{str(path)!r} was changed after it was written: its sum (SHA-256) is not the one recorded in it. Nothing was "
            "loaded; use another copy."
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
