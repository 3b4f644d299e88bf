"""Flat kernels of images by compiled loops on a CPU. What float32 leaves open is done in float64, and what that leaves open by
the plain equation."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.kernels.exact.compiled.engine import PairLaw, pair_laws
from notsodeep.kernels.exact.images.pairs import ExplicitImages, ImagePairs, ImplicitImages
from notsodeep.kernels.names import Kernel
from notsodeep.runtime.threads import shared
from notsodeep.tolerances import FUSED_PATCH, FUSED_PATCH_DOUBT, FUSED_PATCH_TRUNCATION, FUSED_TRUNCATION

_WORTH_COMPILING = 1 << 18  # positions of pairs
_IMAGES, _BLOCKS = 16, 32  # of one side, and blocks of the other, that meet between two looks at what is next
_PLACES = {Kernel.CONJUGATE: 0, Kernel.TANGENT: 1, Kernel.PREACTIVATION: 2}


def image_engine(
    equation: ImagePairs, rows: Tensor, columns: Tensor, numbers: tuple[Tensor, Tensor], symmetric: bool
) -> ImageEngine | None:
    """The compiled solver of these images (n, channels, positions); None where there is none, or for a small kernel. Pairs of
    images with one number are equal, and not solved."""
    small = len(rows) * len(columns) * rows.shape[-1] < _WORTH_COMPILING
    if small or equation.joint or not isinstance(equation, ImplicitImages | ExplicitImages):
        return None
    if rows.device.type != "cpu" or importlib.util.find_spec("numba") is None:
        return None
    laws = _safe_laws(equation, rows.dtype)
    if laws is None or any(len(law.mean) > 1 for law in laws):  # several kinds of units
        return None
    return ImageEngine(laws, equation, (rows, columns), numbers, symmetric)


class ImageEngine:
    """The images of both sides, laid out for `numba_images`."""

    def __init__(
        self,
        laws: tuple[PairLaw, ...],
        equation: ImplicitImages | ExplicitImages,
        sides: tuple[Tensor, Tensor],
        numbers: tuple[Tensor, Tensor],
        symmetric: bool,
    ) -> None:
        from notsodeep.kernels.exact.compiled import numba_images

        self._loops, self._given = numba_images, (equation, sides, numbers, symmetric)
        patches, (rows, columns) = equation.patches, sides
        self.symmetric = symmetric
        kind = np.float32 if rows.dtype == torch.float32 else np.float64
        height, width = patches.grid if len(patches.grid) == 2 else (1, *patches.grid)
        up, aside = (length // 2 for length in (patches.patch if len(patches.patch) == 2 else (1, *patches.patch)))
        self.grid = numba_images.Grid(height, width, up, aside, patches.circular)
        self.laws = self._laws(laws, kind)
        offset = 0 if symmetric else len(rows)
        self.left = self._left(laws, rows, numbers[0], slice(0, len(rows)))
        self.right = self._right(laws, columns, numbers[1], slice(offset, offset + len(columns)))

    def tile(self, left: slice, right: slice, kernels: tuple[str, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        """The kernels of `left` × `right`, and which pairs are left open; of a symmetric tile, those above the diagonal."""
        above = self.symmetric and left == right
        lanes = self._loops.LANES
        tangent = any(name != Kernel.CONJUGATE for name in kernels)
        first, last = right.start // lanes, -(-right.stop // lanes)
        parts = [
            ((top, min(top + _IMAGES, left.stop)), (start, min(start + _BLOCKS, last)))
            for top in range(left.start, left.stop, _IMAGES)
            for start in range(top // lanes if above else first, last, _BLOCKS)
        ]
        out = np.zeros((3, left.stop - left.start, last - first, lanes), self.left.tau.dtype)
        opened = np.zeros(out.shape[1:], bool)

        def solve(images: tuple[int, int], blocks: tuple[int, int]) -> None:
            place = slice(images[0] - left.start, images[1] - left.start), slice(blocks[0] - first, blocks[1] - first)
            found, rest = self._solved(images, blocks, tangent)
            if rest.any() and self._careful is not None:
                for image, start, stop in _runs(rest):
                    span = (images[0] + image, images[0] + image + 1), (blocks[0] + start, blocks[0] + stop)
                    exact, rest[image : image + 1, start:stop] = self._careful._solved(*span, tangent)
                    found[:, image : image + 1, start:stop] = exact
            out[:, *place], opened[place] = found, rest[:, :, None]

        shared(lambda part: solve(*part), parts)
        inside = slice(right.start - first * lanes, right.stop - first * lanes)
        flat = out.reshape(*out.shape[:2], -1)[:, :, inside]
        values = tuple(torch.from_numpy(np.ascontiguousarray(flat[_PLACES[Kernel(name)]])) for name in kernels)
        return values, torch.from_numpy(opened.reshape(len(opened), -1)[:, inside].copy())

    @cached_property
    def _careful(self) -> ImageEngine | None:
        """The same in float64; None where this is in float64 already, or there is none."""
        equation, sides, numbers, symmetric = self._given
        laws = _safe_laws(equation, torch.float64) if sides[0].dtype == torch.float32 else None
        if laws is None:
            return None
        exact = sides[0].to(torch.float64), sides[1].to(torch.float64)
        return ImageEngine(laws, equation, exact, numbers, symmetric)

    def _solved(self, images: tuple[int, int], blocks: tuple[int, int], tangent: bool) -> tuple[Any, Any]:
        """Kernels (3, images, blocks, lanes), and which of the blocks are left open."""
        shape = 3, images[1] - images[0], blocks[1] - blocks[0], self._loops.LANES
        found = np.empty(shape, self.left.tau.dtype)
        return found, self._loops.solve_images(self.grid, self.laws, self.left, self.right, images, blocks, tangent, found)

    def _laws(self, laws: tuple[PairLaw, ...], kind: type[Any]) -> Any:
        terms = np.array([len(law.coefficients) for law in laws])
        limits = np.ones((len(laws), terms.max()), kind)
        for own, law in zip(limits, laws, strict=True):
            own[: len(law.limits)] = law.limits.numpy()
        name = np.dtype(kind).name
        return self._loops.Laws(
            np.array([law.var_a for law in laws], kind),
            np.array([law.var_b for law in laws], kind),
            np.array([law.stride for law in laws]),
            np.array([law.form for law in laws], kind),
            limits,
            terms,
            np.array([law.gain for law in laws], kind),
            np.array([law.start for law in laws], kind),
            np.full(len(laws), FUSED_PATCH[name], kind),
            np.full(len(laws), FUSED_PATCH_DOUBT[name], kind),
        )

    def _left(self, laws: tuple[PairLaw, ...], x: Tensor, numbers: Tensor, index: slice) -> Any:
        return self._loops.Left(x.contiguous().numpy(), numbers.numpy(), *_columns(laws, x, index, lambda values: values))

    def _right(self, laws: tuple[PairLaw, ...], x: Tensor, numbers: Tensor, index: slice) -> Any:
        lanes = self._loops.LANES
        room = -len(x) % lanes

        def in_blocks(values: Tensor) -> Tensor:
            """(…, n, positions) as (…, blocks, positions·lanes), the last block filled with the last sample."""
            filled = torch.cat([values, values[..., -1:, :].expand(*values.shape[:-2], room, values.shape[-1])], dim=-2)
            blocks: Tensor = filled.unflatten(-2, (-1, lanes))
            return blocks.transpose(-1, -2).flatten(-2)

        pixels = in_blocks(x.transpose(0, 1)).transpose(0, 1)
        padded = torch.cat([numbers, numbers.new_full((room,), -1)]).view(-1, lanes)
        return self._loops.Right(pixels.contiguous().numpy(), padded.numpy(), *_columns(laws, x, index, in_blocks))


def _safe_laws(equation: ImplicitImages | ExplicitImages, dtype: torch.dtype) -> tuple[PairLaw, ...] | None:
    """The laws of the images, their series in float64 longer where a DEQ magnifies what they miss."""
    if dtype != torch.float64:
        return pair_laws(equation, dtype)
    stable = 1.0
    if isinstance(equation, ImplicitImages):
        stable -= equation.net.var_a * float(equation.moments.q.max())
    missed = max(FUSED_PATCH_TRUNCATION * max(stable, 0.0) ** 2, FUSED_TRUNCATION["float64"])
    return pair_laws(equation, dtype, missed)


def _runs(marked: Any) -> Iterator[tuple[int, int, int]]:
    """(row, start, stop) of every run of marked entries."""
    for row, entries in enumerate(marked):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], entries, [False]]).astype(np.int8)))
        for start, stop in edges.reshape(-1, 2):
            yield row, int(start), int(stop)


def _columns(laws: tuple[PairLaw, ...], x: Tensor, index: slice, laid_out: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    """τ, 1/τ, m and the coefficients of the samples `index`, layer by layer."""

    def stacked(parts: list[Tensor]) -> Any:
        return torch.stack([laid_out(part.unflatten(-1, (-1, x.shape[-1]))[..., index, :]) for part in parts]).numpy()

    terms = max(len(law.coefficients) for law in laws)
    padded = [torch.nn.functional.pad(law.coefficients, (0, 0, 0, terms - len(law.coefficients))) for law in laws]
    return (
        *(stacked(parts) for parts in ([law.tau for law in laws], [law.inverse for law in laws])),
        stacked([law.mean[0] for law in laws]),
        stacked(padded),
    )
