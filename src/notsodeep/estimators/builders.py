"""The two networks, as an estimator's parameters describe them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.arguments import instance
from notsodeep.design import design
from notsodeep.estimators.inputs import radius
from notsodeep.models.deq import DEQ
from notsodeep.models.explicit import ENN
from notsodeep.theory.architecture import Explicit, Implicit

_TRIAL_SAMPLES = 300


def build_deq(net: Implicit, x: Tensor, width: int, outputs: int | None, draw: torch.Generator) -> nn.Module:
    """A DEQ for data like x."""
    return DEQ(net, x.shape[1], width, outputs, **_options(x, outputs, draw), tau0=radius(x))


def build_matched(
    net: Implicit, family: str, x: Tensor, width: int, outputs: int | None, draw: torch.Generator
) -> nn.Module:
    """The explicit network matched to that DEQ."""
    instance(
        family, str, "family", "a word, as in design(family='auto')"
    )  # what cannot be hashed is no key of the cache
    explicit = _designed(net, family, radius(x))
    if explicit is None:  # a Hermite design of unknown length: the data chooses
        explicit = design(net, x=x[:_TRIAL_SAMPLES], tau0=radius(x), family=family).explicit
    return ENN(explicit, x.shape[1], width, outputs, **_options(x, outputs, draw))


@lru_cache(maxsize=256)
def _designed(net: Implicit, family: str, tau0: float) -> Explicit | None:
    """The design, where it depends on the data's τ0 alone: cross-validation asks for the same one again and again."""
    found = design(net, tau0=tau0, family=family)
    return None if found.family.startswith("hermite") and ":" not in family else found.explicit


def _options(x: Tensor, outputs: int | None, draw: torch.Generator) -> dict[str, Any]:
    return {"readout_bias": outputs is not None, "generator": draw, "dtype": x.dtype}
