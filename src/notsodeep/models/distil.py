"""Training an explicit network to give a DEQ's answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

_BATCH, _RATE = 128, 3e-3


def distil(
    network: nn.Module, x: Tensor, targets: Tensor, epochs: int, generator: torch.Generator, progress: bool
) -> None:
    """Adam with a cosine rate on ‖network(x) − targets‖², in place, all weights; with a progress bar on the error stream."""
    optimiser = torch.optim.Adam(network.parameters(), lr=_RATE)
    batches = math.ceil(len(x) / _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * batches)
    scale = float((targets - targets.mean(0)).square().mean())
    with _bar(epochs * batches, progress) as advance:
        for _ in range(epochs):
            for chosen in torch.randperm(len(x), generator=generator, device=generator.device).split(_BATCH):
                rows = chosen.to(x.device)
                loss = (network(x[rows]) - targets[rows]).square().mean() / scale
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                schedule.step()
                advance(f"distilling, error {math.sqrt(loss.item()):.1%}")


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[str], None]]:
    with Progress(console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task("distilling", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)
