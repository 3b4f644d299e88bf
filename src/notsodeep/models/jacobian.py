"""The Jacobian of a DEQ's map at its equilibrium, or of any f at any state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import generator as checked_generator
from notsodeep.arrays import module_input
from notsodeep.fixed_points import jacobian
from notsodeep.models.deq import DEQ

_BLOCK_ELEMENTS = 1 << 25


def spectral_radius(
    deq: DEQ | Callable[[Any], Any], x: Any, generator: torch.Generator | None = None, **options: Any
) -> Tensor:
    """(n,): the largest |eigenvalue| of J = ∂f/∂z at each sample's equilibrium, to well within 1 %.

    Below 1, steps z ← f(z) converge there, each by that factor in the end.

    Args:
        deq: A DEQ, or any function f of a state.
        x: The samples of the DEQ, (n, p); for an f, the state at which it is differentiated.
        generator: Of the vector that the products begin with.
        **options: For an f, those of `notsodeep.fixed_points.spectral_radius`.
    """
    generator = checked_generator(generator)
    if not isinstance(deq, DEQ):
        return jacobian.spectral_radius(deq, x, generator=generator, **options)
    x = module_input(x, deq.in_features, deq.B, "DEQ").reshape(-1, deq.in_features)
    rows = max(1, _BLOCK_ELEMENTS // (100 * deq.width))  # some hundred vectors are kept for every sample
    return torch.cat([_radii(deq, part, generator) for part in x.split(rows)])


def _radii(deq: DEQ, x: Tensor, generator: torch.Generator | None) -> Tensor:
    with torch.no_grad():
        state = deq.solve(x).value / deq.form.output
        weight, u = deq.terms(x)
    return jacobian.spectral_radius(lambda s: deq.step(s, weight, u), state, samples=1, generator=generator)


def jacobian_penalty(
    deq: DEQ | Callable[[Any], Any], x: Any, probes: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """E‖J‖_F²/m over the samples, by Hutchinson's estimate ‖Jᵀε‖², ε of N(0, I); differentiable, to be added to a loss.

    Args:
        deq: A DEQ, or any function f of a state.
        x: The samples of the DEQ, (n, p); for an f, the state at which it is differentiated.
        probes: How many ε are averaged.
        generator: Of ε.

    Ref: Bai, Koltun & Kolter (2021).
    """
    generator = checked_generator(generator)
    if not isinstance(deq, DEQ):
        return jacobian.jacobian_penalty(deq, x, probes=probes, generator=generator)
    x = module_input(x, deq.in_features, deq.B, "DEQ").reshape(-1, deq.in_features)
    state = deq.solve(x).value / deq.form.output
    weight, u = deq.terms(x)
    return jacobian.jacobian_penalty(lambda s: deq.step(s, weight, u), state, probes=probes, generator=generator)
