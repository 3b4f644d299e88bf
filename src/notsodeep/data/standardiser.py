"""Centring and scaling to τ0 = 1, with the statistics of one data set for others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.arguments import positive
from notsodeep.arrays import real, samples
from notsodeep.errors import BadInput
from notsodeep.theory.statistics import tau0

_ENTRIES = 2**20  # of a block that is summed in float64: without blocks, all the data would be copied in float64


@dataclass(frozen=True, eq=False)
class Standardiser:
    """x → (x − mean)/scale, with the mean sample and the root mean square norm about it: τ0 = 1 for its own data."""

    mean: Tensor
    """The mean sample, (p,), float64."""
    scale: float
    """The root mean square distance of the samples from their mean."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", real(self.mean, "mean", (None,), torch.float64))
        object.__setattr__(self, "scale", positive(self.scale, "scale"))

    @classmethod
    def of(cls, x: Tensor) -> Standardiser:
        """The statistics of samples.

        Args:
            x: Samples, (n, p).

        Returns:
            The standardiser that makes τ0 of x one.

        Raises:
            BadInput: If all samples are equal.
        """
        x = samples(x)
        blocks = x.split(max(1, _ENTRIES // x.shape[1]))
        mean = torch.stack([block.sum(0, dtype=torch.float64) for block in blocks]).sum(0) / len(x)
        spread = torch.stack([(block - mean).square().sum(0) for block in blocks]).sum(0)
        # Equal samples keep a spread of the size of rounding.
        if bool((spread <= len(x) * (torch.finfo(x.dtype).eps * mean).square()).all()):
            raise BadInput(f"All {len(x)} samples are equal: nothing is left after subtracting their mean.")
        return cls(mean, math.sqrt(float(spread.sum()) / len(x)))

    def __call__(self, x: Tensor) -> Tensor:
        """(x − mean)/scale, in the dtype and on the device of x, (n, p)."""
        x = samples(x)
        if x.shape[1] != len(self.mean):
            raise BadInput(f"x has {x.shape[1]} features; the statistics were taken from data with {len(self.mean)}.")
        return (x - self.mean.to(x)).div_(self.scale)


def rounded_tau0(x: Tensor) -> float:
    """τ0 of x to six digits, as the rest is rounding: 1 for standardised data."""
    return float(f"{tau0(x):.6g}")


def standardised(x: Tensor) -> Tensor:
    """x minus its mean sample, divided by the root mean square norm about it."""
    return Standardiser.of(x)(x)
