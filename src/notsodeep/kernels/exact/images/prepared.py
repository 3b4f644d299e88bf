"""A convolutional network and its images, prepared once for any tile of their exact kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import norm
from notsodeep.arrays import Array, available_bytes, check_range, images
from notsodeep.errors import BadInput, NotConverged
from notsodeep.kernels.exact.compiled.image_engine import ImageEngine, image_engine
from notsodeep.kernels.exact.images.pairs import Block, ExplicitImages, ImagePairs, ImplicitImages
from notsodeep.kernels.exact.refusals import check_slope, growing_gradients, no_equilibrium, warn_of_implicit
from notsodeep.kernels.exact.tiles import blocks, fill
from notsodeep.kernels.names import Kernel
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.convolution import Convolutional, Patches, patch_norms2
from notsodeep.theory.statistics import root_mean_square

_NUMBERS_AT_ONCE = 1 << 18, 1 << 25  # of one array of a block, on a CPU and on CUDA
_ARRAYS = 24  # of that size at the same time
_COMPILED_SIDE = 512  # images
_EXACT_AT_ONCE = 1 << 18  # positions


@dataclass(frozen=True, eq=False)
class PreparedImages:
    """The images of both sides as (n, channels, positions), in their own dtype, and their pair equation in float64."""

    equation: ImagePairs
    rows: Tensor
    columns: Tensor
    symmetric: bool
    numbers: tuple[Tensor, Tensor]
    """of the different images on both sides: equal ones have the same"""
    fused: bool = True
    """Whether compiled loops may be used, for speed alone."""
    known: dict[str, Tensor] = field(default_factory=dict)
    """The kernels of samples with themselves, once they were computed."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)

    @cached_property
    def engine(self) -> ImageEngine | None:
        return image_engine(self.equation, self.rows, self.columns, self.numbers, self.symmetric) if self.fused else None

    def tile(self, left: slice, right: slice, kernels: tuple[str, ...]) -> tuple[Tensor, ...]:
        """These kernels of the pairs in `left` × `right`, in the samples' dtype."""
        values, rest = self._tile(left, right, kernels)
        equal = self.numbers[0][left, None] == self.numbers[1][None, right]
        if not self.equation.joint and bool(equal.any()):
            i = equal.nonzero()[:, 0]
            for value, name in zip(values, kernels, strict=True):
                value[equal] = self._diagonals(name)[left][i]
        if rest is not None and bool((rest := rest & ~equal).any()):
            for pairs in rest.nonzero().split(self._at_once):
                numbers = pairs[:, 0] + left.start, pairs[:, 1] + right.start
                for value, exact in zip(values, self._solved(*numbers, kernels), strict=True):
                    value[pairs[:, 0], pairs[:, 1]] = exact.to(value.dtype)
        if self.symmetric and left == right:  # to the bit, whatever the order of sums
            return tuple(value.triu() + value.triu(1).T for value in values)
        return values

    def _tile(self, left: slice, right: slice, kernels: tuple[str, ...]) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """All pairs of different images, and which are left open."""
        if self.engine is not None:
            return self.engine.tile(left, right, kernels)
        device = self.rows.device
        found = self.rows.new_empty(len(kernels), left.stop - left.start, right.stop - right.start)
        height = max(1, int(self._at_once**0.5))
        for top in blocks(left.stop - left.start, height):
            for start in blocks(right.stop - right.start, max(1, self._at_once // height)):
                i = torch.arange(top.start, top.stop, device=device)[:, None] + left.start
                j = torch.arange(start.start, start.stop, device=device)[None] + right.start
                for number, values in enumerate(self._solved(i, j, kernels)):
                    found[number, top, start] = values.to(found.dtype)
        return tuple(found), None

    def fill(self, outputs: tuple[Any, ...], kernels: tuple[str, ...]) -> None:
        """Write these kernels whole; of a symmetric one a triangle is computed, and both are written."""
        side = _COMPILED_SIDE if self.engine is not None else max(1, int(self._at_once**0.5))
        fill(outputs, self.symmetric, lambda left, right: self.tile(left, right, kernels), (side, side))

    def diagonal(self, kernel: str) -> Tensor:
        """The kernel of every sample of the rows with itself, (n,)."""
        if not self.equation.joint:
            return self._diagonals(kernel)
        numbers = torch.arange(len(self.rows), device=self.rows.device)
        own = [self._solved(i, i, (kernel,))[0] for i in numbers.split(self._at_once)]
        return torch.cat(own).to(self.rows)

    def _diagonals(self, kernel: str) -> Tensor:
        if kernel not in self.known:
            at_once = max(1, _EXACT_AT_ONCE // self.rows.shape[-1])
            exact = (self.equation.diagonal(part, kernel != Kernel.CONJUGATE) for part in blocks(len(self.rows), at_once))
            self.known[kernel] = torch.cat([getattr(part, kernel).mean(1) for part in exact]).to(self.rows)
        return self.known[kernel]

    @property
    def _at_once(self) -> int:
        """How many pairs are solved together."""
        return max(1, _NUMBERS_AT_ONCE[self.rows.is_cuda] // self.rows.shape[-1] ** (2 if self.equation.joint else 1))

    def _solved(self, i: Tensor, j: Tensor, kernels: Iterable[str]) -> list[Tensor]:
        """The kernels of pairs of images by the plain equation, for numbers that broadcast."""
        one, other = self.rows[i].to(torch.float64), self.columns[j].to(torch.float64)
        equal = self.numbers[0][i] == self.numbers[1][j]
        if self.equation.joint:
            gram = torch.einsum("...cs,...ct->...st", one, other)
            own = equal[..., None, None] & torch.eye(gram.shape[-1], dtype=torch.bool, device=gram.device)
            block = Block(i, j, gram, own if bool(equal.any()) else None)
        else:
            gram = torch.einsum("...cs,...cs->...s", one, other)
            block = Block(i, j, gram.masked_fill(equal[..., None], 0.0))  # they are told by the diagonal
        if not self.symmetric:
            block = replace(block, right=j + len(self.rows))
        found = self.equation.kernels(block, any(name != Kernel.CONJUGATE for name in kernels))
        return [getattr(found, name).mean((-1, -2) if self.equation.joint else -1) for name in kernels]


def prepare_images(
    net: Convolutional, x: Array, x2: Array | None = None, tau0: float | None = None, *, tangent: bool = True
) -> PreparedImages:
    """The part of a kernel that is done once: variances and moments of every position.

    Args:
        net: A convolutional network.
        x: Samples (n, channels, length) or (n, channels, height, width).
        x2: Other samples; x itself by default.
        tau0: The norm of a patch at which a DEQ is centred; that of x by default.
        tangent: Whether a network without a tangent kernel is an error.
    """
    given = images(x)
    others = given if x2 is None else images(x2, "x2").to(given)
    if given.shape[1:] != others.shape[1:]:
        raise BadInput(
            f"x holds samples of shape {tuple(given.shape[1:])} and x2 of {tuple(others.shape[1:])}; they must agree."
        )
    patches, rows = net.patches(given.shape[2:]), given.flatten(2)
    columns = rows if x2 is None else others.flatten(2)
    check_pair(patches.positions, net.pooled, rows.device)
    norms2 = patch_norms2(patches, rows)
    if tau0 is None and isinstance(net.net, Implicit) and net.net.centre:
        tau0 = root_mean_square(norms2)
    both = norms2 if x2 is None else torch.cat([norms2, patch_norms2(patches, columns)])
    equation = _equation(net, patches, both, tau0, tangent)
    _check(net.net, equation, both, tau0, rows.dtype, tangent)
    numbers = _numbered(rows if x2 is None else torch.cat([rows, columns]))
    return PreparedImages(equation, rows, columns, x2 is None, (numbers[: len(rows)], numbers[-len(columns) :]))


def check_pair(positions: int, pooled: bool, device: torch.device) -> None:
    """Raise BadInput where not even one pair of images fits in memory."""
    numbers = positions**2 if pooled else positions
    needed, available = 8 * _ARRAYS * numbers, available_bytes(device)
    if needed > available:
        raise BadInput(
            f"The {'pooled' if pooled else 'flat'} kernel of one pair of images of {positions} positions takes "
            f"{needed / 2**30:.1f} GiB to compute, {available / 2**30:.1f} GiB are free on {device}. "
            + ('Take readout="flat", or smaller images.' if pooled else "Take smaller images."),
            needed=needed,
            available=available,
        )


def _equation(net: Convolutional, patches: Patches, norms2: Tensor, tau0: float | None, tangent: bool) -> ImagePairs:
    if isinstance(net.net, Explicit):
        return ExplicitImages(net.net, patches, net.pooled, norms2)
    centred = net.net if tau0 is None else net.net.centred(norm(tau0))
    try:
        equation = ImplicitImages(centred, patches, net.pooled, norms2)
    except NotConverged:
        raise no_equilibrium(net.net, norms2, tau0, tangent) from None
    warn_of_implicit(net.net, float(equation.moments.q.max()))
    return equation


def _check(net: Network, equation: ImagePairs, norms2: Tensor, tau0: float | None, dtype: torch.dtype, tangent: bool) -> None:
    """Raise where a kernel of an image with itself does not exist, or is no number of this dtype."""
    for part in blocks(len(norms2), max(1, _EXACT_AT_ONCE // norms2.shape[1])):
        slope = float(equation.diagonal(part, tangent=False).slope.max())
        if tangent:
            check_slope(net, slope)
        try:
            exact = equation.diagonal(part, tangent)
        except NotConverged:
            assert isinstance(net, Implicit)
            raise growing_gradients(net, slope, norms2, tau0) from None
        check_range(exact.conjugate, dtype, f"The conjugate kernel of {net}")
        if tangent:
            check_range(exact.tangent, dtype, f"The tangent kernel of {net}")


def _numbered(x: Tensor) -> Tensor:
    """Numbers of the images, equal where all their entries are."""
    seen: dict[bytes, int] = {}
    digests = (blake2b(image.numpy().tobytes()).digest() for image in (x + 0.0).cpu())
    return torch.tensor([seen.setdefault(digest, len(seen)) for digest in digests], device=x.device)
