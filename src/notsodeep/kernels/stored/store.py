"""Exact kernels in a Zarr group: one array per kernel, one chunk per tile, and a mark for each complete tile.

A mark is set when every kernel of its tile, on both sides of the diagonal, is on the disc. A process that is killed leaves
tiles without a mark, which are computed again, and never half a tile with one.

A chunk ends with the CRC-32C of its other bytes: a codec of Zarr's own, which every reader of Zarr checks. It finds flipped
bits, but not a whole chunk in a wrong place. So a mark holds a seal of each chunk of its tile: a checksum over that CRC, the
kernel, the place and the description of the store. Checksums are against accidents, not against forgery.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from notsodeep.kernels.exact.tiles import tile_pairs
from notsodeep.kernels.stored import layout
from notsodeep.kernels.stored.description import ATTRIBUTE, NOT_COMPARED, check_same, described
from notsodeep.kernels.stored.library import SUM_BYTES, crc32c, group
from notsodeep.kernels.stored.places import check_chunks, check_file, remove, remove_folder, unreadable
from notsodeep.runtime.files import cannot_write, output_folder

Index = tuple[int, int]
"""A tile or a chunk: the number of its block of rows, and of its block of columns."""

MARKS = "finished"
_SAMPLES = "samples_"  # followed by the token of the run
_ABANDONED = 3600.0  # seconds after which an unfinished file has no writer: a chunk takes one, or a few


@dataclass(frozen=True)
class KernelStore:
    """The group in `folder`; `about` describes its kernels (see `workers.describe`)."""

    folder: Path
    about: Mapping[str, Any]

    @property
    def symmetric(self) -> bool:
        return self.about["x2"] is None

    @property
    def _sides(self) -> Index:
        return tuple(self.about["tile"])  # type: ignore[return-value]

    def tiles(self) -> list[Index]:
        """Every tile to compute: of a symmetric kernel those of one triangle."""
        (n, n2), (height, width) = self.about["shape"], self._sides
        pairs = tile_pairs(n, None if self.symmetric else n2, self._sides)
        return [(rows.start // height, columns.start // width) for rows, columns in pairs]

    def marked(self) -> list[Index]:
        """The tiles with a mark; raises BadInput where a folder is in the place of a chunk, or a file in that of a folder."""
        for name in (MARKS, *self.about["kernels"]):
            check_chunks(self.folder / name / "c")
        return [tile for tile in self.tiles() if self.chunk_file(MARKS, tile).is_file()]

    def faults(self, tile: Index) -> list[str]:
        """The faults of the chunks of a marked tile, each with its file."""
        found = []
        for name in self.about["kernels"]:
            for chunk in self.chunks(tile):
                try:
                    wrong = self.fault(name, chunk, self._content(name, chunk))
                except OSError as error:
                    wrong = unreadable(error)
                found += [] if wrong is None else [f"{name}/c/{chunk[0]}/{chunk[1]} {wrong}"]
        return found

    def fault(self, kernel: str, chunk: Index, content: npt.NDArray[np.uint8] | None) -> str | None:
        """The fault of `content`, the bytes of a chunk of a kernel; None for a sound chunk."""
        tile = (min(chunk), max(chunk)) if self.symmetric else chunk  # as `tiles` has it
        try:
            check_file(self.chunk_file(MARKS, tile), "a mark")
            seals = np.frombuffer(self.chunk_file(MARKS, tile).read_bytes(), "<u4").reshape(layout.seals_of(self.about))
        except (OSError, ValueError):  # BadInput among them
            return "belongs to a tile without a mark, or with a damaged one"
        wanted = int(seals[self.about["kernels"].index(kernel), self.chunks(tile).index(chunk)])
        return _fault(content, self._bytes, wanted, (self.about, kernel, chunk))

    def mark(self, tile: Index) -> tuple[tuple[slice, slice], npt.NDArray[np.uint32]]:
        """The place of a tile in the array of marks, and the seals of its chunks as they are on the disc."""
        found = np.zeros(layout.seals_of(self.about), "uint32")
        for k, name in enumerate(self.about["kernels"]):
            for side, chunk in enumerate(self.chunks(tile)):
                found[k, side] = _seal(self.about, name, chunk, _last_bytes(self.chunk_file(name, chunk)))
        i, j = (slice(index * side, (index + 1) * side) for index, side in zip(tile, layout.seals_of(self.about), strict=True))
        return (i, j), found

    def chunk_file(self, kernel: str, chunk: Index) -> Path:
        return self.folder / kernel / "c" / str(chunk[0]) / str(chunk[1])

    def _content(self, kernel: str, chunk: Index) -> npt.NDArray[np.uint8] | None:
        try:
            return np.frombuffer(self.chunk_file(kernel, chunk).read_bytes(), "uint8")
        except FileNotFoundError:
            return None

    @property
    def _bytes(self) -> int:
        height, width = self._sides
        return height * width * int(np.dtype(self.about["dtype"]).itemsize) + SUM_BYTES

    def chunks(self, tile: Index) -> list[Index]:
        """The chunks of a tile: on both sides of the diagonal of a symmetric kernel."""
        return [tile, (tile[1], tile[0])] if self.symmetric and tile[0] != tile[1] else [tile]

    def slices(self, tile: Index) -> tuple[slice, slice]:
        rows, columns = (
            slice(index * side, min((index + 1) * side, size))
            for index, side, size in zip(tile, self._sides, self.about["shape"], strict=True)
        )
        return rows, columns

    def tidy(self) -> None:
        """Remove samples and unfinished files of killed runs; files younger than `_ABANDONED` stay."""
        for folder in self.folder.glob(_SAMPLES + "?" * 32):
            remove_folder(folder)
        before = time.time() - _ABANDONED
        for name in (*self.about["kernels"], MARKS):
            for leftover in (self.folder / name / "c").glob("*/*.partial"):
                with suppress(FileNotFoundError):  # its writer has just finished it
                    if leftover.stat().st_mtime <= before:
                        leftover.unlink()


def _seal(about: Mapping[str, Any], kernel: str, chunk: Index, crc: bytes) -> int:
    """The checksum of a chunk's own checksum together with its kernel and place; never 0, which stands for none."""
    whose = json.dumps([dict(about), kernel, list(chunk)], sort_keys=True)
    return zlib.crc32(crc, zlib.crc32(whose.encode())) or 1


