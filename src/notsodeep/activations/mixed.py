"""Layers whose units are of several kinds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.activations.base import Activation
from notsodeep.activations.combination import combined
from notsodeep.activations.registry import ActivationLike, activation
from notsodeep.arguments import count, shown
from notsodeep.errors import BadInput


@dataclass(frozen=True)
class Mixed:
    """A layer of units of several kinds in equal shares: of m units, the first m/r use φ_1, the next m/r φ_2, and so on.

    At infinite width its kernel is the mean of those of its kinds, (1/r) Σ_q E[φ_q(u)φ_q(v)]. Where r does not divide m, blocks
    differ by one unit, and their values are scaled so that each kind counts 1/r all the same.

    Args:
        kinds: The activations φ_1 … φ_r, at least two: names, `Activation`s or torch callables.

    Raises:
        BadInput: Fewer than two kinds, an unknown activation, or a `Mixed` within.
    """

    kinds: tuple[Activation, ...]

    def __init__(self, kinds: Iterable[ActivationLike]) -> None:
        # Texts are one activation; sets have no order, and the units of a layer do.
        several = isinstance(kinds, Iterable) and not isinstance(kinds, str | bytes | Tensor | Set | Mapping)
        given = list(kinds) if several and getattr(kinds, "ndim", 1) > 0 else []
        if len(given) < 2:
            raise BadInput(f"Mixed takes two or more activations, as in Mixed(['tanh', 'x']); got {shown(kinds)}.")
        if any(isinstance(kind, Mixed) for kind in given):
            raise BadInput(f"A kind of units is one activation, got {shown(kinds)}; list all kinds in one Mixed.")
        object.__setattr__(self, "kinds", tuple(activation(kind) for kind in given))

    def shares(self, width: int) -> list[int]:
        """How many of `width` units each kind has.

        Args:
            width: The units of the layer.

        Raises:
            BadInput: There are fewer units than kinds.
        """
        kinds = len(self.kinds)
        if count(width, "width") < kinds:
            raise BadInput(f"A layer of {kinds} kinds of units needs a unit of each: width {kinds} or more, got width {width}.")
        each, more = divmod(width, kinds)
        return [each + (q < more) for q in range(kinds)]

    def scales(self, width: int) -> list[float]:
        """√(m/(r m_q)) of each kind, m_q its units: 1 where r divides m."""
        return [math.sqrt(width / (len(self.kinds) * units)) for units in self.shares(width)]

    def __call__(self, h: Tensor) -> Tensor:
        """The values at pre-activations h (…, m), block by block."""
        if not h.ndim:
            raise BadInput(f"A layer of {len(self.kinds)} kinds takes pre-activations of its units, got a single number.")
        width = int(h.shape[-1])  # a tensor where torch.jit traces
        blocks = zip(self.kinds, h.split(self.shares(width), dim=-1), self.scales(width), strict=True)
        return torch.cat([phi(block) if scale == 1.0 else scale * phi(block) for phi, block, scale in blocks], dim=-1)

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.kinds)) + "}"


Units = Activation | Mixed
"""What the units of a layer do: one activation, or several kinds."""


def kinds_of(units: Units) -> tuple[Activation, ...]:
    """The activations of a layer's units, which count equally."""
    return units.kinds if isinstance(units, Mixed) else (units,)


def each_kind(units: Units, change: Callable[[Activation], Activation]) -> Units:
    """The units with every activation replaced by `change` of it."""
    return Mixed(map(change, units.kinds)) if isinstance(units, Mixed) else change(units)


def times(units: Units, factor: float) -> Units:
    """The units with values times a factor."""
    return each_kind(units, lambda kind: combined([(factor, kind)]))


def units_of(kinds: Iterable[Activation]) -> Units:
    """The units of these kinds; of one kind they are the activation itself."""
    given = tuple(kinds)
    return given[0] if len(given) == 1 else Mixed(given)
