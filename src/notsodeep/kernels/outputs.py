"""What kernels are written to where `out` is given: floating point, writable, with memory of its own."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from notsodeep.arrays import Array, refuse_unreadable
from notsodeep.errors import BadInput

_KINDS = "a tensor, a numpy array or memory map, or a Zarr array"
_FLOATS = ("float32", "float64")
_WORK = 10**6  # a bound on the search for a common byte of two strided arrays; two matrices take a few steps


def refuse_unfit_outputs(given: tuple[Any, ...], shape: tuple[int, int], inputs: tuple[Array | None, ...]) -> None:
    """`BadInput` unless each output is a matrix of this shape that the kernel's numbers can be written to, apart from the
    others and from the samples. None stands for one that is still to be allocated."""
    outputs = [out for out in given if out is not None]
    for out in outputs:
        _refuse_unfit(out, shape)
    for one, other in combinations(outputs, 2):
        if _shared(one, other):
            raise BadInput(
                "The arrays of out share memory, so one kernel would overwrite the other; give each its own."
            )
    if any(_shared(out, x) for out in outputs for x in inputs):
        raise BadInput("out shares memory with the samples, which would be overwritten while they are read; copy them.")


def _refuse_unfit(out: Any, shape: tuple[int, int]) -> None:
    if isinstance(out, Tensor):
        refuse_unreadable(out, "out")
    if not all(hasattr(out, name) for name in ("shape", "dtype", "__setitem__")):
        raise BadInput(f"out is a {type(out).__name__}; expected {_KINDS}.")
    if tuple(out.shape) != shape:
        raise BadInput(f"out has shape {tuple(out.shape)}; the kernel is {shape[0]} × {shape[1]}.")
    dtype = getattr(out.dtype, "name", str(out.dtype).removeprefix("torch."))
    if dtype not in _FLOATS:
        raise BadInput(f"out has dtype {dtype}, which does not hold a kernel's entries; expected float32 or float64.")
    if _read_only(out):
        raise BadInput(
            "out is read-only; open it for writing (mode 'r+' or 'w+' of a memory map, 'r+' of a Zarr array)."
        )
    if _repeats(out):
        raise BadInput(
            "Entries of out share memory, as those of an expanded tensor do; give an array of its own: out.clone()."
        )


def _read_only(out: Any) -> bool:
    return not out.flags.writeable if isinstance(out, np.ndarray) else bool(getattr(out, "read_only", False))


def _repeats(out: Any) -> bool:
    if not isinstance(out, Tensor | np.ndarray):
        return False
    strides = out.stride() if isinstance(out, Tensor) else out.strides
    return any(step == 0 and size > 1 for step, size in zip(strides, out.shape, strict=True))


def _shared(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor | np.ndarray) and isinstance(other, Tensor | np.ndarray):
        return np.may_share_memory(_view(one), _view(other), max_work=_WORK)  # type: ignore[arg-type]  # the stubs know two of its values
    paths = [str(getattr(array, "store_path", "")) for array in (one, other)]  # of Zarr arrays
    return one is other or (paths[0] != "" and paths[0] == paths[1])


class _Addresses:
    """Where the entries of a tensor lie, on whatever device, for NumPy to compare; nothing is read there."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in tensor.stride()),
            "data": (tensor.data_ptr(), False),
        }


def _view(array: Array) -> npt.NDArray[Any]:
    if isinstance(array, np.ndarray):
        return array
    if array.layout != torch.strided or array.numel() == 0:
        return np.empty(0)
    return np.asarray(_Addresses(array))
