"""A linear readout of fixed features by plain stochastic gradient descent, as [ling2024] trains it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.models.readout import LinearReadout


@dataclass(frozen=True)
class SGD:
    """Cross-entropy, no momentum, a fixed rate; a new order of the samples each epoch."""

    rate: float = 1.0
    batch: int = 128
    epochs: int = 100


@torch.no_grad()
def sgd_readouts(
    features: Tensor,
    y: Tensor,
    classes: int,
    sgd: SGD,
    generator: torch.Generator,
    scales: Sequence[float] | None = None,
) -> list[LinearReadout]:
    """For each of R networks a readout of its features (R, n, m), trained for classes y (n,).

    All start from one draw of torch's usual U(−1/√m, 1/√m) and see the samples in one order. With `scales` the r-th is trained
    on s_r times its features; what is returned reads the features as given, sW, for which that is a rate of s² instead.
    """
    networks, n, width = features.shape
    if len(y) != n:
        raise BadInput(f"There are {n} samples and {len(y)} labels; they must be as many.")
    scale = torch.tensor(scales or [1.0] * networks).to(features)[:, None, None]
    bound = 1.0 / math.sqrt(width)
    first = torch.empty(width + 1, classes).uniform_(-bound, bound, generator=generator).to(features)
    weight, bias = scale * first[:width], first[width:].expand(networks, 1, classes).clone()
    wanted = torch.nn.functional.one_hot(y, classes).to(features)
    order = torch.empty(n, dtype=torch.long, device=features.device)

    def epoch() -> None:
        for chosen in order.split(sgd.batch):
            z = features[:, chosen]
            missed = torch.baddbmm(bias, z, weight).softmax(2).sub_(wanted[chosen]).mul_(-sgd.rate / len(chosen))
            bias.add_(missed.sum(1, keepdim=True))
            weight.baddbmm_(z.mT, missed * scale.square())

    run = _replayed(epoch, order, (weight, bias)) if features.is_cuda else epoch
    for _ in range(sgd.epochs):
        order.copy_(torch.randperm(n, generator=generator))
        run()
    return [LinearReadout(w.T, b[0], 0.0, math.nan) for w, b in zip(weight, bias, strict=True)]


def _replayed(epoch: Callable[[], None], order: Tensor, state: tuple[Tensor, ...]) -> Callable[[], None]:
    """`epoch` as a CUDA graph: its thousands of small products are launched at once, not one by one."""
    kept = [part.clone() for part in state]
    order.copy_(torch.arange(len(order)))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # a capture wants one run before it, of which nothing may stay
        epoch()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        epoch()
    for part, was in zip(state, kept, strict=True):
        part.copy_(was)
    return graph.replay
