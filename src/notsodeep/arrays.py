"""Arrays: the axis legend, the types that are accepted, and the checks that samples, vectors, labels and results pass.

Axes, one letter each, the same in every docstring:

    n  samples (rows)        p  features            K  classes
    L  hidden layers         m  width of a layer    r  rank of a low-rank factor
    q  quadrature nodes      k  Hermite degree      s  positions of an image

Samples are rows: ``x`` is (n, p), the transpose of the papers' X. Every check returns what it checked, ready for use, or raises
`BadInput`; a function named ``check_…`` returns nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import Tensor

from notsodeep.arguments import number, shown
from notsodeep.errors import BadInput

Array: TypeAlias = Tensor | npt.NDArray[np.floating[Any]]
"""A tensor or a numpy array; results come back in the same kind."""

_LARGEST = 1e50


def like(x: Array) -> Callable[[Tensor], Any]:
    """A function that turns a tensor into the kind of `x`: numpy for numpy, tensor for tensor."""
    return (lambda result: result.cpu().numpy()) if isinstance(x, np.ndarray) else (lambda result: result)


def samples(x: Array, name: str = "x", products: torch.dtype = torch.float64) -> Tensor:
    """`x` as an (n, p) float tensor; errors name the wrong rows. Inner products must be finite in the dtype `products`."""
    tensor = _tensor(x, name)
    if tensor.ndim != 2:
        hint = "; one sample is x[None, :]" if tensor.ndim == 1 else ""
        raise BadInput(f"{name} has shape {tuple(tensor.shape)}; expected (n, p), one row per sample{hint}.")
    n, p = tensor.shape
    if n == 0 or p == 0:
        raise BadInput(f"{name} is empty: shape {(n, p)}; at least one sample of one feature is needed.")
    _check_entries(tensor, name, p, products)
    return tensor


def images(x: Array, name: str = "x") -> Tensor:
    """`x` as an (n, channels, length) or (n, channels, height, width) float tensor; errors name the wrong samples."""
    tensor = _tensor(x, name)
    shape = tuple(tensor.shape)
    if tensor.ndim not in (3, 4):
        raise BadInput(
            f"{name} has shape {shape}; expected images (n, channels, height, width) or signals (n, channels, length); "
            "of rows of pixels, x.reshape(n, channels, height, width)."
        )
    if tensor.numel() == 0:
        raise BadInput(f"{name} is empty: shape {shape}; at least one sample, channel and position is needed.")
    _check_entries(tensor, name, tensor[0].numel(), torch.float64)
    return tensor


def _check_entries(tensor: Tensor, name: str, p: int, products: torch.dtype) -> None:
    """Raise BadInput unless all numbers are finite, and inner products of p of them in the dtype `products`."""
    smallest, largest = (float(end) for end in tensor.aminmax())  # NaN if there is one
    if not (math.isfinite(smallest) and math.isfinite(largest)):
        rows = torch.nonzero(~torch.isfinite(tensor).flatten(1).all(dim=1)).flatten().tolist()
        raise BadInput(
            f"{name} holds NaN or infinity in {len(rows)} of {len(tensor)} rows (row {first_few(rows)}); drop or fill these "
            "rows first.",
            rows=rows,
        )
    largest = max(-smallest, largest)
    if largest > _LARGEST or 0.0 < largest < 1.0 / _LARGEST:
        raise BadInput(
            f"The largest entry of {name} is {largest:.1e}; beyond {_LARGEST:.0e} (or all below {1 / _LARGEST:.0e}) products "
            "of norms leave the range of float64. Rescale the data."
        )
    if p * largest**2 > torch.finfo(products).max:
        raise BadInput(
            f"The largest entry of {name} is {largest:.1e}, and products of {p} such leave the range of {_name(products)}. "
            "Rescale the data, or give them in float64."
        )


def real(x: Any, name: str, shape: tuple[int | None, ...] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """`x` as a dense tensor of finite real numbers; None in `shape` leaves a length open."""
    if not isinstance(x, Tensor | np.ndarray):
        x = _array(x, name)
    tensor = _tensor(x, name)
    if shape is not None and not _fits(tuple(tensor.shape), shape):
        wanted = ", ".join("n" if size is None else str(size) for size in shape) + ("," if len(shape) == 1 else "")
        raise BadInput(f"{name} has shape {tuple(tensor.shape)}; expected ({wanted}).")
    if not bool(torch.isfinite(tensor).all()):
        raise BadInput(f"{name} holds NaN or infinity; expected finite numbers.")
    return tensor if dtype is None else tensor.to(dtype)


def _fits(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether a shape is the wanted one; None in `wanted` leaves a length open."""
    return len(found) == len(wanted) and all(b is None or a == b for a, b in zip(found, wanted, strict=True))


