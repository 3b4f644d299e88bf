"""The kernels of pairs of images, position by position: the equation of a convolutional DEQ, and explicit layers.

    DEQ:       Λ = σ_a² P k(Λ) + σ_b² P S,    Θ_h = Λ + σ_a² P(Q ∘ Θ_h),    Θ = k(Λ) + Q ∘ Θ_h
    Explicit:  Λ_l = P Σ^(l−1),  Σ^(l) = k_l(Λ_l),  T_l = P(g_l² Σ^(l−1) + Q_{l−1} ∘ T_{l−1}),  T_1 = g_1² P S,
               Θ = g_{L+1}² Σ^(L) + Q_L ∘ T_L

with S_ij[s, s'] = x_i[s]·x_j[s'] and P the patch average of both. A flat readout needs s = s' alone.
Ref: docs/theory.md, section 10.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from notsodeep.activations.mixed import kinds_of
from notsodeep.gaussian import Moments, Rows, dual, rows
from notsodeep.gaussian.moments import tabulated_moments
from notsodeep.kernels.exact.images.averaged import linear_averaged, solve_averaged
from notsodeep.kernels.exact.pairs import PairKernels, snap
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.convolution import Patches

_SMALLEST_TAU = 1e-150  # stands for 0, so that ρ = λ/(τ_i τ_j) is defined
_AT_ONCE = 1 << 18  # positions whose variances are solved for together


@dataclass(frozen=True, eq=False)
class Block:
    """Pairs of images as numbers of samples that broadcast: (left, 1) and (1, right), or both (pairs,)."""

    left: Tensor
    right: Tensor
    gram: Tensor
    """S: (…, positions), or (…, positions, positions) where all pairs of positions count"""
    own: Tensor | None = None
    """Where an image meets itself at the same position: Λ is τ² there, exactly; None where it nowhere does"""


class ImagePairs(ABC):
    """The pair equations of one network on images.

    Args:
        patches: The patches of their positions.
        joint: Whether all pairs of positions count, as for a pooled readout, or the same position of both images.
    """

    def __init__(self, patches: Patches, joint: bool) -> None:
        self.patches, self.joint = patches, joint
        self.average: Callable[[Tensor], Tensor] = patches.joint_average if joint else patches.average

    @abstractmethod
    def kernels(self, block: Block, tangent: bool) -> PairKernels:
        """The kernels of a block at every position, or pair of positions; without `tangent` those of gradients are zero."""

    @abstractmethod
    def diagonal(self, index: slice, tangent: bool) -> PairKernels:
        """The kernels of images with themselves at each position, (images, positions)."""

    def _sides(self, at: Any, block: Block) -> tuple[Any, Any]:
        """`at`, which holds numbers of all positions of all samples one after another, for both sides of a block."""
        count = self.patches.positions
        position = torch.arange(count, device=block.left.device)
        left, right = block.left[..., None] * count + position, block.right[..., None] * count + position
        return (at[left[..., None]], at[right[..., None, :]]) if self.joint else (at[left], at[right])

    def _dual(self, phi: Any, sides: tuple[Rows, Rows], moments: Moments, block: Block, lam: Tensor) -> tuple[Tensor, Tensor]:
        """(k, Q) at Λ, and from the moments of single positions where an image meets itself."""
        if block.own is None:
            return dual(phi, *sides, lam)
        value, slope = dual(phi, *sides, lam.masked_fill(block.own, 0.0))
        left, _ = self._sides(moments, block)
        return torch.where(block.own, left.gamma2, value), torch.where(block.own, left.q, slope)


class ImplicitImages(ImagePairs):
    """Of a convolutional DEQ, centred already, whose patches have the squared norms P S_ii (n, positions)."""

    def __init__(self, net: Implicit, patches: Patches, joint: bool, norms2: Tensor) -> None:
        super().__init__(patches, joint)
        self.net = net
        self.variance = self._variances(net.var_b * norms2)
        self.tau = self.variance.flatten().sqrt().clamp(min=_SMALLEST_TAU)
        self.moments = tabulated_moments(net.phi, self.tau)
        self.several_roots = bool((net.var_a * self.moments.q >= 1.0).any())

    @cached_property
    def rows(self) -> Rows:
        """All positions of all samples prepared for `dual`."""
        return rows(self.net.phi, self.tau)

    def _variances(self, drive: Tensor) -> Tensor:
        """τ² = σ_a² P E[φ²(τξ)] + σ_b² P S_ii of every position, from below: the root that the network's iteration reaches."""

        def power(v: Tensor) -> tuple[Tensor, Tensor]:
            at = tabulated_moments(self.net.phi, v.flatten().sqrt().clamp(min=_SMALLEST_TAU))
            return at.gamma2.view_as(v), 0.5 * at.s2.view_as(v)

        def one(part: Tensor) -> Tensor:
            solve = solve_averaged(power, part, part, self.net.var_a, self.patches.average, lambda v: torch.maximum(v, part))
            return solve[0]

        at_once = max(1, _AT_ONCE // drive.shape[1])
        return torch.cat([one(part) for part in drive.split(at_once)])

    def kernels(self, block: Block, tangent: bool) -> PairKernels:
        a, left, right = self.net.var_a, *self._sides(self.rows, block)
        limit = left.tau * right.tau
        drive = self.net.var_b * self.average(block.gram)

        def k(lam: Tensor) -> tuple[Tensor, Tensor]:
            return self._dual(self.net.phi, (left, right), self.moments, block, lam)

        def confined(lam: Tensor) -> Tensor:
            lam = snap(lam, limit)
            return lam if block.own is None else torch.where(block.own, limit, lam)

        lam, value, slope = solve_averaged(
            k, confined(drive), drive, a, self.average, confined, limit, newton=not self.several_roots
        )
        through = linear_averaged(lam, slope, a, self.average) if tangent else torch.zeros_like(lam)
        return PairKernels(lam, value, slope, value + slope * through if tangent else through, through)

    def diagonal(self, index: slice, tangent: bool) -> PairKernels:
        lam = self.variance[index]
        value, slope = (each.view_as(self.variance)[index] for each in (self.moments.gamma2, self.moments.q))
        if not tangent:
            zero = torch.zeros_like(lam)
            return PairKernels(lam, value, slope, zero, zero)
        through = linear_averaged(lam, slope, self.net.var_a, self.patches.average)
        return PairKernels(lam, value, slope, value + slope * through, through)


class ExplicitImages(ImagePairs):
    """Of a convolutional feed-forward network whose patches have the squared norms P S_ii (n, positions)."""

    def __init__(self, net: Explicit, patches: Patches, joint: bool, norms2: Tensor) -> None:
        super().__init__(patches, joint)
        self.net = net
        self.taus: list[Tensor] = []
        self.moments: list[list[Moments]] = []
        variance = self.first = norms2
        for layer in net.layers:
            self.taus.append(variance.flatten().sqrt().clamp(min=_SMALLEST_TAU))
            self.moments.append([tabulated_moments(kind, self.taus[-1]) for kind in kinds_of(layer)])
            variance = patches.average(_mean([at.gamma2 for at in self.moments[-1]]).view_as(norms2))

    @cached_property
    def rows(self) -> list[list[Rows]]:
        """All positions of all samples prepared for `dual`, layer by layer, of each kind of units."""
        return [[rows(kind, tau) for kind in kinds_of(layer)] for layer, tau in zip(self.net.layers, self.taus, strict=True)]

    def kernels(self, block: Block, tangent: bool) -> PairKernels:
        sides = [[self._sides(one, block) for one in kinds] for kinds in self.rows]

        def layer(number: int, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            left, right = sides[number][0]
            lam = snap(lam, left.tau * right.tau)
            parts = zip(kinds_of(self.net.layers[number]), sides[number], self.moments[number], strict=True)
            maps = [self._dual(kind, side, at, block, lam) for kind, side, at in parts]
            value, slope = (_mean(list(each)) for each in zip(*maps, strict=True))
            return lam, value, slope

        return self._forward(self.average(block.gram), self.average, layer, tangent)

    def diagonal(self, index: slice, tangent: bool) -> PairKernels:
        def layer(number: int, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            kinds = self.moments[number]
            powers = ([at.gamma2 for at in kinds], [at.q for at in kinds])
            value, slope = (_mean(each).view_as(self.first)[index] for each in powers)
            return lam, value, slope

        return self._forward(self.first[index], self.patches.average, layer, tangent)

    def _forward(
        self,
        lam: Tensor,
        average: Callable[[Tensor], Tensor],
        layer: Callable[[int, Tensor], tuple[Tensor, Tensor, Tensor]],
        tangent: bool,
    ) -> PairKernels:
        """The layers one after the other, from Λ_1; `layer` gives (Λ_l, Σ^(l), Q_l)."""
        first, *gains = (gain**2 for gain in self.net.gains)
        value, theta, averaged = lam, first * lam, False
        for number, gain in enumerate(gains):
            through = average(theta) if averaged and tangent else theta
            lam, value, slope = layer(number, average(value) if averaged else lam)
            theta, averaged = gain * value + slope * through if tangent else through, True
        return PairKernels(lam, value, slope, theta, through)


def _mean(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)
