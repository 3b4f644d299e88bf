"""How the arrays of a store lie on the disc."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from notsodeep.errors import BadInput
from notsodeep.kernels.stored.library import group, zarr
from notsodeep.kernels.stored.places import cannot_read, check_array

_DECIDE = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "codecs")
"""What the bytes of an array mean; others may add attributes, and names of its axes."""


class Layout(NamedTuple):
    """The layout of an array on disc, not compressed: the digits of a kernel are as good as random."""

    shape: list[int]
    chunks: list[int]
    dtype: str
    fill: float
    codec: Any


def of_kernel(about: Mapping[str, Any]) -> Layout:
    """One chunk per tile, with a checksum."""
    return Layout(about["shape"], about["tile"], about["dtype"], math.nan, zarr().codecs.Crc32cCodec())


def of_marks(about: Mapping[str, Any]) -> Layout:
    """One chunk per tile, of the seals of its chunks."""
    grid = [-(-size // side) for size, side in zip(about["shape"], about["tile"], strict=True)]
    seals = seals_of(about)
    return Layout([grid[0] * seals[0], grid[1] * seals[1]], list(seals), "uint32", 0, None)


def seals_of(about: Mapping[str, Any]) -> tuple[int, int]:
    """The shape of a mark: one seal per kernel and side of the diagonal."""
    return len(about["kernels"]), 2


def make(where: Any, name: str, kind: Layout) -> None:
    with suppress(zarr().errors.ContainsArrayError):  # another run has made it just now
        layout = {"shape": tuple(kind.shape), "chunks": tuple(kind.chunks), "dtype": kind.dtype}
        where.create_array(name, **layout, fill_value=kind.fill, compressors=kind.codec)


def found(folder: Path, where: Any, name: str, kind: Layout) -> Any:
    """The array `name` of the group in `folder`, or None; raises BadInput where it is there, but not as it was made.

    The bytes of a chunk say nothing of their own order: whoever describes them otherwise changes the numbers.
    """
    check_array(folder / name)
    try:
        array = where[name] if (folder / name / "zarr.json").exists() else None  # `in` takes a damaged one for none
        known = array is None or _deciding(array) == _as_made(kind)
    except OSError as error:
        raise cannot_read(folder / name, error) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise BadInput(
            f"{str(folder / name)!r} is damaged: its zarr.json does not describe the array that was made there. Remove that "
            "folder; the call that wrote the kernels, made again, then computes its tiles anew."
        )
    return array


def _deciding(array: Any) -> dict[str, Any]:
    about = array.metadata.to_dict()
    return {key: about.get(key) for key in _DECIDE}


def _as_made(kind: Layout) -> dict[str, Any]:
    made = group(zarr().storage.MemoryStore(), "w")
    make(made, "array", kind)
    return _deciding(made["array"])
