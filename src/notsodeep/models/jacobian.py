"""The Jacobian of a DEQ's map at its equilibrium; for any other f, `notsodeep.fixed_points.jacobian`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import generator as checked_generator
from notsodeep.arrays import module_input
from notsodeep.fixed_points import jacobian
from notsodeep.fixed_points.layout import Map
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
        generator: Draws the vector that the products begin with.
        **options: For an f, those of `notsodeep.fixed_points.spectral_radius`.

    Returns:
        One spectral radius per sample.

    Raises:
        BadInput: An argument cannot be used.
    """
    generator = checked_generator(generator)
    if not isinstance(deq, DEQ):
        return jacobian.spectral_radius(deq, x, generator=generator, **options)
    rows = max(1, _BLOCK_ELEMENTS // (100 * deq.width))  # some hundred vectors are kept for every sample
    parts = _samples(deq, x).split(rows)
    with torch.no_grad():
        at = (_map_and_state(deq, part) for part in parts)
        return torch.cat([jacobian.spectral_radius(f, z, samples=1, generator=generator) for f, z in at])


def jacobian_penalty(
    deq: DEQ | Callable[[Any], Any], x: Any, probes: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """E‖J‖_F²/m over the samples, by Hutchinson's estimate ‖Jᵀε‖², ε of N(0, I); differentiable, to be added to a loss.

    Args:
        deq: A DEQ, or any function f of a state.
        x: The samples of the DEQ, (n, p); for an f, the state at which it is differentiated.
        probes: How many ε are averaged.
        generator: Draws ε.

    Returns:
        The estimate, a scalar.

    Raises:
        BadInput: An argument cannot be used.

    Ref: Bai, Koltun & Kolter (2021).
    """
    generator = checked_generator(generator)
    f, z = _map_and_state(deq, _samples(deq, x)) if isinstance(deq, DEQ) else (deq, x)
    return jacobian.jacobian_penalty(f, z, probes=probes, generator=generator)


def _samples(deq: DEQ, x: Any) -> Tensor:
    return module_input(x, deq.in_features, deq.B, "DEQ").reshape(-1, deq.in_features)


def _map_and_state(deq: DEQ, x: Tensor) -> tuple[Map, Tensor]:
    """s ↦ φ(W s + u) for the samples x, and its fixed point."""
    state = deq.solve(x).value / deq.form.output
    weight, u = deq.terms(x)
    return lambda s: deq.step(s, weight, u), state
