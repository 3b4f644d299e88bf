"""Convolutional networks of infinitely many channels, as values.

    Implicit:  h[s] = (σ_a Σ_r A_r z[s + r] + σ_b Σ_r B_r x[s + r])/√|P|,  z = φ(h)/√m
    Explicit:  x^(l)[s] = σ_l(Σ_r W_{l,r} x^(l−1)[s + r]/√|P|)/√m_l,  l = 1 … L

s runs over the positions of a signal or an image, r over the offsets of the patch P; beyond the edges are zeros, or the other
end. Ref: docs/theory.md, section 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from notsodeep.arguments import choice, count, counts, instance
from notsodeep.arrays import Array, images
from notsodeep.errors import BadInput
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.statistics import root_mean_square

PADDINGS = ("zero", "circular")
READOUTS = ("flat", "pooled")


@dataclass(frozen=True)
class Patches:
    """The patch of every position of a grid, and averages over it: (P K)[s] = |P|⁻¹ Σ_r K[s + r].

    Args:
        grid: Lengths of the axes of a signal, (length,), or of an image, (height, width).
        patch: Odd lengths of the patch along each of them.
        circular: Whether the grid is closed; else there are zeros beyond its edges.
    """

    grid: tuple[int, ...]
    patch: tuple[int, ...]
    circular: bool

    @cached_property
    def positions(self) -> int:
        return torch.Size(self.grid).numel()

    @cached_property
    def size(self) -> int:
        """|P|, the number of offsets."""
        return torch.Size(self.patch).numel()

    def average(self, values: Tensor) -> Tensor:
        """P of values (…, positions)."""
        return self._summed(values.unflatten(-1, self.grid), 1).flatten(-len(self.grid)) / self.size

    def joint_average(self, values: Tensor) -> Tensor:
        """(P K)[s, s'] = |P|⁻¹ Σ_r K[s + r, s' + r] of values (…, positions, positions)."""
        d = len(self.grid)
        both = values.unflatten(-1, self.grid).unflatten(-1 - d, self.grid)
        return self._summed(both, 2).flatten(-d).flatten(-1 - d, -2) / self.size

    def _summed(self, values: Tensor, copies: int) -> Tensor:
        """Σ_r, axis by axis; an axis of the grid stands `copies` times among the last ones, and all move together."""
        d = len(self.grid)
        for axis, length in enumerate(self.patch):
            dims = [axis - d * (copy + 1) for copy in range(copies)]
            values = self._along(values, dims, length // 2)
        return values

    def _along(self, values: Tensor, dims: list[int], reach: int) -> Tensor:
        if reach == 0:
            return values
        total = values.clone()
        size = values.shape[dims[0]]
        for r in range(1, reach + 1):
            if self.circular:
                total += values.roll([r] * len(dims), dims) + values.roll([-r] * len(dims), dims)
            elif r < size:
                low, high = values, values
                into_low, into_high = total, total
                for dim in dims:
                    low, high = low.narrow(dim, 0, size - r), high.narrow(dim, r, size - r)
                    into_low, into_high = into_low.narrow(dim, 0, size - r), into_high.narrow(dim, r, size - r)
                into_high += low
                into_low += high
        return total


@dataclass(frozen=True)
class Convolutional:
    """A network whose layers see the patch of each position of a signal or an image, with the same weights everywhere.

    Args:
        net: An `Implicit` or an `Explicit` network: the activations, the variances and the gains.
        patch: The odd length of a patch along every axis, or one for each axis.
        padding: What lies beyond the edges: "zero" zeros, "circular" the other end.
        readout: What is read: "flat" the features of every position, f = Σ_s a_s·z[s]/√|s|, or "pooled" their mean over
            the positions, f = a·Σ_s z[s]/|s|.

    Raises:
        BadInput: Another kind of network, an even patch, or an unknown padding or readout.
    """

    net: Network
    patch: int | tuple[int, ...] = 3
    padding: str = "zero"
    readout: str = "flat"

    def __post_init__(self) -> None:
        instance(self.net, (Implicit, Explicit), "net", "an Implicit or an Explicit network")
        object.__setattr__(self, "patch", _patch(self.patch))
        choice(self.padding, "padding", PADDINGS)
        choice(self.readout, "readout", READOUTS)

    def __str__(self) -> str:
        lengths = (self.patch,) if isinstance(self.patch, int) else self.patch
        tail = "" if self.padding == "zero" else f", {self.padding} padding"
        return f"{self.net} on patches of {'×'.join(map(str, lengths))}{tail}, {self.readout}"

    @property
    def pooled(self) -> bool:
        return self.readout == "pooled"

    def of(self, net: Network) -> Convolutional:
        """Another network on the same patches."""
        return replace(self, net=net)

    def centred(self, tau0: float) -> Convolutional:
        """The network with its activations centred at the norm τ0 of a patch; itself where `net` is not to be centred."""
        return self.of(self.net.centred(tau0))

    def patches(self, grid: Sequence[int]) -> Patches:
        """The patches of images of this height and width, or signals of this length.

        Raises:
            BadInput: A patch of another number of axes, or one that goes more than once around a closed grid.
        """
        grid = counts(grid, "lengths")
        lengths = (self.patch,) * len(grid) if isinstance(self.patch, int) else self.patch
        shape = " × ".join(map(str, grid))
        if len(lengths) != len(grid):
            raise BadInput(f"The patch has {len(lengths)} axes and the samples have {len(grid)}, of lengths {shape}.")
        if self.padding == "circular" and any(length > size for length, size in zip(lengths, grid, strict=True)):
            raise BadInput(
                f"A patch of {' × '.join(map(str, lengths))} goes more than once around a closed grid of {shape}: take a "
                "smaller patch."
            )
        return Patches(grid, lengths, self.padding == "circular")

    def tau0(self, x: Array) -> float:
        """The root mean square norm of a patch, τ0 = √(mean over samples and positions of (P S_ii)[s]).

        Args:
            x: Samples (n, channels, length) or (n, channels, height, width).
        """
        samples = images(x)
        return root_mean_square(patch_norms2(self.patches(samples.shape[2:]), samples.flatten(2)))


def patch_norms2(patches: Patches, x: Tensor) -> Tensor:
    """(P S_ii)[s] = |P|⁻¹ Σ_r ‖x_i[s + r]‖² of samples (n, channels, positions), in float64."""
    return patches.average(x.to(torch.float64).square().sum(1))


def _patch(given: int | Sequence[int]) -> int | tuple[int, ...]:
    lengths = counts(given, "patch") if isinstance(given, tuple | list) else (count(given, "patch"),)
    if len(lengths) not in (1, 2) or any(length % 2 == 0 for length in lengths):
        raise BadInput(
            f"patch = {given}: its lengths must be odd, so that every position is in the middle of one; give one length, or "
            "one for each axis of a signal or an image."
        )
    return lengths if isinstance(given, tuple | list) else lengths[0]
