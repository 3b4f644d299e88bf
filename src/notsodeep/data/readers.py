"""Readers of CIFAR-10's batches (pickles, which may only build arrays), of IDX files, and of the header of .npy files."""

from __future__ import annotations

import gzip
import math
import pickle
import struct
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from notsodeep.errors import BadInput

_PIXELS, _CLASSES = 3 * 32 * 32, 10

_reconstruct = np.empty(0, np.uint8).__reduce__()[0]  # has moved between numpy's versions; an array knows its own
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
_UINT8, _MOST_AXES = 8, 4  # of an IDX file
_LARGEST = 2**30  # bytes, twenty times MNIST: bounds the memory that a header can ask for


class _Unpickler(pickle.Unpickler):
    """An unpickler of arrays and plain values only; pickle's own calls any function that a file names."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise BadInput(
                f"The pickle asks for {module}.{name}, which no CIFAR-10 batch needs; it was refused. Use the original file.",
                refused=f"{module}.{name}",
            ) from None


def read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 3072), each red, green, blue, row by row, and labels (n,), of a CIFAR-10 batch."""
    try:
        with path.open("rb") as stream:
            batch = _Unpickler(stream, encoding="bytes").load()  # Python 2 wrote it, whose strings are bytes
    except BadInput as error:
        raise BadInput(f"{str(path)!r}: {error}", **error.data) from None
    except Exception as error:  # a damaged pickle fails in many ways
        raise BadInput(f"{str(path)!r} cannot be read as a CIFAR-10 batch: {error or type(error).__name__}.") from error
    x, y = (batch.get(b"data"), batch.get(b"labels")) if isinstance(batch, dict) else (None, None)
    if not (isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 2 and x.shape[1] == _PIXELS):
        found = f"{x.dtype} of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise BadInput(f"{str(path)!r} holds data {found}; a CIFAR-10 batch holds uint8 of shape (n, {_PIXELS}).")
    if not (isinstance(y, list) and all(type(label) is int and 0 <= label < _CLASSES for label in y)):
        raise BadInput(f"{str(path)!r} holds labels that are not a list of classes 0 … {_CLASSES - 1}.")
    if len(y) != len(x):
        raise BadInput(f"{str(path)!r} holds {len(x)} images and {len(y)} labels.")
    return x, np.array(y, dtype=np.int64)


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes of a gzipped IDX file."""
    try:
        with gzip.open(path) as stream:
            return _array(stream, path)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{str(path)!r} is not a whole gzip file: {error}. It is cut off or damaged; get it again.") from error


def _array(stream: gzip.GzipFile, path: Path) -> npt.NDArray[np.uint8]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != bytes([0, 0, _UINT8]) or not 1 <= magic[3] <= _MOST_AXES:
        raise BadInput(
            f"{str(path)!r} starts with the bytes {magic.hex(' ')}; an IDX file of unsigned bytes with up to {_MOST_AXES} "
            f"axes starts with 00 00 08 01 … 0{_MOST_AXES}. It is another file."
        )
    lengths = stream.read(4 * magic[3])
    if len(lengths) < 4 * magic[3]:
        raise BadInput(f"{str(path)!r} ends inside its header; get it again.")
    shape = struct.unpack(f">{magic[3]}I", lengths)
    size = math.prod(shape)
    if size > _LARGEST:
        raise BadInput(f"{str(path)!r} declares an array of shape {shape}: {size} bytes, above the {_LARGEST} we read.")
    values = stream.read(size)
    # Reading one byte more makes gzip compare its own sum at the end of the stream.
    if len(values) != size or stream.read(1):
        held = f"only {len(values)}" if len(values) < size else "more"
        raise BadInput(f"{str(path)!r} declares {size} bytes, shape {shape}, and holds {held}; get it again.")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def npy_header(file: BinaryIO, longest: int = 10_000) -> tuple[tuple[int, ...], np.dtype[Any], int] | None:
    """The shape and dtype that a .npy file declares and the place of its first number; None if its header is not one of a plain
    array, or has more than `longest` bytes. The file is left at its beginning."""
    file.seek(0)
    try:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        shape, _, dtype = read(file, max_header_size=longest)
        return shape, dtype, file.tell()
    except Exception:  # a header is parsed as a Python literal, which fails in many ways
        return None
    finally:
        file.seek(0)


def check_npy_header(content: Path | BinaryIO, name: str) -> None:
    """Raises BadInput if a .npy file, called `name`, declares more numbers than it holds. NumPy reports other faults."""
    with content.open("rb") if isinstance(content, Path) else nullcontext(content) as file:
        size = file.seek(0, 2)
        header = npy_header(file)
    if header is None:
        return
    shape, dtype, start = header
    needed, there = math.prod(shape) * dtype.itemsize, size - start
    if any(side < 0 for side in shape) or (needed > there and not dtype.hasobject):
        raise BadInput(
            f"{name!r} promises an array of shape {str(tuple(shape))[:100]} of {dtype}, {needed} bytes, and holds {there}: it "
            "was cut short, or its header is wrong. Write the file anew, with numpy.save.",
            needed=needed,
            found=there,
        )
