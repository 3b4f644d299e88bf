"""CIFAR-10's Python batches: pickles, read without trusting them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from notsodeep.errors import BadInput

_PIXELS, _CLASSES = 3 * 32 * 32, 10

_reconstruct = np.empty(0, np.uint8).__reduce__()[0]  # has moved between numpy's versions; an array knows its own
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


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
