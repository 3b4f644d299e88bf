"""Smooth symmetric functions of two numbers as short sums of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from notsodeep.numerics.tolerances import SEPARABLE_RTOL

_PIVOTS = 24


def separate(function: Callable[[Any, Any], Tensor], places: Tensor) -> tuple[Tensor, Tensor]:
    """Features (n, r) and weights (r,) with function(i, j) ≈ Σ_r w_r f_ir f_jr, to SEPARABLE_RTOL.

    `function(rows, columns)` gives entries for indices into `places` (n,), on which it depends smoothly. It is sampled
    at a few places spread like Chebyshev points (Nyström), whose eigenvectors make the features.
    """
    pivots = chebyshev_subset(places)
    core = function(pivots, pivots)
    values, vectors = torch.linalg.eigh(0.5 * (core + core.T))
    kept = values.abs() > SEPARABLE_RTOL * values.abs().max()
    if not bool(kept.any()):
        return places.new_zeros(len(places), 0), places.new_zeros(0)
    features = function(slice(None), pivots) @ (vectors[:, kept] / values[kept])
    return features, values[kept]


def chebyshev_subset(places: Tensor) -> Tensor:
    low, high = places.min(), places.max()
    angles = torch.linspace(0.0, torch.pi, _PIVOTS, dtype=places.dtype, device=places.device)
    wanted = 0.5 * (low + high) - 0.5 * (high - low) * torch.cos(angles)
    order = places.argsort()
    ordered = places[order]
    above = torch.searchsorted(ordered, wanted).clamp(max=len(places) - 1)
    below = (above - 1).clamp(min=0)
    chosen = order[torch.where(wanted - ordered[below] < ordered[above] - wanted, below, above)]
    # One index a value: equal places would make the sampled matrix singular for nothing.
    distinct = torch.unique_consecutive(places[chosen], return_inverse=True)[1]
    first = torch.ones_like(distinct, dtype=torch.bool)
    first[1:] = distinct[1:] != distinct[:-1]
    return chosen[first]
