"""Activations made from others."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from torch import Tensor

from notsodeep.activations.base import Activation, from_part
from notsodeep.activations.mesh import Mesh
from notsodeep.arguments import instance, number

# A name, or one call: what needs no brackets behind a factor.
_ONE_FACTOR = re.compile(r"\w+|\[[^\[\]]*\]|(\w+|\[[^\[\]]*\])\([^()]*\)")


@dataclass(frozen=True)
class Wrapper(Activation):
    """What an affine change of φ's values leaves as it is."""

    inner: Activation

    kinks = from_part("inner.kinks")
    jumps = from_part("inner.jumps")
    grading = from_part("inner.grading")
    half_wave = from_part("inner.half_wave")
    is_found_by_looking = from_part("inner.is_found_by_looking")
    degree = from_part("inner.degree")
    lipschitz = from_part("inner.lipschitz")
    lipschitz_is_estimate = from_part("inner.lipschitz_is_estimate")
    may_change = from_part("inner.may_change")

    def __post_init__(self) -> None:
        instance(self.inner, Activation, "inner", "an Activation, as activation('relu') gives one")

    def mesh(self, reach: float) -> Mesh:
        return self.inner.mesh(reach)


@dataclass(frozen=True)
class Centred(Wrapper):
    """φ(x) − offset. With offset = E[φ(τ*ξ)] it is the centred activation that the theorems ask for.

    Args:
        inner: φ: a name, an `Activation`, or a torch function.
        offset: The number that is taken off.
    """

    offset: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "offset", number(self.offset, "offset"))

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(x) - self.offset

    def derivative(self, x: Tensor) -> Tensor:
        return self.inner.derivative(x)

    def __str__(self) -> str:
        return f"{self.inner} − {self.offset:.6g}" if self.offset >= 0 else f"{self.inner} + {-self.offset:.6g}"


@dataclass(frozen=True)
class Scaled(Wrapper):
    """factor·φ(x)."""

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "factor", number(self.factor, "factor"))

    @property
    def jumps(self) -> tuple[tuple[float, float], ...]:
        return tuple((place, self.factor * size) for place, size in self.inner.jumps)

    @property
    def lipschitz(self) -> float:
        return abs(self.factor) * self.inner.lipschitz

    def mesh(self, reach: float) -> Mesh:
        inner = self.inner.mesh(reach)
        jumps = tuple((place, self.factor * size) for place, size in inner.jumps)
        return replace(inner, jumps=jumps, steepness=self.factor**2 * inner.steepness)

    def __call__(self, x: Tensor) -> Tensor:
        return self.factor * self.inner(x)

    def derivative(self, x: Tensor) -> Tensor:
        return self.factor * self.inner.derivative(x)

    def __str__(self) -> str:
        name = str(self.inner)
        return f"{self.factor:.6g}·{name if _ONE_FACTOR.fullmatch(name) else f'({name})'}"


def affine_parts(phi: Activation) -> tuple[Activation, float, float]:
    """(core, factor, offset) with φ = factor·core − offset, however `Centred` and `Scaled` are nested."""
    match phi:
        case Centred(inner=inner, offset=offset):
            core, factor, inside = affine_parts(inner)
            return core, factor, inside + offset
        case Scaled(inner=inner, factor=scale):
            core, factor, inside = affine_parts(inner)
            return core, scale * factor, scale * inside
    return phi, 1.0, 0.0
