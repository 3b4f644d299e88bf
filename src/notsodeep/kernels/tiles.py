"""Kernels tile by tile: nothing of the size of the result besides the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Small enough for a core's cache to hold a tile and its few temporaries; a GPU wants work, not cache.
_CPU_TILE, _CUDA_TILE = 384, 4096


def blocks(size: int, device: torch.device) -> list[slice]:
    """Consecutive slices of one tile's side that cover range(size)."""
    side = _CUDA_TILE if device.type == "cuda" else _CPU_TILE
    return [slice(start, min(start + side, size)) for start in range(0, size, side)]


def tile_pairs(n: int, n2: int | None, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """(row block, column block) of a rectangle, or of one triangle of a square (n2 is None)."""
    for i, rows in enumerate(blocks(n, device)):
        for columns in blocks(n, device)[i:] if n2 is None else blocks(n2, device):
            yield rows, columns


def fill(
    outputs: tuple[Tensor, ...],
    symmetric: bool,
    tile: Callable[[slice, slice], tuple[Tensor, ...]],
) -> None:
    """Write tile(rows, columns) into each output; of a symmetric one, a triangle is computed and both are written."""
    n, n2 = outputs[0].shape
    for rows, columns in tile_pairs(n, None if symmetric else n2, outputs[0].device):
        for output, values in zip(outputs, tile(rows, columns), strict=True):
            output[rows, columns] = values
            if symmetric and rows != columns:
                output[columns, rows] = values.T
