"""Samples read block by block, from memory or files, and checked as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arguments import count, instance, shown
from notsodeep.arrays import check_dense, first_few, samples
from notsodeep.data.standardiser import Standardiser
from notsodeep.errors import BadInput

_ENTRIES = 2**22  # of a block: large enough for a matrix product, small compared with the data
_RUN = 64  # consecutive rows drawn together from a source that only reads slices


@dataclass(frozen=True, eq=False)
class SampleBlocks:
    """Samples x (n, p), read block by block and never copied whole."""

    source: Any
    """A tensor, a numpy array or memory map, or anything that gives rows by x[start:stop], such as a Zarr array."""
    dtype: torch.dtype
    """Of the blocks."""
    block: int
    """Rows per block."""
    standardiser: Standardiser | None = None
    """Applied to each block."""
    name: str = "x"
    """For errors."""

    @classmethod
    def of(
        cls,
        x: Any,
        block: int | None = None,
        dtype: torch.dtype | None = None,
        standardiser: Standardiser | None = None,
        name: str = "x",
    ) -> SampleBlocks:
        """The rows of x: by default in blocks of four million numbers, in float32 if x is no more precise, else in float64.

        Blocks stay as they are.
        """
        if isinstance(x, SampleBlocks):
            return x
        if isinstance(x, Tensor):
            check_dense(x, name)
        shape = getattr(x, "shape", None)
        if shape is None or not hasattr(x, "__getitem__"):
            raise BadInput(f"{name} is a {type(x).__name__}; expected an array (n, p), in memory or mapped from a file.")
        if len(shape) != 2 or 0 in shape:
            raise BadInput(f"{name} has shape {tuple(shape)}; expected (n, p), one row per sample, and at least one.")
        block = None if block is None else count(block, "block")
        if not (dtype is None or isinstance(dtype, torch.dtype)) or dtype not in (None, torch.float32, torch.float64):
            raise BadInput(f"dtype = {shown(dtype)}; sums are taken of torch.float32 or torch.float64.")
        if standardiser is not None:
            instance(standardiser, Standardiser, "standardiser", "a Standardiser, as Standardiser.of(x) gives one")
        narrow = str(getattr(x, "dtype", "")).removeprefix("torch.") in ("float32", "float16", "bfloat16")
        dtype = dtype or (torch.float32 if narrow else torch.float64)
        return cls(x, dtype, block or max(64, _ENTRIES // shape[1]), standardiser, name)

    @property
    def shape(self) -> tuple[int, int]:
        n, p = self.source.shape
        return int(n), int(p)

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, index: slice) -> Tensor:
        """Consecutive rows; errors count rows from the first of all."""
        return self._checked(self.source[index], torch.arange(index.start, index.stop))

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """(place, rows) of each block in turn."""
        n = len(self)
        for start in range(0, n, self.block):
            index = slice(start, min(start + self.block, n))
            yield index, self.read(index)

    def sample(self, size: int, generator: torch.Generator | None = None) -> Tensor:
        """`size` random rows, each at most once, in order; runs of 64 rows from a source that only reads slices."""
        n, size = len(self), count(size, "size")
        if size >= n:
            return torch.cat([part for _, part in self.blocks()])
        generator = generator or torch.Generator().manual_seed(0)
        if isinstance(self.source, Tensor | np.ndarray):
            places = torch.randperm(n, generator=generator)[:size].sort().values
            index = places.to(self.source.device) if isinstance(self.source, Tensor) else places.numpy()
            return self._checked(self.source[index], places)
        runs = torch.randperm(-(-n // _RUN), generator=generator)[: -(-size // _RUN)].sort().values * _RUN
        return torch.cat([self.read(slice(start, min(start + _RUN, n))) for start in runs.tolist()])

    def _checked(self, part: Any, places: Tensor) -> Tensor:
        try:
            rows = samples(part if isinstance(part, Tensor) else np.asarray(part), self.name, self.dtype)
        except BadInput as error:
            if "rows" not in error.data:
                raise
            wrong = places[error.data["rows"]].tolist()
            raise BadInput(
                f"{self.name} holds NaN or infinity in row {first_few(wrong)} of {len(self)}; drop or fill these rows first.",
                rows=wrong,
            ) from None
        rows = rows.to(self.dtype)
        return rows if self.standardiser is None else self.standardiser(rows)
