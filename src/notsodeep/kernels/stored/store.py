"""Exact kernels in a Zarr group: one array per kernel, one chunk per tile, and a mark for each complete tile.

A mark is set when every kernel of its tile, on both sides of the diagonal, is on the disc. A process that is killed leaves
tiles without a mark, which are computed again, and never half a tile with one.

A chunk ends with the CRC-32C of its other bytes: a codec of Zarr's own, which every reader of Zarr checks. It finds flipped
bits, but not a whole chunk in a wrong place. So a mark holds a seal of each chunk of its tile: a checksum over that CRC, the
kernel, the place and the description of the store. Checksums are against accidents, not against forgery.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.kernels.exact.tiles import tile_pairs
from notsodeep.runtime.files import cannot_write, check_folder, output_folder

SUM_BYTES = 4  # a CRC-32C, at the end of a chunk
AGAIN = "The call that wrote the kernels, made again, computes what is damaged anew."

Index = tuple[int, int]
"""A tile or a chunk: the number of its block of rows, and of its block of columns."""

MARKS = "finished"
_SAMPLES = "samples_"  # followed by the token of the run
_ABANDONED = 3600.0  # seconds after which an unfinished file has no writer: a chunk takes one, or a few
_ATTRIBUTE = "notsodeep"
_NOT_COMPARED = ("tau0_used", "torch")


def zarr() -> Any:
    """The library, an extra; raises BadInput where it is not installed."""
    try:
        import zarr
    except ImportError:
        raise BadInput("Kernels in a Zarr group need zarr: pip install 'notsodeep[dask]'.") from None
    return zarr


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
            check_folder(self.folder / name / "c")
            _check_places(self.folder / name / "c")
        return [tile for tile in self.tiles() if self.chunk_file(MARKS, tile).is_file()]

    def faults(self, tile: Index) -> list[str]:
        """The faults of the chunks of a marked tile, each with its file."""
        found = []
        for name in self.about["kernels"]:
            for chunk in self.chunks(tile):
                try:
                    wrong = self.fault(name, chunk, self._content(name, chunk))
                except OSError as error:
                    wrong = f"cannot be read ({error.strerror})"
                found += [] if wrong is None else [f"{name}/c/{chunk[0]}/{chunk[1]} {wrong}"]
        return found

    def fault(self, kernel: str, chunk: Index, content: npt.NDArray[np.uint8] | None) -> str | None:
        """The fault of `content`, the bytes of a chunk of a kernel; None for a sound chunk."""
        tile = (min(chunk), max(chunk)) if self.symmetric else chunk  # as `tiles` has it
        try:
            seals = np.frombuffer(self.chunk_file(MARKS, tile).read_bytes(), "<u4").reshape(self._seals)
        except (OSError, ValueError):
            return "belongs to a tile without a mark, or with a damaged one"
        wanted = int(seals[self.about["kernels"].index(kernel), self.chunks(tile).index(chunk)])
        return _fault(content, self._bytes, wanted, (self.about, kernel, chunk))

    def mark(self, tile: Index) -> tuple[tuple[slice, slice], npt.NDArray[np.uint32]]:
        """The place of a tile in the array of marks, and the seals of its chunks as they are on the disc."""
        found = np.zeros(self._seals, "uint32")
        for k, name in enumerate(self.about["kernels"]):
            for side, chunk in enumerate(self.chunks(tile)):
                found[k, side] = _seal(self.about, name, chunk, _last_bytes(self.chunk_file(name, chunk)))
        i, j = (slice(index * side, (index + 1) * side) for index, side in zip(tile, self._seals, strict=True))
        return (i, j), found

    def chunk_file(self, kernel: str, chunk: Index) -> Path:
        return self.folder / kernel / "c" / str(chunk[0]) / str(chunk[1])

    def _content(self, kernel: str, chunk: Index) -> npt.NDArray[np.uint8] | None:
        try:
            return np.frombuffer(self.chunk_file(kernel, chunk).read_bytes(), "uint8")
        except FileNotFoundError:
            return None

    @property
    def _seals(self) -> Index:
        """The shape of a mark: one seal per kernel and side of the diagonal."""
        return len(self.about["kernels"]), 2

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
            shutil.rmtree(folder, ignore_errors=True)
        before = time.time() - _ABANDONED
        for name in (*self.about["kernels"], MARKS):
            for leftover in (self.folder / name / "c").glob("*/*.partial"):
                with suppress(FileNotFoundError):  # its writer has just finished it
                    if leftover.stat().st_mtime <= before:
                        leftover.unlink()


def _check_places(folder: Path, depth: int = 2) -> None:
    """Raise BadInput unless the chunks of an array are files in folders."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.isdigit():
                if not (entry.is_dir() if depth > 1 else entry.is_file()):
                    what = "no folder, where chunks" if depth > 1 else "no file, where a chunk"
                    raise BadInput(
                        f"{entry.path!r} is {what} of the kernels should be. Remove it; what belongs there is then computed "
                        "again."
                    )
                if depth > 1:
                    _check_places(Path(entry.path), depth - 1)


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
    if _crc32c(content[:-SUM_BYTES]) != crc:
        return "has other bits than were written (its checksum does not match)"
    if _seal(*whose, crc) != wanted:
        return "is whole, but not the chunk that was written here: it is from another place or run, or its mark is damaged"
    return None


def _crc32c(content: npt.NDArray[np.uint8]) -> bytes:
    try:
        import google_crc32c  # what Zarr computes it with
    except ImportError:
        raise BadInput("Kernels in a Zarr group need zarr: pip install 'notsodeep[dask]'.") from None
    return int(google_crc32c.value(content)).to_bytes(SUM_BYTES, "little")


