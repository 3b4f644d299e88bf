"""Centring and scaling to τ0 = 1, with the statistics of one data set for others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.arguments import flag, positive
from notsodeep.arrays import real, samples
from notsodeep.errors import BadInput
from notsodeep.theory.statistics import tau0

_SAME = 1e-9  # of the scale: statistics of the same samples, read in another order
_ENTRIES = 2**20  # of a block that is summed in float64: without blocks, all the data would be copied in float64


@dataclass(frozen=True, eq=False)
class Standardiser:
    """x → (x − mean)/scale, with the mean sample and the root mean square norm about it: τ0 = 1 for its own data.

    The scale is one number, or one of each feature, for columns in different units.

    Raises:
        BadInput: The mean is not (p,), or the scale neither a positive number nor p of them.
    """

    mean: Tensor
    """The mean sample, (p,), float64."""
    scale: float | Tensor
    """The root mean square distance of the samples from their mean; or, (p,), float64, the deviation of each feature times the
    root of the number of features that vary."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", real(self.mean, "mean", (None,), torch.float64))
        scale = self.scale
        if isinstance(scale, Tensor) and scale.ndim:
            scale = real(scale, "scale", (len(self.mean),), torch.float64)
            if float(scale.min()) <= 0.0:
                raise BadInput(f"scale must hold positive numbers, got {float(scale.min()):g}.")
        else:
            scale = positive(scale, "scale")
        object.__setattr__(self, "scale", scale)

    @classmethod
    def of(cls, x: Tensor, per_feature: bool = False) -> Standardiser:
        """The statistics of samples.

        Args:
            x: Samples, (n, p).
            per_feature: Whether each feature has a scale of its own; one that never varies counts as of deviation 1.

        Returns:
            The standardiser that makes τ0 of x one.

        Raises:
            BadInput: If all samples are equal.
        """
        x, per_feature = samples(x), flag(per_feature, "per_feature")
        blocks = x.split(max(1, _ENTRIES // x.shape[1]))
        mean = torch.stack([block.sum(0, dtype=torch.float64) for block in blocks]).sum(0) / len(x)
        spread = torch.stack([(block - mean).square().sum(0) for block in blocks]).sum(0)
        # Equal samples keep a spread of the size of rounding.
        varies = spread > len(x) * (torch.finfo(x.dtype).eps * mean).square()
        if not bool(varies.any()):
            raise BadInput(f"All {len(x)} samples are equal: nothing is left after subtracting their mean.")
        if per_feature:
            deviations = torch.where(varies, (spread / len(x)).sqrt(), 1.0)
            return cls(mean, math.sqrt(int(varies.sum())) * deviations)
        return cls(mean, math.sqrt(float(spread.sum()) / len(x)))

    def is_of(self, x: Tensor) -> bool:
        """Whether these are the statistics of the samples x (n, p), and no others."""
        own = type(self).of(x, isinstance(self.scale, Tensor) and self.scale.ndim > 0)
        apart = torch.maximum((self.mean - own.mean).abs(), (torch.as_tensor(self.scale) - own.scale).abs())
        return bool((apart <= _SAME * torch.as_tensor(own.scale)).all())

    @property
    def features(self) -> int:
        """p."""
        return len(self.mean)

    def __call__(self, x: Tensor) -> Tensor:
        """(x − mean)/scale, in the dtype and on the device of x, (n, p)."""
        x, mean, scale = self._fitting(x, "x")
        return (x - mean).div_(scale)

    def inverse(self, z: Tensor) -> Tensor:
        """z·scale + mean, in the dtype and on the device of z, (n, p)."""
        z, mean, scale = self._fitting(z, "z")
        return z * scale + mean

    def _fitting(self, x: Tensor, name: str) -> tuple[Tensor, Tensor, float | Tensor]:
        """Samples, and the mean and the scale in their dtype and on their device."""
        x = samples(x, name)
        if x.shape[1] != self.features:
            raise BadInput(f"{name} has {x.shape[1]} features; the statistics were taken from data with {self.features}.")
        return x, self.mean.to(x), self.scale.to(x) if isinstance(self.scale, Tensor) else self.scale


def once(standardiser: Standardiser, x: Tensor) -> Tensor:
    """x standardised, unless it is already: unless its mean and root mean square norm are nearer to 0 and 1 as it is."""
    scaled = standardiser(x.double())
    return scaled.to(x.dtype) if _unlike(scaled) < _unlike(x.double()) else x


def _unlike(x: Tensor) -> float:
    """Distance of the statistics of samples from those of standardised ones."""
    norm = float(x.square().sum(1).mean().sqrt())
    return float(x.mean(0).norm()) + (abs(math.log(norm)) if norm > 0.0 else math.inf)


def rounded_tau0(x: Tensor) -> float:
    """τ0 of x to six digits, as the rest is rounding: 1 for standardised data."""
    return float(f"{tau0(x):.6g}")


def standardised(x: Tensor) -> Tensor:
    """x minus its mean sample, divided by the root mean square norm about it."""
    return Standardiser.of(x)(x)
