"""Training an explicit network to give a DEQ's answers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.models.batches import Batches
from notsodeep.models.training import fit

_BATCH, _RATE = 128, 3e-3


def distil(
    network: nn.Module, x: Tensor, targets: Tensor, epochs: int, generator: torch.Generator, progress: bool
) -> None:
    """Adam with a cosine rate on ‖network(x) − targets‖² relative to the targets' spread, in place, all weights."""
    spread = float((targets - targets.mean(0)).square().mean()) or 1.0
    fit(
        network,
        Batches(x, targets, _BATCH, generator),
        epochs,
        optimiser=torch.optim.Adam(network.parameters(), lr=_RATE),
        loss=lambda out, wanted: functional.mse_loss(out, wanted) / spread,
        progress="distilling" if progress else False,
    )
