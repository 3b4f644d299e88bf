"""The two networks, as an estimator's parameters describe them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.architecture import Explicit, Implicit
from notsodeep.data.statistics import tau0
from notsodeep.design import design
from notsodeep.models.deq import DEQ
from notsodeep.models.explicit import ENN

_TRIAL_SAMPLES = 300


def build_deq(net: Implicit, x: Tensor, width: int, outputs: int | None, draw: torch.Generator) -> nn.Module:
    """A DEQ for data like x."""
    return DEQ(net, x.shape[1], width, outputs, **_options(x, outputs, draw), tau0=_radius(x))


def build_matched(
    net: Implicit, family: str, x: Tensor, width: int, outputs: int | None, draw: torch.Generator
) -> nn.Module:
    """The explicit network matched to that DEQ."""
    explicit = _designed(net, family, _radius(x))
    if explicit is None:  # a Hermite design of unknown length: the data chooses
        explicit = design(net, x=x[:_TRIAL_SAMPLES], tau0=_radius(x), family=family).explicit
    return ENN(explicit, x.shape[1], width, outputs, **_options(x, outputs, draw))


@lru_cache(maxsize=256)
def _designed(net: Implicit, family: str, radius: float) -> Explicit | None:
    """The design, where it depends on the data's τ0 alone: cross-validation asks for the same one again and again."""
    found = design(net, tau0=radius, family=family)
    return None if found.family.startswith("hermite") and ":" not in family else found.explicit


def _radius(x: Tensor) -> float:
    """τ0 of x; 1 where every sample is zero, or as nearly 1 as rounding lets it be."""
    value = tau0(x) if bool(x.any()) else 1.0
    return round(value, 6)


def _options(x: Tensor, outputs: int | None, draw: torch.Generator) -> dict[str, Any]:
    return {"readout_bias": outputs is not None, "generator": draw, "dtype": x.dtype}
