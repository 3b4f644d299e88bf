"""Tiles on CUDA: one kernel for all of them in float32; in float64 a matrix product and the same kernel after it.

An explicit network runs it once per layer, on the results of the layer before.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from notsodeep.kernels.exact.compiled import triton_kernel as gpu
from notsodeep.kernels.exact.compiled.engine import Engine, PairLaw, Tile
from notsodeep.kernels.names import OF_OUTPUTS, Kernel

_CODES: dict[str, Any] = {Kernel.CONJUGATE: gpu.CONJUGATE, Kernel.TANGENT: gpu.TANGENT, Kernel.PREACTIVATION: gpu.PREACTIVATION}
_SINGLE = {"HEIGHT": 128, "WIDTH": 64, "DEPTH": 64, "num_warps": 8, "num_stages": 3}
_DOUBLE = {"HEIGHT": 64, "WIDTH": 64, "DEPTH": 32, "num_warps": 8, "num_stages": 1}
_PADDING = 64
_LARGEST_EXPONENT = 12
_BLOCKS_AT_ONCE = 2048  # of those with open pairs
_SPLIT_AT_ONCE = 8192  # samples
_LARGEST_GRAM = 8192  # side of a tile of values between two kernels


class GpuEngine(Engine):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.numbers = [
            law.tau.new_tensor([law.var_a, law.var_b, *law.form, float(law.limits[-1]), law.tol, law.gain, law.start])
            for law in self.laws
        ]
        whole = None if self.given else split(self.rows)
        self.split = whole, whole if self.symmetric or self.given else split(self.columns)

    @property
    def given(self) -> bool:
        """Whether the Gram values come from a matrix product before the kernel."""
        return self.rows.dtype == torch.float64

    @property
    def sides(self) -> tuple[int, int]:
        return (_LARGEST_GRAM, _LARGEST_GRAM) if self.given or len(self.laws) > 1 else (len(self.rows), len(self.columns))

    def solve(self, tile: Tile) -> Tensor | None:
        left, right = tile.left, tile.right
        known: list[Tensor | None] = [self.rows[left] @ self.columns[right].T if self.given else None, None]
        between = tile.kernels if tile.kernels == (Kernel.CONJUGATE,) else OF_OUTPUTS
        *hidden, last = range(len(self.laws))
        for layer in hidden:
            # Every entry is read before it is written, by the same block, so each layer may take the place of the one before.
            kept = [self.rows.new_empty(*tile.shape) if old is None else old for old in known[: len(between)]]
            self._layer(layer, Tile(left, right, between, kept), known)
            known[: len(kept)] = kept
        flagged = self._layer(last, tile, known).nonzero().flatten()
        if not len(flagged):
            return None
        pairs = self._open_pairs(flagged, tile.outputs[0], self.blocks)
        # On the diagonal a block holds its own mirror image: each pair once.
        return pairs if tile.mirrors is None else pairs[pairs[:, 1] > pairs[:, 0] + left.start - right.start]

    @property
    def blocks(self) -> dict[str, int]:
        """The shape of a block, and how it is compiled."""
        return _DOUBLE if self.given else _SINGLE

    def _layer(self, layer: int, tile: Tile, known: list[Tensor | None]) -> Tensor:
        """Write a layer's kernels and return the flags of its blocks. `known` are G (or the Gram values) and Θ of the layer
        before; without G, the kernel computes the samples' products."""
        left, right, shape, (gram, theta), (n, n2) = tile.left, tile.right, self.blocks, known, tile.shape
        down, across = _squares(n, n2, shape)
        flags = torch.zeros(down * across * gpu.GROUP**2, dtype=torch.int32, device=self.rows.device)
        outs, across_outs = list(tile.outputs), list(tile.outputs if tile.mirrors is None else tile.mirrors)
        kinds = [_CODES[name] for name in tile.kernels] + [gpu.NONE] * (2 - len(tile.kernels))
        law = self.laws[layer]
        parts = [*self._parts(0, left), *self._parts(1, right)]
        with torch.cuda.device(self.rows.device):
            gpu.solve_blocks[(len(flags),)](
                *parts, self.rows if gram is None else gram, self.rows if theta is None else theta, n, n2, parts[0].shape[1],
                *_side(law, left), *_side(law, slice(self.offset + right.start, self.offset + right.stop)),
                law.limits, len(law.limits), self.numbers[layer],
                outs[0], outs[-1], across_outs[0], across_outs[-1], outs[0].stride(0), across_outs[0].stride(0),
                left.start - right.start, flags,
                KIND1=kinds[0], KIND2=kinds[1], STRIDE=law.stride, GIVEN=gram is not None, THETA=theta is not None,
                MIRRORED=tile.mirrors is not None, SYMMETRIC=self.symmetric, GROUP=gpu.GROUP, **shape,
            )  # fmt: skip
        return flags

    def _parts(self, side: int, index: slice) -> list[Tensor]:
        split_samples = self.split[side]
        if split_samples is None:
            return [self.rows] * 3
        return [part[index] for part in split_samples]

    @staticmethod
    def _open_pairs(flagged: Tensor, output: Tensor, shape: dict[str, int]) -> Tensor:
        """Where the flagged blocks hold NaN."""
        height, width, group = shape["HEIGHT"], shape["WIDTH"], gpu.GROUP
        _, across = _squares(len(output), output.shape[1], shape)
        square, within = flagged // group**2, flagged % group**2
        tops = (square // across * group + within % group) * height
        lefts = (square % across * group + within // group) * width
        down, right = torch.arange(height, device=output.device), torch.arange(width, device=output.device)
        found = []
        for part in torch.stack([tops, lefts], dim=1).split(_BLOCKS_AT_ONCE):
            rows, columns = part[:, :1] + down, part[:, 1:] + right
            last = output.shape[0] - 1, output.shape[1] - 1
            values = output[rows.clamp(max=last[0])[:, :, None], columns.clamp(max=last[1])[:, None, :]]
            block, i, j = values.isnan().nonzero(as_tuple=True)
            pairs = torch.stack([rows[block, i], columns[block, j]], dim=1)
            found.append(pairs[(pairs[:, 0] <= last[0]) & (pairs[:, 1] <= last[1])])
        return torch.cat(found)


def _squares(rows: int, columns: int, shape: dict[str, int]) -> tuple[int, int]:
    """The number of squares of blocks of a tile, down and across."""
    sides = (rows, shape["HEIGHT"]), (columns, shape["WIDTH"])
    down, across = (triton.cdiv(triton.cdiv(length, side), gpu.GROUP) for length, side in sides)
    return down, across


def _side(law: PairLaw, index: slice) -> tuple[Any, ...]:
    return law.tau[index], law.mean[0, index], law.coefficients[:, index], law.coefficients.stride(0)


def split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(high, low, unit) with x = unit·(high + low) to 22 bits: two float16 numbers for each, rows padded to whole blocks.

    Rows are scaled by powers of 2 to a largest entry of about 2¹², where float16 has its full precision and products fit.
    """
    n, p = x.shape
    largest = x.abs().amax(1).clamp(min=torch.finfo(x.dtype).tiny)
    unit = torch.exp2(largest.log2().ceil() - _LARGEST_EXPONENT)
    high, low = (torch.zeros(n, -(-p // _PADDING) * _PADDING, dtype=torch.float16, device=x.device) for _ in range(2))
    for rows in torch.arange(n, device="cpu").split(_SPLIT_AT_ONCE):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        scaled = x[part] / unit[part, None]
        high[part, :p] = scaled
        low[part, :p] = scaled - high[part, :p]
    return high, low, unit
