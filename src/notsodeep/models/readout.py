"""A linear readout in closed form, by streaming: the features of all samples are never held at once, an m × m matrix is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.errors import BadInput

Features = Callable[[Tensor], Tensor]
BATCH = 1024
_RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
_HELD_OUT = 0.2


@dataclass(frozen=True, eq=False)
class LinearReadout:
    """z ↦ z weightᵀ + bias."""

    weight: Tensor
    bias: Tensor
    ridge: float

    def __call__(self, z: Tensor) -> Tensor:
        return z @ self.weight.T + self.bias


@torch.no_grad()
def ridge_readouts(features: Features, x: Tensor, targets: Tensor, ridges: Sequence[float]) -> list[LinearReadout]:
    """argmin ‖Z Rᵀ + c − T‖² + ridge·(tr ZᵀZ/m)·‖R‖² for each ridge, with Z centred; targets T are (n, K).

    The ridge is relative to the mean of the features' squares, so that one list serves every network.
    """
    if len(x) != len(targets):
        raise BadInput(f"There are {len(x)} samples and {len(targets)} targets; they must be as many.")
    n, width = len(x), features(x[:1]).shape[1]
    gram = torch.zeros(width, width, dtype=torch.float64, device=x.device)
    cross, z_sum = gram.new_zeros(width, targets.shape[1]), gram.new_zeros(width)
    for rows, wanted in zip(x.split(BATCH), targets.split(BATCH), strict=True):
        z = features(rows).double()
        gram.addmm_(z.T, z)
        cross.addmm_(z.T, wanted.double())
        z_sum += z.sum(0)
    z_mean, t_mean = z_sum / n, targets.double().mean(0)
    gram -= n * torch.outer(z_mean, z_mean)
    cross -= n * torch.outer(z_mean, t_mean)
    scale = float(gram.diagonal().mean()) or 1.0  # equal samples: no direction to read, only the mean
    found = []
    for ridge in ridges:
        shifted = gram.clone()
        shifted.diagonal().add_(ridge * scale + 1e-12 * scale)
        weight = torch.cholesky_solve(cross, torch.linalg.cholesky(shifted)).T
        found.append(LinearReadout(weight.to(x.dtype), (t_mean - weight @ z_mean).to(x.dtype), ridge))
    return found


def best_readout(features: Features, x: Tensor, targets: Tensor) -> LinearReadout:
    """The readout with the ridge that does best on a fifth of x, fitted again on all of it."""
    held = int(_HELD_OUT * len(x))
    if held < 1:
        return ridge_readouts(features, x, targets, _RIDGES[-2:-1])[0]
    trials = ridge_readouts(features, x[held:], targets[held:], _RIDGES)
    z = in_batches(features, x[:held])
    best = min(trials, key=lambda trial: float((trial(z) - targets[:held]).square().mean()))
    return ridge_readouts(features, x, targets, [best.ridge])[0]


@torch.no_grad()
def in_batches(f: Features, x: Tensor) -> Tensor:
    """f(x), some rows at a time."""
    return torch.cat([f(rows) for rows in x.split(BATCH)])
