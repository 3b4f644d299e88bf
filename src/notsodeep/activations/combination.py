"""Activations stretched along x, and sums of activations: what a fitted twin is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from notsodeep.activations.base import Activation
from notsodeep.activations.mesh import Mesh
from notsodeep.activations.piecewise import HardTanh, Rectifier
from notsodeep.activations.polynomial import HermiteSeries, Polynomial
from notsodeep.activations.wrappers import Centred, Scaled, Wrapper, affine_parts
from notsodeep.arguments import instance, number, positive, shown
from notsodeep.errors import BadInput

_WANTED = "an activation, nsd.activation('tanh')"


@dataclass(frozen=True)
class Stretched(Wrapper):
    """φ(stretch·x), stretch > 0. `stretched` gives the plainest form of it.

    Args:
        inner: φ.
        stretch: The factor of x.
    """

    stretch: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "stretch", positive(self.stretch, "stretch"))

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(place / self.stretch for place in self.inner.kinks)

    @property
    def jumps(self) -> tuple[tuple[float, float], ...]:
        return tuple((place / self.stretch, size) for place, size in self.inner.jumps)

    @property
    def grading(self) -> float | None:
        return None if self.inner.grading is None else self.inner.grading / self.stretch

    @property
    def half_wave(self) -> float | None:
        return None if self.inner.half_wave is None else self.inner.half_wave / self.stretch

    @property
    def lipschitz(self) -> float:
        return self.stretch * self.inner.lipschitz

    def mesh(self, reach: float) -> Mesh:
        inner = self.inner.mesh(self.stretch * reach)
        kinks = tuple(place / self.stretch for place in inner.kinks)
        jumps = tuple((place / self.stretch, size) for place, size in inner.jumps)
        return Mesh(inner.edges / self.stretch, kinks, jumps, self.stretch * inner.steepness)

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(self.stretch * x)

    def derivative(self, x: Tensor) -> Tensor:
        return self.stretch * self.inner.derivative(self.stretch * x)

    def __str__(self) -> str:
        name = str(self.inner)
        return f"{name if name.isidentifier() else f'[{name}]'}({self.stretch:.6g}·x)"


@dataclass(frozen=True)
class Sum(Activation):
    """Σ_k φ_k(x). `combined` gives the plainest form of it.

    Args:
        parts: The activations φ_k, at least one.
    """

    parts: tuple[Activation, ...]

    lipschitz_is_estimate = True

    def __post_init__(self) -> None:
        parts = tuple(self.parts) if isinstance(self.parts, list | tuple) else ()
        if not parts or not all(isinstance(part, Activation) for part in parts):
            raise BadInput(f"A sum of activations takes a tuple of at least one Activation, got {self.parts!r:.60}.")
        object.__setattr__(self, "parts", parts)

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(sorted({place for part in self.parts for place in part.kinks}))

    @property
    def jumps(self) -> tuple[tuple[float, float], ...]:
        return _added(part.jumps for part in self.parts)

    @property
    def grading(self) -> float | None:
        return min((part.grading for part in self.parts if part.grading is not None), default=None)

    @property
    def half_wave(self) -> float | None:
        return min((part.half_wave for part in self.parts if part.half_wave is not None), default=None)

    @property
    def is_found_by_looking(self) -> bool:
        return any(part.is_found_by_looking for part in self.parts)

    @property
    def degree(self) -> int | None:
        degrees = [part.degree for part in self.parts]
        return None if None in degrees else max(degree for degree in degrees if degree is not None)

    @property
    def lipschitz(self) -> float:
        """An upper bound: the sum of those of the parts."""
        return sum(part.lipschitz for part in self.parts)

    @property
    def may_change(self) -> bool:
        return any(part.may_change for part in self.parts)

    def mesh(self, reach: float) -> Mesh:
        """Panels on which every part is smooth."""
        meshes = [part.mesh(reach) for part in self.parts]
        kinks = tuple(sorted({place for mesh in meshes for place in mesh.kinks}))
        # (Σ φ_k')² ≤ (Σ √∫φ_k'²)² by the triangle inequality
        steepness = sum(math.sqrt(mesh.steepness) for mesh in meshes) ** 2
        return Mesh(torch.cat([mesh.edges for mesh in meshes]).unique(), kinks, _added(m.jumps for m in meshes), steepness)

    def __call__(self, x: Tensor) -> Tensor:
        return reduce(torch.add, (part(x) for part in self.parts))

    def derivative(self, x: Tensor) -> Tensor:
        return reduce(torch.add, (part.derivative(x) for part in self.parts))

    def __str__(self) -> str:
        text = str(self.parts[0])
        for part in map(str, self.parts[1:]):
            text += f" − {part[1:]}" if part.startswith("-") else f" + {part}"
        return f"[{text}]"


def stretched(phi: Activation, stretch: float) -> Activation:
    """φ(stretch·x) in its plainest form: that of a rectifier, hard tanh or polynomial is one of its own kind.

    Raises:
        BadInput: φ is not an Activation, or the stretch not a number above 0.
    """
    instance(phi, Activation, "phi", _WANTED)
    stretch = positive(stretch, "stretch")
    match phi:
        case _ if stretch == 1.0:
            return phi
        case Rectifier():
            return Rectifier(stretch * phi.positive, stretch * phi.negative)
        case HardTanh():
            return HardTanh(stretch * phi.a, phi.c / stretch)
        case HermiteSeries():
            return HermiteSeries(phi.coefficients, phi.scale / stretch)
        case Polynomial():
            return Polynomial(tuple(c * stretch**k for k, c in enumerate(phi.coefficients)))
        case Centred() | Scaled():
            return replace(phi, inner=stretched(phi.inner, stretch))
        case Stretched():
            return stretched(phi.inner, stretch * phi.stretch)
        case Sum():
            return Sum(tuple(stretched(part, stretch) for part in phi.parts))
    return Stretched(phi, stretch)


def combined(weighted: Iterable[tuple[float, Activation]]) -> Activation:
    """Σ_k w_k φ_k in its plainest form: equal activations are counted once, rectifiers added up, zeros left out.

    Args:
        weighted: Pairs (w_k, φ_k).

    Raises:
        BadInput: The parts are not such pairs.
    """
    try:
        pairs = [(weight, phi) for weight, phi in weighted]
    except (TypeError, ValueError):
        raise BadInput(f"combined takes pairs of a weight and an activation, got {shown(weighted)}.") from None
    right = left = offset = 0.0
    weights: dict[Activation, float] = {}
    for weight, phi in pairs:
        weight = number(weight, "A weight")
        instance(phi, Activation, "phi", _WANTED)
        for core, factor, lower in _parts(phi):
            offset += weight * lower
            if isinstance(core, Rectifier):
                right, left = right + weight * factor * core.positive, left + weight * factor * core.negative
            else:
                weights[core] = weights.get(core, 0.0) + weight * factor
    parts: list[Activation] = [core if w == 1.0 else Scaled(core, w) for core, w in weights.items() if w != 0.0]
    if right or left or not parts:
        parts.append(Rectifier(right, left))
    total = parts[0] if len(parts) == 1 else Sum(tuple(parts))
    return total if offset == 0.0 else Centred(total, offset)


def _parts(phi: Activation) -> list[tuple[Activation, float, float]]:
    """φ as a sum of factor·core − offset."""
    core, factor, offset = affine_parts(phi)
    if not isinstance(core, Sum):
        return [(core, factor, offset)]
    inside = [(inner, factor * f, factor * o) for part in core.parts for inner, f, o in _parts(part)]
    first, *rest = inside
    return [(first[0], first[1], first[2] + offset), *rest]


def _added(jumps: Iterable[tuple[tuple[float, float], ...]]) -> tuple[tuple[float, float], ...]:
    """Jumps of a sum: those at one place add up."""
    sizes: dict[float, float] = {}
    for each in jumps:
        for place, size in each:
            sizes[place] = sizes.get(place, 0.0) + size
    return tuple((place, size) for place, size in sorted(sizes.items()) if size != 0.0)
