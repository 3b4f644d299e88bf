"""What calls cost: their time side by side, and the operations of their matrix products."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


def seconds(
    calls: Sequence[Callable[[], object]], device: torch.device, runs: int, most: float = math.inf
) -> list[list[float]]:
    """The times of several runs of each call, in turn: a busy machine then slows all of them.

    Args:
        calls: The calls.
        device: Their device.
        runs: How many of each.
        most: Seconds after which no further one of all of them begins.
    """
    began = time.perf_counter()
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    times: list[list[float]] = [[] for _ in calls]
    for run in range(runs):
        if run and time.perf_counter() - began > most:
            break
        for call, spent in zip(calls, times, strict=True):
            wait(device)
            started = time.perf_counter()
            call()
            wait(device)
            spent.append(time.perf_counter() - started)
    return times


def _fourier(shape: torch.Size, axes: Sequence[int], *_: Any, **__: Any) -> int:
    """2.5 N log₂ N of a real transform of N numbers."""
    size = math.prod(shape[axis] for axis in axes)
    return int(2.5 * math.prod(shape) * math.log2(max(size, 2)))


def _product(*args: Any, out_val: Any = None, **_: Any) -> int:
    """2 for each number of a sparse or dense matrix and each column, or row, of what it is multiplied with."""
    left, right = [arg for arg in args if isinstance(arg, torch.Tensor)][-2:]
    first = left.layout != torch.strided or right.layout == torch.strided
    matrix = left if first else right
    count = matrix.numel() if matrix.layout == torch.strided else matrix._nnz()
    return 2 * int(count) * (out_val.shape[-1 if first else 0] if isinstance(out_val, torch.Tensor) and out_val.ndim > 1 else 1)


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """Of both products of an attention."""
    return int(sdpa_flop_count(query, key, value))


_product._get_raw = True  # type: ignore[attr-defined]  # the counter passes tensors, not their shapes
_ATEN = torch.ops.aten
_MORE: dict[Any, Callable[..., int]] = {_ATEN._fft_r2c: _fourier, _ATEN._fft_c2r: _fourier, _ATEN._fft_c2c: _fourier}
_MORE |= {_ATEN._sparse_mm: _product, _ATEN._sparse_addmm: _product, _ATEN.mv: _product, _ATEN.dot: _product}
_MORE |= {_ATEN.mm: _product, _ATEN.addmm: _product, _ATEN.addmv: _product}  # which take sparse matrices too
_MORE |= {_ATEN._scaled_dot_product_flash_attention_for_cpu: _attention}


def operations(call: Callable[[], object]) -> int:
    """Multiplications and additions of the matrix products, convolutions, attentions and Fourier transforms of one call."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one kernel for a whole layer, in which no products are seen
    try:
        # Without a gradient: a module that keeps its last state would keep the graph as well, and could not be copied.
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_MORE) as counter:
            call()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    total: int = counter.get_total_flops()
    return total
