"""The largest σ_a² for which a DEQ has its kernels on given data."""

from __future__ import annotations

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
    for another.
    """
    # Between the extremes the equation of a sample has a root if theirs have.
    ends = torch.stack([norms2.min(), norms2.max()]).to(torch.float64)
    good, bad = 0.0, net.var_a
    for _ in range(_HALVINGS):
        tried = 0.5 * (good + bad)
        if _exists(replace(net, var_a=tried), ends, tau0, tangent):
            good = tried
        else:
            bad = tried
        if bad < _FEWEST * net.var_a:
            break
    return good


def _exists(net: Implicit, norms2: Tensor, tau0: float | None, tangent: bool) -> bool:
    try:
        net = net if tau0 is None else net.centred(tau0)
        tau = equilibrium_deviation(net.phi, net.var_a, net.var_b * norms2)
    except (NotContractive, BadInput):
        return False
    return not tangent or bool((net.var_a * moments_of(net.phi, tau).q < 1.0).all())
