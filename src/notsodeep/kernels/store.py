"""Exact kernels in a Zarr group: an array a kernel, a chunk a tile, and a mark for each tile that is whole.

A mark is set when every kernel of its tile, on both sides of the diagonal, is on the disc. So a process that is killed at any
moment leaves tiles without a mark, which are computed again, and never half a tile with one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from notsodeep.data.files import output_folder
from notsodeep.errors import BadInput
from notsodeep.kernels.tiles import tile_pairs

MARKS = "finished"
_ATTRIBUTE = "notsodeep"
_NOT_COMPARED = ("tau0_used", "torch")

Index = tuple[int, int]
"""Of a tile: which block of rows, and which of columns."""


def zarr() -> Any:
    """The library, which is an extra."""
    try:
        import zarr
    except ImportError:
        raise BadInput("Kernels in a Zarr group need zarr: pip install 'notsodeep[dask]'.") from None
    return zarr


@dataclass(frozen=True)
class KernelStore:
    """The group in `folder`; `about` says what it holds (see `Job.describe`)."""

    folder: Path
    about: Mapping[str, Any]

    @property
    def symmetric(self) -> bool:
        return self.about["x2"] is None

    @property
    def _sides(self) -> Index:
        return tuple(self.about["tile"])  # type: ignore[return-value]

    def tiles(self) -> list[Index]:
        """Every tile that has to be computed: of a symmetric kernel those of one triangle."""
        (n, n2), (height, width) = self.about["shape"], self._sides
        pairs = tile_pairs(n, None if self.symmetric else n2, self._sides)
        return [(rows.start // height, columns.start // width) for rows, columns in pairs]

    def missing(self) -> list[Index]:
        # Listed, not read: a hundred thousand marks are a hundred thousand files.
        there = {(int(mark.parent.name), int(mark.name)) for mark in self._marks() if mark.name.isdigit()}
        return [tile for tile in self.tiles() if tile not in there]

    def _marks(self) -> list[Path]:
        return list((self.folder / MARKS / "c").glob("*/*"))

    def slices(self, tile: Index) -> tuple[slice, slice]:
        rows, columns = (
            slice(index * side, min((index + 1) * side, size))
            for index, side, size in zip(tile, self._sides, self.about["shape"], strict=True)
        )
        return rows, columns

    def remove_leftovers(self) -> None:
        """Unfinished files of writers that were killed."""
        for name in (*self.about["kernels"], MARKS):
            for leftover in (self.folder / name / "c").glob("*/*.partial"):
                leftover.unlink(missing_ok=True)


class Writer:
    """Writes tiles; of one process, which may have several threads."""

    def __init__(self, store: KernelStore) -> None:
        self.store, group = store, zarr().open_group(store.folder, mode="r+")
        self._arrays = {name: group[name] for name in store.about["kernels"]}
        self._marks = group[MARKS]

    def write(self, tile: Index, values: Mapping[str, Tensor]) -> None:
        rows, columns = self.store.slices(tile)
        chunks = [tile]
        if self.store.symmetric and tile[0] != tile[1]:
            chunks.append((tile[1], tile[0]))
        for name, value in values.items():
            block = value.cpu().numpy()
            self._arrays[name][rows, columns] = block
            if len(chunks) == 2:
                self._arrays[name][columns, rows] = np.ascontiguousarray(block.T)
            for i, j in chunks:
                _flush(self.store.folder / name / "c" / str(i) / str(j))
        self._marks[tile] = True


def _flush(path: Path) -> None:
    """To the disc itself, before the mark that says so. A file system that cannot is believed."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_store(folder: Path, about: dict[str, Any], resume: bool) -> KernelStore:
    """The group of these kernels in `folder`, made if it is not there, gone on with if it is (or emptied, without `resume`)."""
    output_folder(folder)
    if any(folder.iterdir()):
        found = _found(folder)
        if resume:
            _refuse_other(folder, found, about)
            about = about | {key: found[key] for key in _NOT_COMPARED}  # τ0 as the tiles that are there have it
        else:
            _empty(folder, found)
    # The group comes with its attributes in one file, and all that follows can be done again: a kill leaves no riddle.
    group = zarr().open_group(folder, mode="a", attributes={_ATTRIBUTE: about})
    store = KernelStore(folder, about)
    grid = tuple(-(-size // side) for size, side in zip(about["shape"], about["tile"], strict=True))
    for name in about["kernels"]:
        _require(group, name, about["shape"], about["tile"], about["dtype"], float("nan"))
    _require(group, MARKS, grid, (1, 1), "bool", False)
    return store


def _require(group: Any, name: str, shape: Any, chunks: Any, dtype: str, fill: Any) -> None:
    if name not in group:  # not compressed: the digits of a kernel are as good as random
        group.create_array(
            name, shape=tuple(shape), chunks=tuple(chunks), dtype=dtype, fill_value=fill, compressors=None
        )


def _found(folder: Path) -> dict[str, Any]:
    """What the group in the folder says of itself; `BadInput` where there is no such group."""
    try:
        found = zarr().open_group(folder, mode="r").attrs.get(_ATTRIBUTE)
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("kernels"), list):
        raise BadInput(f"{str(folder)!r} is not empty, and holds no kernels of notsodeep; name another folder.")
    return found


def _refuse_other(folder: Path, found: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    keys = [key for key in about if key not in _NOT_COMPARED]
    other = [
        f"{key} ({_short(found.get(key))} there, {_short(about[key])} here)"
        for key in keys
        if found.get(key) != about[key]
    ]
    if other or not set(_NOT_COMPARED) <= set(found):
        raise BadInput(
            f"{str(folder)!r} holds other kernels; they differ in {', '.join(other) or 'their format'}. Name another folder, "
            "or pass resume=False to replace them.",
            differ=[text.partition(" ")[0] for text in other],
        )


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text  # a SHA-256


def _empty(folder: Path, found: Mapping[str, Any]) -> None:
    """Without the arrays that were written here, and without what was said of them; what others put there stays."""
    group = zarr().open_group(folder, mode="r+")
    for name in (MARKS, *found["kernels"], "x", "x2"):  # marks first: none may outlive its tile
        if name in group:
            del group[name]
    group.attrs.clear()
    (folder / "zarr.json").unlink(missing_ok=True)


def put_samples(store: KernelStore, **arrays: Tensor) -> None:
    """The samples, x and x2, for workers that have no other file of them."""
    group = zarr().open_group(store.folder, mode="r+")
    for name, values in arrays.items():
        group.create_array(name, data=values.cpu().numpy(), overwrite=True)


def get_samples(store: KernelStore, name: str) -> npt.NDArray[Any]:
    return np.asarray(zarr().open_group(store.folder, mode="r")[name][:])


def drop_samples(store: KernelStore) -> None:
    group = zarr().open_group(store.folder, mode="r+")
    for name in ("x", "x2"):
        if name in group:
            del group[name]
