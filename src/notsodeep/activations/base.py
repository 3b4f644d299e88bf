"""What every part of the package may ask of an activation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from notsodeep.activations.mesh import Mesh
from notsodeep.activations.pieces import Pieces

# Panels next to a feature double in width while a tail like e^(−x²/2) lives (to 16), then quadruple, to past twelve
# deviations of a Gaussian of deviation 1000.
_NEAR, _FAR = 16.0, 4.0**7
_MOST_WAVES = 1 << 13  # more of them fit into 12 deviations of inputs of norm 2000 only


class Activation(ABC):
    """An element-wise function φ: R → R, with what is needed to integrate it against a Gaussian to round-off.

    Subclasses are frozen values and final; change one by wrapping it (`Centred`, `Scaled`).
    """

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """φ(x), element by element."""

    @abstractmethod
    def derivative(self, x: Tensor) -> Tensor:
        """φ'(x) where it exists; any one-sided value at a kink, and nothing for a jump (see `jumps`)."""

    @property
    def kinks(self) -> tuple[float, ...]:
        """Where φ is not analytic."""
        return ()

    @property
    def jumps(self) -> tuple[tuple[float, float], ...]:
        """(place, φ(place+) − φ(place−)) of each discontinuity; the places are kinks too."""
        return ()

    @property
    def grading(self) -> float | None:
        """The scale on which φ varies around 0 and around its kinks; None if φ is a polynomial between kinks."""
        return 1.0

    @property
    def half_wave(self) -> float | None:
        """Half the wavelength of an oscillation that goes on for ever; None where there is none."""
        return None

    @property
    def is_found_by_looking(self) -> bool:
        """Whether nothing is known of φ but its values: its panels depend on how far out one looks."""
        return False

    @property
    def degree(self) -> int | None:
        """The degree of a polynomial; None for anything else."""
        return None

    @property
    def pieces(self) -> Pieces | None:
        """What a piecewise polynomial without a closed form of its own is made of; None for anything else."""
        return None

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """L = sup |φ'|; infinity where there is none."""

    @property
    def lipschitz_is_estimate(self) -> bool:
        return False

    @property
    def may_change(self) -> bool:
        """Whether φ can be another function at the next call under the same name: a module that learns."""
        return False

    def mesh(self, reach: float) -> Mesh:
        """Ends of the panels of a quadrature on [−reach, reach]: kinks, a graded mesh around 0 and each kink, half waves."""
        marks = self._marks()
        if self.half_wave is not None:
            waves = math.ceil(min(reach / self.half_wave, _MOST_WAVES))
            every = self.half_wave * torch.arange(-waves, waves + 1, dtype=torch.float64)
            marks = torch.cat([marks, every])
        return Mesh(marks, self.kinks, self.jumps)

    def _marks(self) -> Tensor:
        if self.grading is None:
            return torch.tensor(self.kinks, dtype=torch.float64)
        near = [self.grading * 2.0**k for k in range(math.ceil(math.log2(_NEAR / self.grading)) + 1)]
        far = [near[-1] * 4.0**k for k in range(1, math.ceil(math.log(_FAR / near[-1], 4)) + 1)]
        steps = torch.tensor(near + far, dtype=torch.float64)
        offsets = torch.cat([-steps, steps.new_zeros(1), steps])
        centres = torch.tensor(sorted({0.0, *self.kinks}), dtype=torch.float64)
        return (centres[:, None] + offsets).flatten()


def from_part(path: str) -> Any:
    """A property that is one of a part, such as "inner.kinks"."""
    return property(attrgetter(path))


class Named(Activation):
    """An activation without parameters, printed as its name in lower case."""

    def __str__(self) -> str:
        return type(self).__name__.lower()
