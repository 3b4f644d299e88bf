"""Tiles on a CPU: a matrix product by torch, the pair equation by compiled loops on as many threads as torch has."""

from __future__ import annotations

from threading import local
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.kernels.exact.compiled import numba_loops as cpu
from notsodeep.kernels.exact.compiled.engine import Engine, Tile
from notsodeep.kernels.exact.tiles import on_diagonal
from notsodeep.kernels.names import Kernel
from notsodeep.runtime.threads import shared

_HEIGHT, _WIDTH = 128, 2048  # of a strip of Gram values that a core keeps in its cache
_CODES: dict[str, int] = {Kernel.CONJUGATE: cpu.CONJUGATE, Kernel.TANGENT: cpu.TANGENT, Kernel.PREACTIVATION: cpu.PREACTIVATION}
_EVERY_PAIR = -(1 << 40)  # a diagonal far below the tile
_OWN = local()


class CpuEngine(Engine):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        kind = np.float32 if self.rows.dtype == torch.float32 else np.float64
        self.forms = [
            cpu.Law(
                *(kind(law.var_a), kind(law.var_b), law.stride, np.array(law.form, kind), law.limits.numpy(), kind(law.tol)),
                *(kind(law.gain), kind(law.start), law.kinds),
            )
            for law in self.laws
        ]
        self.samples = [
            cpu.Side(law.tau.numpy(), law.inverse.numpy(), _apart(law.mean).numpy(), _apart(law.coefficients).numpy())
            for law in self.laws
        ]

    @property
    def sides(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)

    def solve(self, tile: Tile) -> Tensor | None:
        outputs, mirrored = tile.outputs, tile.mirrors is not None
        targets = [
            (_CODES[name], outputs[k], tile.mirrors[k] if mirrored else outputs[k][:0]) for k, name in enumerate(tile.kernels)
        ]
        targets += [(cpu.NONE, outputs[0][:0], outputs[0][:0])] * (2 - len(targets))
        shift = tile.left.start - tile.right.start
        rows, columns = tile.shape
        strips = [
            (slice(top, min(top + _HEIGHT, rows)), slice(start, min(start + _WIDTH, columns)))
            for top in range(0, rows, _HEIGHT)
            for start in range(max(0, top + shift) if mirrored else 0, columns, _WIDTH)
        ]
        found = shared(lambda at: self._strip(tile, *at, targets), strips)
        open_pairs = [pairs for pairs in found if pairs is not None]
        return torch.cat(open_pairs) if open_pairs else None

    def _strip(self, tile: Tile, rows: slice, columns: slice, targets: list[tuple[int, Tensor, Tensor]]) -> Tensor | None:
        """A matrix product and the kernels from it, for Gram values that stay in the cache of one core."""
        i, j = _within(tile.left, rows), _within(tile.right, columns)
        gram, marks, tangent = _buffers(i.stop - i.start, j.stop - j.start, self.rows.dtype)
        torch.mm(self.rows[i], self.columns[j].T, out=gram)
        own = on_diagonal(i, j, gram.device) if self.symmetric else None
        if own is not None:  # the diagonal is computed elsewhere
            gram[own] = 0.0
        shift = i.start - j.start if tile.mirrors is not None else _EVERY_PAIR
        here = [_target(kernel, output[rows, columns], mirror[columns, rows]) for kernel, output, mirror in targets]
        layers = self._layers(i, j, gram, tangent, here)
        found = 0
        for top in range(0, len(gram), cpu.ROWS):
            height = min(cpu.ROWS, len(gram) - top)
            for theta, known, into in layers:
                found += cpu.solve_rows(gram.numpy(), theta, top, height, shift, *known, *into, marks.numpy())
        if found == 0:
            return None
        return marks.nonzero() + torch.tensor([rows.start, columns.start])

    def _layers(
        self, i: slice, j: slice, gram: Tensor, tangent: Tensor, targets: list[cpu.Destination]
    ) -> list[tuple[Any, tuple[Any, ...], list[cpu.Destination]]]:
        """For each layer: Θ of the layer before, its sides and law, and the targets, which the next layer reads."""
        conjugate_alone = all(target.kernel in (cpu.CONJUGATE, cpu.NONE) for target in targets)
        between = [
            _target(cpu.CONJUGATE, gram, gram[:0]),
            _target(cpu.NONE if conjugate_alone else cpu.TANGENT, tangent, tangent[:0]),
        ]
        last = len(self.laws) - 1
        across = slice(self.offset + j.start, self.offset + j.stop)
        return [
            (
                tangent[: 0 if layer == 0 else None].numpy(),
                (_side(samples, i), _side(samples, across), form),
                targets if layer == last else between,
            )
            for layer, (samples, form) in enumerate(zip(self.samples, self.forms, strict=True))
        ]


def _side(known: cpu.Side, index: slice) -> cpu.Side:
    return cpu.Side(known.tau[index], known.inverse[index], known.mean[:, index], known.coefficients[:, index])


def _buffers(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Gram values, zeroed marks and a tangent kernel for a strip, in memory that this thread keeps: fresh pages cost more."""
    if not hasattr(_OWN, "memory"):
        _OWN.memory = torch.empty(3, _HEIGHT * _WIDTH, dtype=torch.float64)
    gram, marks, tangent = (
        part.view(kind)[: rows * columns].view(rows, columns)
        for part, kind in zip(_OWN.memory, (dtype, torch.uint8, dtype), strict=True)
    )
    return gram, marks.zero_(), tangent


def _within(outer: slice, inner: slice) -> slice:
    return slice(outer.start + inner.start, outer.start + inner.stop)


def _target(kernel: int, output: Tensor, mirror: Tensor) -> cpu.Destination:
    return cpu.Destination(kernel, *_flat(output), *_flat(mirror))


def _flat(matrix: Tensor) -> tuple[Any, int]:
    """A matrix whose rows are contiguous, from its first entry to its last, and the distance of its rows."""
    (rows, columns), wide = matrix.shape, matrix.stride(0)
    entries = (rows - 1) * wide + columns if rows else 0
    return matrix.as_strided((entries,), (1,)).numpy(), wide


def _apart(coefficients: Tensor) -> Tensor:
    """A copy whose rows are apart in memory even for a single term: one type for the compiler."""
    terms, n = coefficients.shape
    room = coefficients.new_zeros(max(terms, 2), n + 1)
    room[:terms, :n] = coefficients
    return room[:, :n]
