"""Exact kernels that are too large to hold: one tile at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from notsodeep.arguments import shown
from notsodeep.arrays import Array, like
from notsodeep.errors import BadInput
from notsodeep.kernels.prepared import prepare
from notsodeep.kernels.tiles import TileSize, tile_pairs, tile_size
from notsodeep.theory.architecture import Network

KERNELS = ("conjugate", "tangent", "preactivation")


@dataclass(frozen=True, eq=False)
class KernelTile:
    """The entries of the kernels in `rows` × `columns`; a kernel that was not asked for is None."""

    rows: slice
    columns: slice
    conjugate: Any = None
    tangent: Any = None
    preactivation: Any = None

    @property
    def mirrored(self) -> KernelTile:
        """The tile across the diagonal of a symmetric kernel."""
        across = {name: None if (own := getattr(self, name)) is None else own.T for name in KERNELS}
        return KernelTile(self.columns, self.rows, **across)


def kernel_names(asked: Any) -> tuple[str, ...]:
    """One name or several, each once, as a tuple; `BadInput` if there is no such kernel."""
    given = tuple(asked) if isinstance(asked, list | tuple | set | frozenset | dict) else (asked,)
    strange = [name for name in given if not isinstance(name, str) or name not in KERNELS]
    unknown = [name[:60] if isinstance(name, str) else shown(name) for name in strange]
    if unknown or not given:
        raise BadInput(f"There is no kernel {', '.join(unknown) or '()'}; choose from {', '.join(KERNELS)}.")
    return tuple(dict.fromkeys(given))


@torch.no_grad()
def kernel_tiles(
    net: Network,
    x: Array,
    x2: Array | None = None,
    tile: TileSize = None,
    *,
    kernels: str | Sequence[str] = ("conjugate", "tangent"),
    tau0: float | None = None,
) -> Iterator[KernelTile]:
    """The exact kernels of x (against x2), tile by tile, each entry once; `tile` is a side, or (rows, columns).

    Of a symmetric kernel (no x2) a triangle is computed: each tile off the diagonal is followed by its mirror image. Rows that
    are whole come with `tile=(rows, len(x2))`, and x2 = x where the kernel is square.
    """
    names = kernel_names(kernels)
    prepared = prepare(net, x, x2, tau0, tangent=names != ("conjugate",))
    n, n2 = prepared.shape
    hand_back = like(x)
    sides = tile_size(tile, prepared.rows.device)
    if prepared.symmetric and sides[0] != sides[1]:
        raise BadInput(
            f"tile = {sides} of a symmetric kernel is not square; give one side, or x2 = x for any rectangle."
        )
    for rows, columns in tile_pairs(n, None if prepared.symmetric else n2, sides):
        values = prepared.tile(rows, columns, names)
        found = KernelTile(rows, columns, **{k: hand_back(v) for k, v in zip(names, values, strict=True)})
        yield found
        if prepared.symmetric and rows != columns:
            yield found.mirrored
