"""CIFAR-10's Python batches: pickles, read without trusting them."""

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
_UINT8 = 8
_MOST_AXES = 4
_LARGEST = 2**30
"""Bytes; twenty times MNIST. What a header declares is what may be read, so this bounds the memory."""


class _Unpickler(pickle.Unpickler):
    """Builds arrays and plain values only: a pickle may otherwise call any function, with any arguments."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise BadInput(
                f"The pickle asks for {module}.{name}, which no CIFAR-10 batch needs; it was refused. Use the original file.",
                refused=f"{module}.{name}",
            ) from None


def read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 3072), each red, green, blue, row by row, and labels (n,)."""
    try:
        with path.open("rb") as stream:
            # Written by Python 2, whose strings are bytes.
            batch = _Unpickler(stream, encoding="bytes").load()
    except BadInput as error:
        raise BadInput(f"{str(path)!r}: {error}", **error.data) from None
    except Exception as error:  # a damaged pickle can fail in any way, and all mean this
        raise BadInput(f"{str(path)!r} cannot be read as a CIFAR-10 batch: {error or type(error).__name__}.") from error
    x, y = (batch.get(b"data"), batch.get(b"labels")) if isinstance(batch, dict) else (None, None)
    if not (isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 2 and x.shape[1] == _PIXELS):
        found = f"{x.dtype} of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise BadInput(f"{str(path)!r} holds data {found}; a CIFAR-10 batch holds uint8 of shape (n, {_PIXELS}).")
    if not (isinstance(y, list) and all(type(label) is int and 0 <= label < _CLASSES for label in y)):
        raise BadInput(f"{str(path)!r} holds labels that are no list of classes 0 … {_CLASSES - 1}.")
    if len(y) != len(x):
        raise BadInput(f"{str(path)!r} holds {len(x)} images and {len(y)} labels.")
    return x, np.array(y, dtype=np.int64)


# None of our dependencies (torch without torchvision, numpy, scipy, scikit-learn) reads IDX.


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes that the file holds; `BadInput` if it is not whole."""
    try:
        with gzip.open(path) as stream:
            return _array(stream, path)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(
            f"{str(path)!r} is no whole gzip file: {error}. It is cut off or damaged; get it again."
        ) from error


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
    # The byte more also makes gzip compare its own sum, at the end of the stream.
    if len(values) != size or stream.read(1):
        held = f"only {len(values)}" if len(values) < size else "more"
        raise BadInput(f"{str(path)!r} declares {size} bytes, shape {shape}, and holds {held}; get it again.")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def check_npy_header(content: Path | BinaryIO, name: str) -> None:
    """`BadInput` where the header asks for more numbers than follow it. What is no header of NumPy's is left to its reader.

    Args:
        content: The file, or its bytes in memory, which are read from the beginning and left there.
        name: What messages call it.

    Raises:
        BadInput: With the shape, the bytes that it takes, and those that there are.
    """
    with content.open("rb") if isinstance(content, Path) else nullcontext(content) as file:
        file.seek(0, 2)
        size = file.tell()
        file.seek(0)
        try:
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
            shape, _, dtype = read(file)
        except Exception:  # NumPy's own reader says what is wrong with it
            return
        finally:
            start = file.tell()
            file.seek(0)
    needed, there = math.prod(shape) * dtype.itemsize, size - start
    if any(side < 0 for side in shape) or (needed > there and not dtype.hasobject):
        raise BadInput(
            f"{name!r} promises an array of shape {str(tuple(shape))[:100]} of {dtype}, {needed} bytes, and holds {there}: it "
            "was cut short, or its header is wrong. Write the file anew, with numpy.save.",
            needed=needed,
            found=there,
        )