def check_dense(x: Tensor, name: str) -> None:
    """Raises BadInput for a tensor that is nested, sparse, quantised, or on the device meta."""
    if x.is_nested:
        raise BadInput(f"{name} is a nested tensor; expected a dense one: {name}.to_padded_tensor(0.0).")
    if x.layout != torch.strided:
        raise BadInput(f"{name} is a sparse tensor; expected a dense one: {name}.to_dense().")
    if x.is_quantized:
        raise BadInput(f"{name} is a quantised tensor; expected real numbers: {name}.dequantize().")
    if x.is_meta:
        raise BadInput(f"{name} is on the device meta, where tensors hold no numbers; make it on another.")


def operand(v: Any, n: int, like: Tensor) -> Tensor:
    """`v`, (n,) or (n, b), as a factor of an n × n matrix, in the dtype and on the device of `like`."""
    if isinstance(v, np.ndarray) and v.dtype.kind in "fiub":
        v = torch.from_numpy(np.array(v, np.float64, order="C"))
    if not isinstance(v, Tensor) or v.is_complex():
        kind = getattr(v, "dtype", None) or type(v).__name__
        raise BadInput(f"The vector is a {kind}; expected real numbers in a tensor or a numpy array.")
    check_dense(v, "The vector")
    if v.ndim not in (1, 2) or v.shape[0] != n:
        raise BadInput(f"The operator is {n} × {n}; the vector has shape {tuple(v.shape)}, expected ({n},) or ({n}, b).")
    return v.to(like)


def shift(value: Any, n: int, name: str = "ridge") -> float | Tensor:
    """`value` as one finite number, or n of them, (n,)."""
    if isinstance(value, Tensor | np.ndarray) and value.ndim:
        return real(value, f"The {name}", (n,))
    return number(value, name, f", or one per sample, ({n},)")


def ridge(value: Any, n: int, name: str = "ridge") -> float | Tensor:
    """`value` as one finite number ≥ 0, or n of them, (n,)."""
    found = shift(value, n, name)
    least = float(found.min()) if isinstance(found, Tensor) else found
    if least < 0.0:
        raise BadInput(f"The {name} reaches {least:g}; a kernel with a negative one need not be positive.")
    return found


def label_array(y: Any, name: str = "y") -> np.ndarray[Any, Any]:
    """Labels, numbers or words, of a tensor, an array or a list as a numpy array."""
    if isinstance(y, Tensor):
        check_dense(y, name)
        known = y.dtype in (torch.float32, torch.float64) or not y.is_floating_point()
        y = (y if known else y.double()).detach().cpu().numpy()
    if isinstance(y, np.ma.MaskedArray) and np.ma.is_masked(y):
        raise BadInput(f"{name} has masked entries; fill or drop them first.")
    try:
        values = np.asarray(y)
        ragged = values.dtype.kind == "O" and any(isinstance(v, list | tuple | dict | np.ndarray) for v in values.flat)
    except (ValueError, TypeError, OverflowError):
        ragged = True
    if ragged:
        raise BadInput(f"{name} has rows of different lengths; expected one label per sample, or as many for each.")
    if values.ndim == 0:
        raise BadInput(f"{name} = {shown(y)} is not an array; give one label per sample.")
    if values.dtype.kind not in "fiubUSO":
        raise BadInput(f"{name} holds {values.dtype}; expected classes, or real numbers.")
    return values


def class_codes(labels: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], npt.NDArray[np.int64]]:
    """The different labels in sorted order, and for each label its place among them, int64."""
    if labels.dtype.kind == "O":
        if any(label is None or label != label for label in labels.flat):
            raise BadInput("y holds missing labels (None or NaN): drop these samples first.")
        labels = labels.astype(str)
    present, codes = np.unique(labels, return_inverse=True)
    return present, codes.astype(np.int64)


