"""Tiles on a CPU: a matrix product by torch, the pair equation by compiled loops on as many threads as torch has."""

from __future__ import annotations

from threading import local
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.kernels.fused import cpu
from notsodeep.kernels.fused.engine import Engine
from notsodeep.kernels.fused.threads import shared

_HEIGHT, _WIDTH = 128, 2048  # of a strip of Gram values that a core keeps in its cache
_KERNELS = {"conjugate": cpu.CONJUGATE, "tangent": cpu.TANGENT, "preactivation": cpu.PREACTIVATION}
_EVERY_PAIR = -(1 << 40)  # a diagonal far below the tile
_OWN = local()


class CpuEngine(Engine):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        law = self.law
        kind = np.float32 if self.rows.dtype == torch.float32 else np.float64
        self.form = cpu.Law(
            kind(law.var_a), kind(law.var_b), law.stride, np.array(law.form, kind), law.limits.numpy(), kind(law.tol)
        )
        self.samples = cpu.Side(*(part.numpy() for part in (law.tau, law.inverse, law.mean, law.coefficients)))

    @property
    def sides(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)

    def solve(self, left: slice, right: slice, kernels: tuple[str, ...], outputs: Any, mirrors: Any) -> Tensor | None:
        mirrored = mirrors is not None
        nowhere = np.empty((0, 0), outputs[0].numpy().dtype)
        targets = [
            cpu.Target(_KERNELS[name], outputs[k].numpy(), mirrors[k].numpy() if mirrored else nowhere)
            for k, name in enumerate(kernels)
        ]
        targets += [cpu.Target(cpu.NONE, nowhere, nowhere)] * (2 - len(targets))
        shift = left.start - right.start
        rows, columns = left.stop - left.start, right.stop - right.start
        strips = [
            (slice(top, min(top + _HEIGHT, rows)), slice(start, min(start + _WIDTH, columns)))
            for top in range(0, rows, _HEIGHT)
            for start in range(max(0, top + shift) if mirrored else 0, columns, _WIDTH)
        ]
        found = shared(lambda at: self._strip(left, right, at[0], at[1], mirrored, targets), strips)
        open_pairs = [pairs for pairs in found if pairs is not None]
        return torch.cat(open_pairs) if open_pairs else None

    def _strip(
        self, left: slice, right: slice, rows: slice, columns: slice, mirrored: bool, targets: list[cpu.Target]
    ) -> Tensor | None:
        """A matrix product and all that comes after it, for Gram values that stay in the cache of one core."""
        i, j = _within(left, rows), _within(right, columns)
        gram, marks = _buffers(i.stop - i.start, j.stop - j.start, self.rows.dtype)
        torch.mm(self.rows[i], self.columns[j].T, out=gram)
        if self.symmetric:
            _blank_diagonal(gram, i.start - j.start)
        shift = i.start - j.start if mirrored else _EVERY_PAIR
        own, others = self._side(i), self._side(slice(self.offset + j.start, self.offset + j.stop))
        here = [_part(target, rows, columns, mirrored) for target in targets]
        values, marked = gram.numpy(), marks.numpy()
        found = 0
        for top in range(0, len(values), cpu.ROWS):
            height = min(cpu.ROWS, len(values) - top)
            found += cpu.solve_rows(values, top, height, shift, own, others, self.form, *here, marked)
        if found == 0:
            return None
        return marks.nonzero() + torch.tensor([rows.start, columns.start])

    def _side(self, index: slice) -> cpu.Side:
        known = self.samples
        return cpu.Side(known.tau[index], known.inverse[index], known.mean[index], known.coefficients[:, index])


def _buffers(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gram values, and marks of zero, for a strip of this thread, in memory that it keeps: fresh pages cost more."""
    if not hasattr(_OWN, "memory"):
        _OWN.memory = torch.empty(2, _HEIGHT * _WIDTH, dtype=torch.float64)
    gram, marks = (
        part.view(kind)[: rows * columns].view(rows, columns)
        for part, kind in zip(_OWN.memory, (dtype, torch.uint8), strict=True)
    )
    return gram, marks.zero_()


def _within(outer: slice, inner: slice) -> slice:
    return slice(outer.start + inner.start, outer.start + inner.stop)


def _part(target: cpu.Target, rows: slice, columns: slice, mirrored: bool) -> cpu.Target:
    if target.kernel == cpu.NONE:
        return target
    mirror = target.mirror[columns, rows] if mirrored else target.mirror
    return cpu.Target(target.kernel, target.output[rows, columns], mirror)


def _blank_diagonal(gram: Tensor, shift: int) -> None:
    """A sample meets itself at column = row + shift: ρ = 1 there is for others to answer."""
    rows, columns = gram.shape
    first, last = max(0, -shift), min(rows, columns - shift)
    if first < last:
        index = torch.arange(first, last)
        gram[index, index + shift] = 0.0