def _last_bytes(path: Path) -> bytes:
    """The checksum that a chunk on the disc ends with."""
    with path.open("rb") as file:
        file.seek(-SUM_BYTES, 2)
        return file.read()


def _fault(content: npt.NDArray[np.uint8] | None, size: int, wanted: int, whose: tuple[Any, str, Index]) -> str | None:
    """The fault of a chunk's bytes (None for a missing file), as the end of a sentence; None for a sound chunk.

    Args:
        content: The bytes.
        size: How many there should be.
        wanted: The chunk's seal, in the mark of its tile.
        whose: The description of the store, the kernel, and the place.
    """
    if content is None:
        return "is gone"
    if len(content) != size:
        return f"has {len(content)} bytes instead of {size}"
    crc = content[-SUM_BYTES:].tobytes()
    if crc32c(content[:-SUM_BYTES]) != crc:
        return "has other bits than were written (its checksum does not match)"
    if _seal(*whose, crc) != wanted:
        return "is whole, but not the chunk that was written here: it is from another place or run, or its mark is damaged"
    return None


class Writer:
    """Writes the tiles of one process, from any number of threads."""

    def __init__(self, store: KernelStore) -> None:
        self.store, opened = store, group(store.folder, "r+")
        self._arrays = {name: opened[name] for name in store.about["kernels"]}
        self._marks = opened[MARKS]

    def write(self, tile: Index, values: Mapping[str, Tensor]) -> None:
        rows, columns = self.store.slices(tile)
        chunks = self.store.chunks(tile)
        try:
            for name, value in values.items():
                block = value.cpu().numpy()
                self._arrays[name][rows, columns] = block
                if len(chunks) == 2:
                    self._arrays[name][columns, rows] = np.ascontiguousarray(block.T)
                for chunk in chunks:
                    _flush(self.store.chunk_file(name, chunk))
            place, seals = self.store.mark(tile)
            self._marks[place] = seals
        except OSError as error:
            raise cannot_write(self.store.folder, error) from error


def _flush(path: Path) -> None:
    """fsync before the tile is marked; ignored where unsupported."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_store(folder: Path, about: dict[str, Any], resume: bool) -> KernelStore:
    """The group of these kernels in `folder`: a new one, the one found there or, without `resume`, that one emptied."""
    output_folder(folder)
    if any(folder.iterdir()):
        found = described(folder)
        if resume:
            check_same(folder, found, about)
            about = about | {key: found[key] for key in NOT_COMPARED}  # τ0 as the tiles that are there have it
        else:
            _empty(folder, found)
    # The group comes with its attributes in one file, and all that follows can be repeated after a kill.
    opened = group(folder, "a", attributes={ATTRIBUTE: about})
    kernel, marks = layout.of_kernel(about), layout.of_marks(about)
    absent = [name for name in about["kernels"] if layout.found(folder, opened, name, kernel) is None]
    if absent:
        remove(folder / MARKS)  # of tiles that are gone
    for name in absent:
        layout.make(opened, name, kernel)
    if layout.found(folder, opened, MARKS, marks) is None:
        layout.make(opened, MARKS, marks)
    return KernelStore(folder, about)


def _empty(folder: Path, found: Mapping[str, Any]) -> None:
    """Remove the arrays that were written here and their description; other files stay."""
    opened = group(folder, "r+")
    for samples in folder.glob(_SAMPLES + "?" * 32):
        remove_folder(samples)
    for name in (MARKS, *found["kernels"]):  # marks first: none may outlive its tile
        remove(folder / name)
    opened.attrs.clear()
    (folder / "zarr.json").unlink(missing_ok=True)


def put_samples(store: KernelStore, token: str, **arrays: Tensor) -> None:
    """Store x and x2 for workers of the run `token` that have no other file of them."""
    opened = group(store.folder, "r+")
    for name, values in arrays.items():
        opened.create_array(f"{_SAMPLES}{token}/{name}", data=values.cpu().numpy(), overwrite=True)


def get_samples(store: KernelStore, token: str, name: str) -> npt.NDArray[Any]:
    return np.asarray(group(store.folder, "r")[f"{_SAMPLES}{token}/{name}"][:])


def drop_samples(store: KernelStore, token: str) -> None:
    remove_folder(store.folder / f"{_SAMPLES}{token}")
