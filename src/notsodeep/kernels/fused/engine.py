"""Tiles by a fused solver; what it leaves open is done by the pair equation itself, in float64."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from notsodeep.kernels.fused.law import PairLaw, pair_laws
from notsodeep.kernels.pairs import ExplicitPairs, ImplicitPairs, PairEquation

_LISTED_AT_ONCE = 1 << 22, 1 << 26  # numbers of the samples gathered for a list of pairs, on a CPU and on CUDA
_WORTH_COMPILING = 1 << 19  # pairs


class Engine(ABC):
    """Kernels of the samples `rows` against `columns`; of one set against itself, without the diagonal.

    A DEQ has one law, an explicit network one for each layer.
    """

    def __init__(
        self,
        laws: tuple[PairLaw, ...],
        equation: ImplicitPairs | ExplicitPairs,
        rows: Tensor,
        columns: Tensor,
        symmetric: bool,
    ) -> None:
        self.laws, self.equation, self.symmetric = laws, equation, symmetric
        self.rows, self.columns = rows.contiguous(), columns.contiguous()
        self.offset = 0 if symmetric else len(rows)

    @abstractmethod
    def solve(self, left: slice, right: slice, kernels: tuple[str, ...], outputs: Any, mirrors: Any) -> Tensor | None:
        """Write the kernels (one or two) of a tile, and of a mirrored one what is above the diagonal to both places; the open
        pairs, (pairs, 2), counted within the tile, or None."""

    @property
    @abstractmethod
    def sides(self) -> tuple[int, int]:
        """A tile that suits the device: (rows, columns)."""

    def tile(self, left: slice, right: slice, kernels: tuple[str, ...], outputs: Any, mirrors: Any = None) -> None:
        """Write a tile, with nothing left open."""
        for start in range(0, len(kernels), 2):
            part = slice(start, start + 2)
            own = outputs[part], None if mirrors is None else mirrors[part]
            open_pairs = self.solve(left, right, kernels[part], *own)
            if open_pairs is not None:
                self._finish(left, right, kernels[part], *own, open_pairs)

    def fill(self, outputs: tuple[Tensor, ...], kernels: tuple[str, ...]) -> None:
        """All of the kernels, in strips of rows; of a symmetric one, from the diagonal on."""
        n, n2 = outputs[0].shape
        height, width = self.sides
        for top in range(0, n, height):
            left = slice(top, min(top + height, n))
            for start in range(top if self.symmetric else 0, n2, width):
                right = slice(start, min(start + width, n2))
                mirrors = [output[right, left] for output in outputs] if self.symmetric else None
                self.tile(left, right, kernels, [output[left, right] for output in outputs], mirrors)

    def _finish(
        self, left: slice, right: slice, kernels: tuple[str, ...], outputs: Any, mirrors: Any, open_pairs: Tensor
    ) -> None:
        at_once = max(1, _LISTED_AT_ONCE[self.rows.is_cuda] // self.rows.shape[1])
        for part in open_pairs.split(at_once):
            i, j = part[:, 0] + left.start, part[:, 1] + right.start
            gram = (self.rows[i].to(torch.float64) * self.columns[j].to(torch.float64)).sum(1)
            exact = self.equation.pairs(i, j + self.offset, gram)
            for index, name in enumerate(kernels):
                values = getattr(exact, name).to(outputs[index].dtype)
                outputs[index][part[:, 0], part[:, 1]] = values
                if mirrors is not None:
                    mirrors[index][part[:, 1], part[:, 0]] = values


def engine_for(
    equation: PairEquation, rows: Tensor, columns: Tensor, symmetric: bool, eager: bool = False
) -> Engine | None:
    """The fused solver of these samples' device, if there is one and the kernel is large enough to be worth it, or `eager`."""
    if len(rows) * len(columns) < _WORTH_COMPILING and not eager:
        return None
    assert isinstance(equation, ImplicitPairs | ExplicitPairs)
    needed = "triton" if rows.is_cuda else "numba"
    if rows.device.type not in ("cpu", "cuda") or importlib.util.find_spec(needed) is None:
        return None
    laws = pair_laws(equation, rows.dtype)
    if laws is None:
        return None
    if rows.is_cuda:
        from notsodeep.kernels.fused.gpu_engine import GpuEngine

        return GpuEngine(laws, equation, rows, columns, symmetric)
    from notsodeep.kernels.fused.cpu_engine import CpuEngine

    return CpuEngine(laws, equation, rows, columns, symmetric)
