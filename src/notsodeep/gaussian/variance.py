"""The deviation of a pre-activation at equilibrium: τ² = σ_a² E[φ²(τξ)] + drive, one scalar equation a sample.

Ref: docs/theory.md, sections 1 and 2; existence is exactly σ_a² ≤ sup_v (v − drive)/E[φ²(√v ξ)].
"""

from __future__ import annotations

import torch
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.approximation.newton import bracketed_newton
from notsodeep.approximation.tables import Smooth, tabulated
from notsodeep.errors import NotContractive
from notsodeep.gaussian.moments import moments_of
from notsodeep.tolerances import VARIANCE_RTOL

_DOUBLINGS = 48
_SCAN = 2000


def equilibrium_deviation(phi: Activation, var_a: float, drive: Tensor, centred: bool = False) -> Tensor:
    """τ for each drive = σ_b²‖x‖² ≥ 0 (float64); `centred` replaces E[φ²] by the variance of φ.

    Where the equation has several roots the smallest is returned: the one that the network's own iteration reaches.
    """
    shape, drive = drive.shape, drive.to(torch.float64).reshape(-1)

    def excess(v: Tensor) -> tuple[Tensor, Tensor]:
        """v − σ_a² E[φ²(√v ξ)] − drive and its slope; d/dv E[φ²] = E[(φ²)'']/2, d/dv E[φ] = E[φ'']/2."""
        power, slope = _power_and_slope(phi, v, centred)
        return v - var_a * power - drive, 1.0 - var_a * slope

    at_zero = drive + var_a * _power_and_slope(phi, drive, centred)[0]
    upper = 2.0 * at_zero
    for _ in range(_DOUBLINGS):
        short = ~(excess(upper)[0] >= 0)  # so that an overflow counts as short
        if not bool(short.any()):
            break
        upper = torch.where(short, 2.0 * upper, upper)
    else:
        upper = torch.where(short, _first_crossing(phi, var_a, drive, short, centred), upper)
    return bracketed_newton(excess, drive, upper, at_zero, VARIANCE_RTOL).sqrt().reshape(shape)


def tabulated_deviation(phi: Activation, var_a: float, drive: Tensor) -> Tensor:
    """The same, to round-off, at very many drives."""
    name = ("deviation", phi, var_a)
    column = Smooth(name, False, lambda some: equilibrium_deviation(phi, var_a, some).unsqueeze(-1), phi.may_change)
    return tabulated(column, drive).squeeze(-1)


def _power_and_slope(phi: Activation, v: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    m = moments_of(phi, v.sqrt())
    return (m.variance, 0.5 * m.v2) if centred else (m.gamma2, 0.5 * m.s2)


def _first_crossing(phi: Activation, var_a: float, drive: Tensor, short: Tensor, centred: bool) -> Tensor:
    """A v just past the smallest root for each `short` drive, by a fine scan; `NotContractive` if there is none."""
    crossing = drive.clone()
    # The largest drive first: it is the one that has no root, if any.
    for index in sorted(torch.nonzero(short).flatten().tolist(), key=lambda i: -float(drive[i])):
        level = drive[index]
        ratio, v = _admissible(phi, level, centred)
        enough = torch.nonzero(ratio >= var_a).flatten()
        if enough.numel() == 0:
            largest = float(ratio.max())
            raise NotContractive(
                f"This DEQ has no equilibrium: σ_a² = {var_a:g} ≥ {largest:.6g} = sup over τ of (τ² − σ_b²‖x‖²)/E[φ²(τξ)] "
                f"for φ = {phi} and σ_b²‖x‖² = {float(level):.4g}, so the variance of its features grows without end. "
                f"Take var_a below {largest:.6g}, with var_b as it is.",
                left=var_a,
                right=largest,
                largest_var_a=largest,
            )
        crossing[index] = v[enough[0]]
    return crossing


def _admissible(phi: Activation, drive: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """(v − drive)/E[φ²(√v ξ)] on a fine geometric grid of v, and the grid."""
    scale = torch.where(drive > 0, drive, torch.ones_like(drive))
    v = drive + scale * torch.logspace(-8, 12, _SCAN, dtype=drive.dtype, device=drive.device)
    power, _ = _power_and_slope(phi, v, centred)
    return ((v - drive) / power).nan_to_num(0.0), v
