"""What is said where a network has no kernel on some data, and what would have one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from notsodeep.errors import BadInput, NotContractive, warn
from notsodeep.kernels.exact.pairs import PairKernels
from notsodeep.theory.admissible import follows, largest_var_a
from notsodeep.theory.architecture import Implicit, Network


def no_equilibrium(
    net: Implicit, norms2: Tensor, tau0: float | None, tangent: bool, data: dict[str, Any] | None = None
) -> NotContractive:
    """The error of a DEQ whose features grow without end on samples, or patches, of these squared norms."""
    bound = largest_var_a(net, norms2, tau0, tangent)
    return NotContractive(
        f"{net} has no equilibrium on this data: the variance of its features grows without end. {_remedy(net, bound)}",
        **{**(data or {}), "largest_var_a": bound},
    )


def warn_of_implicit(net: Implicit, slope: float) -> None:
    """Warn where a finite network need not contract, and where σ_a² E[φ'²] ≥ 1, with E[φ'²] = `slope` at most."""
    net.warn_unless_contractive()
    if net.var_a * slope >= 1.0:
        warn(
            f"σ_a² E[φ'²(τξ)] = {net.var_a * slope:.4g} ≥ 1 for {net}: inputs that differ by however little drift apart on the "
            f"way to the equilibrium, so the conjugate kernel jumps between equal and nearly equal samples. Lower var_a for a "
            f"smooth one."
        )


def check_slope(net: Network, slope: float) -> None:
    """Raise where E[φ'²] is infinite, so that a gradient is."""
    if slope == math.inf:
        raise BadInput(
            f"{net} has no tangent kernel, only a conjugate one: φ jumps or is infinitely steep, so that E[φ'²] = ∞."
        )


def check_tangent(net: Network, diagonal: PairKernels, norms2: Tensor | None = None, tau0: float | None = None) -> None:
    """Raise where a gradient is infinite: a jump of φ, or σ_a² E[φ'²] ≥ 1. With `norms2` the remedy holds for these samples."""
    slope = float(diagonal.slope.max())
    check_slope(net, slope if bool(torch.isfinite(diagonal.tangent).all()) else math.inf)
    if isinstance(net, Implicit) and net.var_a * slope >= 1.0:
        raise growing_gradients(net, slope, norms2, tau0)


def growing_gradients(net: Implicit, slope: float, norms2: Tensor | None, tau0: float | None) -> NotContractive:
    """The error of a DEQ whose gradients grow at every step, with E[φ'²] = `slope`."""
    bound = 1.0 / slope if norms2 is None else largest_var_a(net, norms2, tau0, tangent=True)
    return NotContractive(
        f"The tangent kernel of {net} does not exist: σ_a² E[φ'²(τξ)] = {net.var_a * slope:.4g} ≥ 1 on this data, so a "
        f"gradient grows at every step towards the equilibrium. {_remedy(net, bound)}",
        left=net.var_a * slope,
        right=1.0,
        largest_var_a=bound,
    )


def _remedy(net: Implicit, bound: float) -> str:
    if bound == 0.0:
        return "No var_a works: scale the data down, or take another activation."
    digits = 3 - math.floor(math.log10(bound))
    below = math.floor(bound * 10.0**digits) / 10.0**digits  # rounded down, so that it works
    return f"Take var_a = {below:.4g} or less (with var_b = {'1 − var_a' if follows(net) else f'{net.var_b:g}'})."