def check_range(diagonal: Tensor, dtype: torch.dtype, what: str) -> None:
    """Raises BadInput if the largest entry of a kernel, which is on its diagonal, overflows or vanishes in `dtype`."""
    largest, limits = float(diagonal.max()), torch.finfo(dtype)
    if largest > limits.max:
        found = f"reaches {largest:.1e}, beyond {limits.max:.1e}, the largest number of {_name(dtype)}"
    elif 0.0 < largest < limits.tiny:
        found = f"is {largest:.1e} at most, below {limits.tiny:.1e}, where {_name(dtype)} loses its digits"
    else:
        return
    wider = "" if dtype == torch.float64 else ", or give it in float64"
    raise BadInput(f"{what} {found}: rescale the data{wider}.", largest=largest)


def check_memory(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device, instead: str, what: str | None = None
) -> None:
    """Raises BadInput, before anything is allocated, if the device has no room for a matrix.

    Args:
        shape: Its rows and columns.
        dtype: Of its entries.
        device: Where it would be allocated.
        instead: The remedy: what to use in its place.
        what: What takes the memory, in words; a kernel by default.
    """
    needed = math.prod(shape) * dtype.itemsize
    available = available_bytes(device)
    if needed > available:
        raise BadInput(
            f"{what or f'A {shape[0]} × {shape[1]} kernel'} in {_name(dtype)} takes {needed / 2**30:.1f} GiB; "
            f"{available / 2**30:.1f} GiB are free on {device}. Use {instead}.",
            needed=needed,
            available=available,
        )


def available_bytes(device: torch.device) -> int:
    """Memory that can be allocated on `device`, the page cache of the system included."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def unwritten(rows: int, columns: int, like: Tensor) -> Tensor:
    """An uninitialised matrix of the dtype and on the device of `like`. On a CPU NumPy allocates it, in huge pages: in small
    ones the allocation of a large kernel takes a third of the time of its computation."""
    if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.float64):
        return torch.empty(rows, columns, dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.empty((rows, columns), np.float32 if like.dtype == torch.float32 else np.float64))


def module_input(x: object, in_features: int, weight: Tensor, module: str) -> Tensor:
    """`x`, (…, p), in the dtype of a module's weights; errors name the `module` and both shapes, dtypes or devices."""
    if not isinstance(x, Tensor):
        raise BadInput(f"{module} takes a torch tensor, got {type(x).__name__}; torch.from_numpy(x) makes one of an array.")
    if x.layout != torch.strided or x.is_nested or x.is_quantized:
        check_dense(x, "x")
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise BadInput(
            f"x has shape {tuple(x.shape)}; this {module} was built for in_features = {in_features}, so it takes shape "
            f"(n, {in_features}).",
            given=tuple(x.shape),
            in_features=in_features,
        )
    if x.device != weight.device:
        raise BadInput(f"x is on {x.device} and the weights of this {module} are on {weight.device}; move one of them.")
    if not x.is_floating_point():
        raise BadInput(f"x is {_name(x.dtype)}; {module} takes real numbers: x.to({weight.dtype}).")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise BadInput(
            f"x is {_name(x.dtype)} and the weights of this {module} are {_name(weight.dtype)}; convert one: "
            f"x.to({weight.dtype}), or module.to({x.dtype})."
        )
    return x if x.dtype == weight.dtype else x.to(weight.dtype)


def first_few(rows: Sequence[int]) -> str:
    """Up to five row numbers for a message."""
    return ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")


def _tensor(x: Any, name: str) -> Tensor:
    """A tensor or an array of real numbers as a dense tensor of float32 or float64."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise BadInput(f"{name} has masked entries; fill or drop them first.")
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "fiub":
            raise BadInput(f"{name} has dtype {x.dtype}; expected real numbers (float32 or float64).")
        kept = x.dtype if x.dtype in (np.dtype("=f4"), np.dtype("=f8"), np.dtype("=f2")) else np.dtype("=f8")
        x = torch.from_numpy(np.array(x, dtype=kept, order="C"))
    if not isinstance(x, Tensor):
        raise BadInput(f"{name} is a {type(x).__name__}; expected a torch tensor or a numpy array of shape (n, p).")
    check_dense(x, name)
    if x.is_complex():
        raise BadInput(f"{name} has dtype {x.dtype}; expected real numbers (float32 or float64).")
    tensor: Tensor = x.detach()
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.to(torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else torch.float64)


def _array(x: Any, name: str) -> np.ndarray[Any, Any]:
    """Numbers in lists, however deep, as an array."""
    try:
        found = np.asarray(x)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths, or entries that cannot be read
        found = np.empty((), dtype=object)
    if found.dtype.kind not in "fiubc":
        raise BadInput(f"{name} = {shown(x)} is not an array of real numbers; expected one.")
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
