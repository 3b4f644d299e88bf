"""Checks at the door: arrays that can be used, results that fit in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep._types import Array
from notsodeep.errors import BadInput

_LARGEST = 1e50


def samples(x: Array, name: str = "x") -> Tensor:
    """`x` as an (n, p) float tensor on its own device, or `BadInput` that says which row is wrong."""
    tensor = _as_tensor(x, name)
    if tensor.ndim != 2:
        hint = "; one sample is x[None, :]" if tensor.ndim == 1 else ""
        raise BadInput(f"{name} has shape {tuple(tensor.shape)}; expected (n, p), one row a sample{hint}.")
    n, p = tensor.shape
    if n == 0 or p == 0:
        raise BadInput(f"{name} is empty: shape {(n, p)}; at least one sample of one feature is needed.")
    smallest, largest = (float(end) for end in tensor.aminmax())  # NaN if there is one
    if not (math.isfinite(smallest) and math.isfinite(largest)):
        finite = torch.isfinite(tensor).all(dim=1)
        rows = torch.nonzero(~finite).flatten().tolist()
        shown = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
        raise BadInput(
            f"{name} holds NaN or infinity in {len(rows)} of {n} rows (row {shown}); drop or fill these rows first.",
            rows=rows,
        )
    largest = max(-smallest, largest)
    if largest > _LARGEST or 0.0 < largest < 1.0 / _LARGEST:
        raise BadInput(
            f"The largest entry of {name} is {largest:.1e}; beyond {_LARGEST:.0e} (or all below {1 / _LARGEST:.0e}) products "
            "of norms leave the range of float64. Rescale the data."
        )
    return tensor


def _as_tensor(x: Any, name: str) -> Tensor:
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise BadInput(f"{name} has masked entries; fill or drop them first.")
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "fiub":
            raise BadInput(f"{name} has dtype {x.dtype}; expected real numbers (float32 or float64).")
        kept = x.dtype if x.dtype in (np.dtype("=f4"), np.dtype("=f8"), np.dtype("=f2")) else np.dtype("=f8")
        x = torch.from_numpy(np.array(x, dtype=kept, order="C"))
    if not isinstance(x, Tensor):
        raise BadInput(f"{name} is a {type(x).__name__}; expected a torch tensor or a numpy array of shape (n, p).")
    if x.layout != torch.strided:
        raise BadInput(f"{name} is a sparse tensor; expected a dense one: {name}.to_dense().")
    if x.is_complex():
        raise BadInput(f"{name} has dtype {x.dtype}; expected real numbers (float32 or float64).")
    tensor: Tensor = x.detach()
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.to(torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else torch.float64)


def positive(value: Any, name: str, hint: str = "") -> float:
    """`value` as a finite float > 0, or `BadInput`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name} = {value!r} is not a number; expected a positive number{hint}.") from None
    if not (0.0 < number < float("inf")):
        raise BadInput(f"{name} = {number:g} must be a positive, finite number{hint}.")
    return number


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number of Python or NumPy; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def like(x: Array) -> Callable[[Tensor], Any]:
    """A function that hands a tensor back in the kind of `x`: numpy for numpy, tensor for tensor."""
    if isinstance(x, np.ndarray):
        return lambda result: result.cpu().numpy()
    return lambda result: result


def refuse_if_too_large(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device, instead: str, what: str | None = None
) -> None:
    """Raise `BadInput` before a (rows, columns) result is allocated that the device cannot hold; `what` takes the memory, a
    kernel unless told."""
    needed = rows * columns * torch.empty(0, dtype=dtype).element_size()
    available = available_bytes(device)
    if needed > available:
        raise BadInput(
            f"{what or f'A {rows} × {columns} kernel'} in {str(dtype).removeprefix('torch.')} takes {needed / 2**30:.1f} GiB; "
            f"{available / 2**30:.1f} GiB are free on {device}. Use {instead}.",
            needed=needed,
            available=available,
        )


def unwritten(rows: int, columns: int, like: Tensor) -> Tensor:
    """An uninitialised matrix of `like`'s dtype on its device. On a CPU it is NumPy's, which asks for huge pages: to be handed
    its memory page by page takes a large matrix a third of the time that its entries do."""
    if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.float64):
        return torch.empty(rows, columns, dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.empty((rows, columns), np.float32 if like.dtype == torch.float32 else np.float64))


def available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as lines:  # MemAvailable counts the page cache, which SC_AVPHYS_PAGES does not
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
