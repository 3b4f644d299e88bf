"""Tiles: their sizes, their order, and writing them; nothing of the size of the result besides the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arguments import is_whole, shown
from notsodeep.errors import BadInput

# Small enough for a core's cache to hold a tile and its few temporaries; a GPU wants work, not cache.
_CPU_TILE, _CUDA_TILE = 384, 4096
_LARGEST_TILE = 2**40  # more than any number of samples

TileSize = int | tuple[int, int] | None
"""The side of a tile, its (rows, columns), or None for a size that suits the device."""


def tile_size(tile: TileSize, device: torch.device) -> tuple[int, int]:
    """(rows, columns) of a tile; raises BadInput for anything else."""
    if tile is None:
        tile = _CUDA_TILE if device.type == "cuda" else _CPU_TILE
    sides = tuple(tile) if isinstance(tile, tuple | list) else (tile, tile)
    if len(sides) != 2 or not all(is_whole(side) and side >= 1 for side in sides):
        raise BadInput(f"tile = {shown(tile)}; expected the side of a tile, at least 1, or its (rows, columns).")
    return min(int(sides[0]), _LARGEST_TILE), min(int(sides[1]), _LARGEST_TILE)


def check_square(sides: tuple[int, int], remedy: str = "; give one side") -> None:
    """Raise BadInput unless a tile of a symmetric kernel is square."""
    if sides[0] != sides[1]:
        raise BadInput(f"tile = {sides} of a symmetric kernel is not square{remedy}.")


def blocks(size: int, side: int) -> list[slice]:
    """Consecutive slices of length `side` that cover range(size)."""
    return [slice(start, min(start + side, size)) for start in range(0, size, side)]


def tile_pairs(n: int, n2: int | None, sides: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    """(row block, column block) of a rectangle, or of one triangle of a square (n2 is None), cut squarely."""
    for i, rows in enumerate(blocks(n, sides[0])):
        for columns in blocks(n, sides[0])[i:] if n2 is None else blocks(n2, sides[1]):
            yield rows, columns


def on_diagonal(rows: slice, columns: slice, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """The entries of a tile in which a sample meets itself; None where it has none."""
    first, last = max(rows.start, columns.start), min(rows.stop, columns.stop)
    index = torch.arange(first, max(first, last), device=device)
    return (index - rows.start, index - columns.start) if first < last else None


def write(output: Any, rows: slice, columns: slice, values: Tensor) -> None:
    """output[rows, columns] = values, for a tensor, a numpy array or memory map, or a Zarr array."""
    if isinstance(output, Tensor):
        output[rows, columns] = values
    else:
        output[rows, columns] = np.ascontiguousarray(values.cpu().numpy())


def fill(
    outputs: tuple[Any, ...],
    symmetric: bool,
    tile: Callable[[slice, slice], tuple[Tensor, ...]],
    sides: tuple[int, int] | None = None,
) -> None:
    """Write tile(rows, columns) into each output; of a symmetric one, compute one triangle and write both."""
    n, n2 = outputs[0].shape
    device = outputs[0].device if isinstance(outputs[0], Tensor) else torch.device("cpu")
    for rows, columns in tile_pairs(n, None if symmetric else n2, sides or tile_size(None, device)):
        for output, values in zip(outputs, tile(rows, columns), strict=True):
            write(output, rows, columns, values)
            if symmetric and rows != columns:
                write(output, columns, rows, values.T)
