"""The largest σ_a² for which a DEQ has its kernels on given data."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from notsodeep.architecture import Implicit
from notsodeep.errors import BadInput, NotContractive
from notsodeep.gaussian.moments import moments_of
from notsodeep.gaussian.variance import equilibrium_deviation

_HALVINGS = 14  # of the interval: four digits
_FEWEST = 1e-6  # of the σ_a² that was too large, below which there may as well be none


def largest_var_a(net: Implicit, norms2: Tensor, tau0: float | None, tangent: bool) -> float:
    """The largest σ_a² below that of `net`, to four digits and from below, that has an equilibrium for samples of these squared
    norms; 0 where none has. With `tangent` it has a tangent kernel too, σ_a² E[φ'²] < 1.

    It is looked for by trying: φ is centred at a deviation that depends on σ_a² itself, so no formula in the present σ_a² holds
    for another. Where σ_b² is 1 − σ_a², as unless given, it stays so.
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
    """Whether σ_b² is 1 − σ_a², as it is unless somebody gives it."""
    return math.isclose(net.var_b, 1.0 - net.var_a, rel_tol=1e-12)


def _exists(net: Implicit, norms2: Tensor, tau0: float | None, tangent: bool) -> bool:
    try:
        net = net if tau0 is None else net.centred(tau0)
        tau = equilibrium_deviation(net.phi, net.var_a, net.var_b * norms2)
    except (NotContractive, BadInput):
        return False
    return not tangent or bool((net.var_a * moments_of(net.phi, tau).q < 1.0).all())
