"""Samples read block by block, from memory or files, and checked as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arguments import count, instance, shown
from notsodeep.arrays import check_dense, samples
from notsodeep.data.standardiser import Standardiser
from notsodeep.errors import BadInput

_ENTRIES = 2**22  # of a block: large enough for a matrix product, small beside the data
_RUN = 64  # consecutive rows of a sample, where rows cannot be picked one by one


@dataclass(frozen=True, eq=False)
class Rows:
    """x (n, p), never copied whole: a tensor, a numpy array or memory map, or what gives rows for x[start:stop] (Zarr).

    Blocks come in `dtype`: that of x if it is float32 or float64, else float64. A `standardiser` is applied to each.
    """

    source: Any
    dtype: torch.dtype
    block: int
    standardiser: Standardiser | None = None
    name: str = "x"

    @classmethod
    def of(
        cls,
        x: Any,
        block: int | None = None,
        dtype: torch.dtype | None = None,
        standardiser: Standardiser | None = None,
        name: str = "x",
    ) -> Rows:
        """The rows of x; `block` of them at once, by default some four million numbers."""
        if isinstance(x, Tensor):
            check_dense(x, name)
        shape = getattr(x, "shape", None)
        if shape is None or not hasattr(x, "__getitem__"):
            raise BadInput(
                f"{name} is a {type(x).__name__}; expected an array (n, p), in memory or mapped from a file."
            )
        if len(shape) != 2 or 0 in shape:
            raise BadInput(f"{name} has shape {tuple(shape)}; expected (n, p), one row a sample, and at least one.")
        block = None if block is None else count(block, "block")
        if not (dtype is None or isinstance(dtype, torch.dtype)) or dtype not in (None, torch.float32, torch.float64):
            raise BadInput(f"dtype = {shown(dtype)}; sums are taken of torch.float32 or torch.float64.")
        if standardiser is not None:
            instance(standardiser, Standardiser, "standardiser", "a Standardiser, as Standardiser.of(x) gives one")
        return cls(x, dtype or _dtype(x), block or max(64, _ENTRIES // shape[1]), standardiser, name)

    @property
    def shape(self) -> tuple[int, int]:
        n, p = self.source.shape
        return int(n), int(p)

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, index: slice) -> Tensor:
        """Some consecutive rows, or `BadInput` that says which of all rows is wrong."""
        return self._checked(self.source[index], torch.arange(index.start, index.stop))

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Every row once: (where, rows)."""
        n = len(self)
        for start in range(0, n, self.block):
            index = slice(start, min(start + self.block, n))
            yield index, self.read(index)

    def sample(self, size: int, generator: torch.Generator | None = None) -> Tensor:
        """`size` rows without repetition, in their order: each at random, or runs of 64 where only slices can be read."""
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
            shown = ", ".join(map(str, wrong[:5])) + (", …" if len(wrong) > 5 else "")
            raise BadInput(
                f"{self.name} holds NaN or infinity in row {shown} of {len(self)}; drop or fill these rows first.",
                rows=wrong,
            ) from None
        rows = rows.to(self.dtype)
        return rows if self.standardiser is None else self.standardiser(rows)


def _dtype(x: Any) -> torch.dtype:
    narrow = str(getattr(x, "dtype", "")).removeprefix("torch.") in ("float32", "float16", "bfloat16")
    return torch.float32 if narrow else torch.float64
