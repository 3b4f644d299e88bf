"""The largest σ_a² for which a DEQ has its kernels: on given samples, and along σ_b² τ0²."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from notsodeep.activations import Activation, activation
from notsodeep.errors import BadInput, NotContractive
from notsodeep.gaussian.moments import moments_of
from notsodeep.gaussian.variance import equilibrium_deviation
from notsodeep.theory.architecture import Implicit, contraction_bound

_HALVINGS = 14  # of the interval: four digits
_FEWEST = 1e-6  # of the σ_a² that was too large, below which there may as well be none
_GRID = 400
_LARGEST = (300.0, 60.0, 12.0, 3.0)  # deviations: the first up to which φ can be followed


def largest_var_a(net: Implicit, norms2: Tensor, tau0: float | None, tangent: bool) -> float:
    """The largest σ_a² below that of `net`, to four digits and from below, with an equilibrium on these samples; 0 without one.

    By bisection, since φ is centred at a deviation that depends on σ_a² itself. Where σ_b² is 1 − σ_a², it stays so.

    Args:
        net: A DEQ whose own σ_a² is too large.
        norms2: ‖x_i‖² of the samples.
        tau0: The norm at which φ is centred.
        tangent: Whether a tangent kernel must exist too, σ_a² E[φ'²] < 1.
    """
    # Between the extremes the equation of a sample has a root if theirs have.
    ends = torch.stack([norms2.min(), norms2.max()]).to(torch.float64)
    good, bad = 0.0, net.var_a
    for _ in range(_HALVINGS):
        tried = 0.5 * (good + bad)
        var_b = 1.0 - tried if follows(net) else net.var_b
        if _exists(replace(net, var_a=tried, var_b=var_b), ends, tau0, tangent):
            good = tried
        else:
            bad = tried
        if bad < _FEWEST * net.var_a:
            break
    return good


def follows(net: Implicit) -> bool:
    """Whether σ_b² is 1 − σ_a², as by default."""
    return math.isclose(net.var_b, 1.0 - net.var_a, rel_tol=1e-12)


def _exists(net: Implicit, norms2: Tensor, tau0: float | None, tangent: bool) -> bool:
    try:
        net = net if tau0 is None else net.centred(tau0)
        tau = equilibrium_deviation(net.phi, net.var_a, net.var_b * norms2)
    except (NotContractive, BadInput):
        return False
    return not tangent or bool((net.var_a * moments_of(net.phi, tau).q < 1.0).all())


@dataclass(frozen=True)
class Boundary:
    """Upper ends of σ_a², possibly infinite: `contracts` ≤ `stable` ≤ `exists`, but for the round-off of a grid."""

    name: str
    contracts: float
    """1/(4L²), below which a wide network is a contraction"""
    stable: float
    """σ_a² E[φ'²(τ*ξ)] = 1, beyond which equal inputs drift apart"""
    exists: float
    """the largest σ_a² with a solution of τ² = σ_a² Var[φ(τξ)] + σ_b² τ0²"""


def boundaries(names: tuple[str, ...], drive: float) -> list[Boundary]:
    """The boundaries of each activation, for data with σ_b² τ0² = `drive`."""
    return [_boundary(name, drive) for name in names]


def _boundary(name: str, drive: float) -> Boundary:
    """From σ_a² as a function of τ, (τ² − drive)/Var[φ(τξ)], whose first rising branch is reached from below."""
    phi = activation(name)
    tau, power, slope = _curves(phi)
    var_a = torch.where(tau**2 > drive, (tau**2 - drive) / power, torch.zeros_like(tau))
    falls = var_a[1:] < var_a[:-1]
    rising = int(torch.argmax(falls.long())) if bool(falls.any()) else len(tau) - 1
    exists = math.inf if rising == len(tau) - 1 and _grows(var_a) else float(var_a[rising])
    stable = _crossing(var_a[: rising + 1], var_a[: rising + 1] * slope[: rising + 1] - 1.0)
    return Boundary(name, contraction_bound(phi), min(stable, exists), exists)


def _crossing(x: Tensor, y: Tensor) -> float:
    """x at which y first reaches 0, on the line between two points of the grid; infinite where it does not."""
    beyond = torch.nonzero(y >= 0.0).flatten()
    if not beyond.numel():
        return math.inf
    k = int(beyond[0])
    if k == 0 or not bool(torch.isfinite(y[k - 1 : k + 1]).all()):  # a jump has an infinite slope
        return float(x[max(k - 1, 0)])
    return float(torch.lerp(x[k - 1], x[k], y[k - 1] / (y[k - 1] - y[k])))


def _grows(var_a: Tensor) -> bool:
    """Whether σ_a² still grows at the end of the grid (a bounded φ: by 5.7 as τ grows by 2.4) or has a limit (elu: by 1.01)."""
    return float(var_a[-1]) > 1.2 * float(var_a[-_GRID // 10])


@lru_cache(maxsize=64)
def _curves(phi: Activation) -> tuple[Tensor, Tensor, Tensor]:
    """τ, Var[φ(τξ)] and E[φ'²(τξ)] on a fixed grid."""
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
