"""Tiles on CUDA: one kernel for all of them in float32; in float64 a matrix product and the same kernel after it."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from notsodeep.kernels.fused import gpu
from notsodeep.kernels.fused.engine import Engine

_KINDS = {"conjugate": gpu.CONJUGATE, "tangent": gpu.TANGENT, "preactivation": gpu.PREACTIVATION}
_SINGLE = {"HEIGHT": 128, "WIDTH": 64, "DEPTH": 64, "num_warps": 8, "num_stages": 3}
_DOUBLE = {"HEIGHT": 64, "WIDTH": 64, "DEPTH": 32, "num_warps": 8, "num_stages": 1}
_PADDING = 64
_LARGEST_EXPONENT = 12
_BLOCKS_AT_ONCE = 2048  # of those with open pairs
_SPLIT_AT_ONCE = 8192  # samples
_LARGEST_GRAM = 8192  # side of a tile of float64 Gram values


class GpuEngine(Engine):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        law = self.law
        self.numbers = law.tau.new_tensor([law.var_a, law.var_b, *law.form, float(law.limits[-1]), law.tol])
        whole = None if self.given else split(self.rows)
        self.split = whole, whole if self.symmetric or self.given else split(self.columns)

    @property
    def given(self) -> bool:
        """Whether the Gram values come from a matrix product before the kernel."""
        return self.rows.dtype == torch.float64

    @property
    def sides(self) -> tuple[int, int]:
        return (_LARGEST_GRAM, _LARGEST_GRAM) if self.given else (len(self.rows), len(self.columns))

    def solve(self, left: slice, right: slice, kernels: tuple[str, ...], outputs: Any, mirrors: Any) -> Tensor | None:
        x, x2 = self.rows[left], self.columns[right]
        shape = _DOUBLE if self.given else _SINGLE
        down, across = (
            triton.cdiv(triton.cdiv(len(y), shape[k]), gpu.GROUP) for y, k in ((x, "HEIGHT"), (x2, "WIDTH"))
        )
        flags = torch.zeros(down * across * gpu.GROUP**2, dtype=torch.int32, device=x.device)
        outs, across_outs = list(outputs), list(outputs if mirrors is None else mirrors)
        kinds = [_KINDS[name] for name in kernels] + [gpu.NONE] * (2 - len(kernels))
        law = self.law
        parts = [*self._parts(0, left), *self._parts(1, right)]
        with torch.cuda.device(x.device):
            gpu.solve_blocks[(len(flags),)](
                *parts, x @ x2.T if self.given else x, len(x), len(x2), parts[0].shape[1],
                *self._side(left), *self._side(slice(self.offset + right.start, self.offset + right.stop)),
                law.limits, len(law.limits), self.numbers,
                outs[0], outs[-1], across_outs[0], across_outs[-1], outs[0].stride(0), across_outs[0].stride(0),
                left.start - right.start, flags,
                KIND1=kinds[0], KIND2=kinds[1], STRIDE=law.stride, GIVEN=self.given, MIRRORED=mirrors is not None,
                SYMMETRIC=self.symmetric, GROUP=gpu.GROUP, **shape,
            )  # fmt: skip
        flagged = flags.nonzero().flatten()
        if not len(flagged):
            return None
        pairs = self._open_pairs(flagged, outs[0], across, shape)
        # On the diagonal a block holds its own mirror image: each pair once.
        return pairs if mirrors is None else pairs[pairs[:, 1] > pairs[:, 0] + left.start - right.start]

    def _parts(self, side: int, index: slice) -> list[Tensor]:
        split_samples = self.split[side]
        if split_samples is None:
            return [self.rows] * 3
        return [part[index] for part in split_samples]

    def _side(self, index: slice) -> tuple[Any, ...]:
        law = self.law
        return law.tau[index], law.mean[index], law.coefficients[:, index], law.coefficients.stride(0)

    @staticmethod
    def _open_pairs(flagged: Tensor, output: Tensor, across: int, shape: dict[str, int]) -> Tensor:
        """Where the flagged blocks hold NaN."""
        height, width, group = shape["HEIGHT"], shape["WIDTH"], gpu.GROUP
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
