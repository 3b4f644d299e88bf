"""The size that each moment can have, given E[φ²] and E[φ'²]: what its error is to be compared with.

Each is a bound by Cauchy and Schwarz, the tighter of the two where Stein's identity gives two:

    E[φ'] = E[ξφ]/τ,     E[φ''] = E[ξφ']/τ = E[(ξ² − 1)φ]/τ²,     E[φ'''] = E[(ξ² − 1)φ']/τ² = E[(ξ³ − 3ξ)φ]/τ³,
    E[(φ²)''] = 2 E[ξφφ']/τ.

A moment may be far smaller than its scale (E[φ''] of an odd φ is 0), but then it is a difference of numbers of that size.
"""

from typing import Any

import torch
from torch import Tensor

ROUND_OFF = 1e-12
"""The accuracy that is asked of every moment and dual map, relative to its scale."""

FIELDS = ("mean", "e1", "e2", "e3", "gamma2", "s2", "q")


def natural_scales(at: Any, tau: Tensor) -> dict[str, Tensor]:
    """Of every moment, from `at.gamma2` and `at.q`."""
    deviation, slope = at.gamma2.sqrt(), at.q.sqrt()
    return {
        "mean": deviation,
        "e1": torch.minimum(slope, deviation / tau),
        "e2": torch.minimum(slope / tau, 2**0.5 * deviation / tau.square()),
        "e3": torch.minimum(2**0.5 * slope / tau.square(), 6**0.5 * deviation / tau**3),
        "gamma2": at.gamma2,
        "s2": 2.0 * deviation * torch.minimum(slope / tau, deviation / tau.square()),
        "q": at.q,
    }


def float64(*values: float) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=torch.float64)
