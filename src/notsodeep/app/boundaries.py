"""How far σ_a² may go, activation by activation: where networks contract, where kernels are stable, where they exist."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from notsodeep.activations import Activation, activation
from notsodeep.errors import BadInput
from notsodeep.gaussian.moments import moments_of

_GRID = 400
_LARGEST = (300.0, 60.0, 12.0, 3.0)  # deviations: the first up to which φ can be followed


@dataclass(frozen=True)
class Boundary:
    """Upper ends of σ_a², infinite where there is none: `contracts` ≤ `stable` ≤ `exists`, but for round-off of a grid.

    contracts: 1/(4L²), below which a wide network is a contraction. stable: σ_a² E[φ'²(τ*ξ)] = 1, beyond which equal inputs
    drift apart. exists: the largest σ_a² with a solution of τ² = σ_a² Var[φ(τξ)] + σ_b² τ0².
    """

    name: str
    contracts: float
    stable: float
    exists: float


def contraction_bound(phi: Activation) -> float:
    """1/(4L²)."""
    steepest = 4.0 * phi.lipschitz**2
    return 1.0 / steepest if steepest > 0.0 else math.inf


def boundaries(names: tuple[str, ...], drive: float) -> list[Boundary]:
    """For data with σ_b² τ0² = `drive`."""
    return [_boundary(name, drive) for name in names]


def _boundary(name: str, drive: float) -> Boundary:
    """σ_a² as a function of τ is (τ² − drive)/Var[φ(τξ)]: what is reached from below is its first rising branch."""
    phi = activation(name)
    tau, power, slope = _curves(phi)
    var_a = torch.where(tau**2 > drive, (tau**2 - drive) / power, torch.zeros_like(tau))
    rising = (
        int(torch.argmax((var_a[1:] < var_a[:-1]).long())) if bool((var_a[1:] < var_a[:-1]).any()) else len(tau) - 1
    )
    exists = math.inf if rising == len(tau) - 1 and _grows(var_a) else float(var_a[rising])
    stable = _crossing(var_a[: rising + 1], var_a[: rising + 1] * slope[: rising + 1] - 1.0)
    return Boundary(name, contraction_bound(phi), min(stable, exists), exists)


def _crossing(x: Tensor, y: Tensor) -> float:
    """Where y first reaches 0, on the line between two points of the grid; infinite where it does not."""
    beyond = torch.nonzero(y >= 0.0).flatten()
    if not beyond.numel():
        return math.inf
    k = int(beyond[0])
    if k == 0 or not bool(torch.isfinite(y[k - 1 : k + 1]).all()):  # a jump has an infinite slope
        return float(x[max(k - 1, 0)])
    return float(torch.lerp(x[k - 1], x[k], y[k - 1] / (y[k - 1] - y[k])))


def _grows(var_a: Tensor) -> bool:
    """Whether σ_a² still grows at the end of the grid, so that nothing bounds it (a bounded φ: by 5.7 while τ grows by 2.4), or
    comes to a limit, be it slowly (elu: by 1.01)."""
    return float(var_a[-1]) > 1.2 * float(var_a[-_GRID // 10])


@lru_cache(maxsize=64)
def _curves(phi: Activation) -> tuple[Tensor, Tensor, Tensor]:
    """τ, Var[φ(τξ)] and E[φ'²(τξ)] on a grid that no choice of the visitor moves."""
    for largest in _LARGEST:
        tau = torch.logspace(math.log10(0.05), math.log10(largest), _GRID, dtype=torch.float64)
        try:
            at = moments_of(phi, tau)
        except BadInput:
            if largest == _LARGEST[-1]:
                raise
        else:
            break
    return tau, at.variance, at.q