class Writer:
    """Writes the tiles of one process, from any number of threads."""

    def __init__(self, store: KernelStore) -> None:
        self.store, group = store, zarr().open_group(store.folder, mode="r+")
        self._arrays = {name: group[name] for name in store.about["kernels"]}
        self._marks = group[MARKS]

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
            _check_same(folder, found, about)
            _check_tau0(folder, found.get("tau0_used"), about["tau0_used"])
            about = about | {key: found[key] for key in _NOT_COMPARED}  # τ0 as the tiles that are there have it
        else:
            _empty(folder, found)
    # The group comes with its attributes in one file, and all that follows can be repeated after a kill.
    group = zarr().open_group(folder, mode="a", attributes={_ATTRIBUTE: about})
    kernel = _Layout(about["shape"], about["tile"], about["dtype"], math.nan, zarr().codecs.Crc32cCodec())
    absent = [name for name in about["kernels"] if not _is_there(folder, group, name, kernel)]
    if absent:
        shutil.rmtree(folder / MARKS, ignore_errors=True)  # of tiles that are gone
    for name in absent:
        _make(group, name, kernel)
    grid = [-(-size // side) for size, side in zip(about["shape"], about["tile"], strict=True)]
    seals = len(about["kernels"]), 2
    marks = _Layout([grid[0] * seals[0], grid[1] * seals[1]], list(seals), "uint32", 0, None)
    if not _is_there(folder, group, MARKS, marks):
        _make(group, MARKS, marks)
    return KernelStore(folder, about)


def _check_tau0(folder: Path, found: Any, used: float | None) -> None:
    """Raise BadInput where τ0 of the tiles differs by more than the rounding of another version of torch."""
    same = found == used or (isinstance(found, float) and used is not None and math.isclose(found, used, rel_tol=1e-9))
    if not same:
        raise BadInput(
            f"{str(folder / 'zarr.json')!r} is damaged: it says that the tiles were computed with tau0 = {found!r}, and these "
            f"samples have {used!r}. Write the kernels into another folder, or pass resume=False."
        )


class _Layout(NamedTuple):
    """The layout of an array on disc, not compressed: the digits of a kernel are as good as random."""

    shape: list[int]
    chunks: list[int]
    dtype: str
    fill: float
    codec: Any


def _make(group: Any, name: str, kind: _Layout) -> None:
    with suppress(zarr().errors.ContainsArrayError):  # another run has made it just now
        layout = {"shape": tuple(kind.shape), "chunks": tuple(kind.chunks), "dtype": kind.dtype}
        group.create_array(name, **layout, fill_value=kind.fill, compressors=kind.codec)


def _is_there(folder: Path, group: Any, name: str, kind: _Layout) -> bool:
    """Whether the array is there; raises BadInput where it is, but not as it was made."""
    try:
        if name not in group:
            return False
        found = group[name]
        known = (list(found.shape), list(found.chunks), str(found.dtype)) == (kind.shape, kind.chunks, kind.dtype)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise BadInput(
            f"{str(folder / name)!r} is damaged: its zarr.json does not describe the array that was made there. Remove that "
            "folder; its tiles are then computed again."
        )
    return True


def described(folder: Path) -> dict[str, Any]:
    """The description in the group in `folder`; raises BadInput where there is no such group."""
    try:
        found = zarr().open_group(folder, mode="r").attrs.get(_ATTRIBUTE)
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("kernels"), list):
        raise BadInput(f"{str(folder)!r} is not empty, and holds no kernels of notsodeep; name another folder.")
    return found


def _check_same(folder: Path, found: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    keys = [key for key in about if key not in _NOT_COMPARED]
    other = [key for key in keys if found.get(key) != about[key]]
    if other or not set(_NOT_COMPARED) <= set(found):
        told = ", ".join(_difference(key, found.get(key), about[key]) for key in other) or "their format"
        what = f"{str(folder)!r} holds other kernels; they differ in {told}."
        raise BadInput(
            f"{what} Name another folder, or pass resume=False to replace them.", differ=other, what=what, folder=folder
        )


def _difference(key: str, there: Any, here: Any) -> str:
    if key in ("x", "x2") and there is not None and here is not None:  # nobody reads a SHA-256
        return "the samples" if key == "x" else "the samples x2"
    if key == "x2":
        return "x2 (none there)" if there is None else "x2 (none here)"
    return f"{key} ({there} there, {here} here)"


def _empty(folder: Path, found: Mapping[str, Any]) -> None:
    """Remove the arrays that were written here and their description; other files stay."""
    group = zarr().open_group(folder, mode="r+")
    samples = [path.name for path in folder.glob(_SAMPLES + "?" * 32)]
    for name in (MARKS, *found["kernels"], *samples):  # marks first: none may outlive its tile
        shutil.rmtree(folder / name, ignore_errors=True)  # whatever state it is in
    group.attrs.clear()
    (folder / "zarr.json").unlink(missing_ok=True)


def put_samples(store: KernelStore, token: str, **arrays: Tensor) -> None:
    """Store x and x2 for workers of the run `token` that have no other file of them."""
    group = zarr().open_group(store.folder, mode="r+")
    for name, values in arrays.items():
        group.create_array(f"{_SAMPLES}{token}/{name}", data=values.cpu().numpy(), overwrite=True)


def get_samples(store: KernelStore, token: str, name: str) -> npt.NDArray[Any]:
    return np.asarray(zarr().open_group(store.folder, mode="r")[f"{_SAMPLES}{token}/{name}"][:])


def drop_samples(store: KernelStore, token: str) -> None:
    shutil.rmtree(store.folder / f"{_SAMPLES}{token}", ignore_errors=True)
