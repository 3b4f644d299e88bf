"""One triangle of tiles of an exact kernel, kept or computed again at every pass."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from notsodeep.arrays import available_bytes
from notsodeep.kernels.prepared import Prepared
from notsodeep.kernels.tiles import tile_pairs

_KEPT_SHARE = 1 / 3
"""Tiles are kept where one triangle of them takes less than this share of the free memory."""


class Triangle:
    """One triangle of a symmetric kernel; kept after the first pass where `keep`, else computed at every pass."""

    def __init__(self, prepared: Prepared, kernel: str, side: int, keep: bool | None) -> None:
        self.prepared, self.kernel, self.side = prepared, kernel, side
        rows = prepared.rows
        needed = len(rows) * (len(rows) + side) // 2 * rows.element_size()
        self.keep = needed < _KEPT_SHARE * available_bytes(rows.device) if keep is None else keep
        self.passes = 0
        """How often the kernel was computed: once where it is kept."""
        self._kept: list[tuple[slice, slice, Tensor]] | None = None

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor]]:
        if self._kept is not None:
            yield from self._kept
            return
        self.passes += 1
        kept = []
        for rows, columns in tile_pairs(len(self.prepared.rows), None, (self.side, self.side)):
            (values,) = self.prepared.tile(rows, columns, (self.kernel,))
            if self.keep:
                kept.append((rows, columns, values))
            yield rows, columns, values
        if self.keep:
            self._kept = kept

    def diagonal(self) -> Tensor:
        exact: Tensor = getattr(self.prepared.equation.diagonal(slice(None)), self.kernel)
        return exact.to(self.prepared.rows)
