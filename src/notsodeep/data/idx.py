"""Gzipped IDX files, the format of MNIST: two zero bytes, a type, the number of axes, their lengths, the values."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from notsodeep.errors import BadInput

# None of our dependencies (torch without torchvision, numpy, scipy, scikit-learn) reads IDX.

_UINT8 = 8
_MOST_AXES = 4
_LARGEST = 2**30
"""Bytes; twenty times MNIST. What a header declares is what may be read, so this bounds the memory."""


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
