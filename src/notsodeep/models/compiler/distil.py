"""Training against the clock: until it no longer helps, or the time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from notsodeep.errors import BadInput

Loss = Callable[[nn.Module, Tensor], Tensor]
"""The loss of a network on the samples with these indices, one number."""

_BATCH = 128
_RATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)  # of the size of a weight: first rates of Adam, tried from the same start
_TRIED, _SHARE_TRIED = 30, 0.15  # steps of each, and the most of the time for all of them
_SMALLER = 0.3  # the rate falls by this factor where two rounds in turn do not help, or when its time is over
_ENDS = (0.55, 0.75, 0.88, 0.95, 1.0)  # of the time: the latest ends of each rate
_ROUND, _PATIENCE = 60, 2  # steps between two looks at the samples that are not trained on, at least
_HELPS = 0.995  # of the loss before: a round that leaves more does not help
_HELD, _MOST_HELD = 0.1, 2000


@dataclass(frozen=True)
class Trained:
    """How a training went."""

    steps: int
    """batches"""
    seconds: float
    """time spent"""
    before: float
    """loss before, on samples that are not trained on"""
    after: float
    """the smallest loss on them, that of the weights which were kept"""
    finished: bool
    """whether every rate ended because it no longer helped"""


def train_until(
    network: nn.Module, loss: Loss, rows: Tensor, seconds: float, generator: torch.Generator, *, whole: bool = False
) -> Trained:
    """Train all weights that require a gradient, in place and in eval mode, on the samples `rows`, until it no longer helps.

    A tenth of the samples is not trained on: after each round the rate falls where their loss does not, and the best weights
    are kept. Each weight moves by a share of its own size, whatever its parametrization.

    Args:
        network: The network.
        loss: Its loss on some samples.
        rows: Indices of the samples.
        seconds: The most time to take.
        generator: Draws the order of the samples.
        whole: Whether a batch is all samples.

    Returns:
        How it went.
    """
    order = rows[torch.randperm(len(rows), generator=generator)]
    kept = min(_MOST_HELD, math.ceil(_HELD * len(rows))) if len(rows) > 1 else 0
    held, used = (order[:kept], order[kept:]) if kept else (order, order)
    return _Run(network.eval(), loss, held, used, generator, len(used) if whole else _BATCH).run(seconds)


def ready() -> None:
    """Have torch import what its first optimiser of a process needs, which takes a second and is no training."""
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])


class _Run:
    """A training: the network, the best weights so far, and the time."""

    def __init__(
        self, network: nn.Module, loss: Loss, held: Tensor, used: Tensor, generator: torch.Generator, size: int
    ) -> None:
        self.network, self.loss, self.held, self.used = network, loss, held, used
        self.generator, self.size = generator, size
        self.weights = [weight for weight in network.parameters() if weight.requires_grad]
        self.sizes = [_size(weight) for weight in self.weights]
        self.began, self.steps = time.monotonic(), 0
        self.best = self.before = self.judged()
        self.state = self._copies()

    def run(self, seconds: float) -> Trained:
        """Find a rate, then train with falling ones."""
        rate = self._first_rate(self.began + _SHARE_TRIED * seconds)
        finished, round_steps = True, max(_ROUND, -(-len(self.used) // self.size))
        for end in _ENDS:
            until, optimiser, vain = self.began + end * seconds, self._optimiser(rate), 0
            while vain < _PATIENCE and time.monotonic() < until:
                self._train(optimiser, round_steps, until)
                vain = 0 if self._keep_if_better() else vain + 1
            finished &= vain >= _PATIENCE
            self._restore()
            rate *= _SMALLER
        return Trained(self.steps, time.monotonic() - self.began, self.before, self.best, finished)

    def judged(self) -> float:
        """The mean loss on the samples that are not trained on; infinite where it is not finite."""
        with torch.no_grad():
            parts = self.held.split(max(self.size, 1024))
            total = sum(float(self.loss(self.network, part)) * len(part) for part in parts) / max(len(self.held), 1)
        return total if math.isfinite(total) else math.inf

    def _first_rate(self, until: float) -> float:
        """The rate whose first steps leave the smallest loss; the weights stay."""
        tried: list[tuple[float, float]] = []
        for rate in _RATES:
            if time.monotonic() >= until:
                break
            self._train(self._optimiser(rate), _TRIED, until)
            tried.append((self.judged(), rate))
            self._restore()
            if len(tried) > 2 and tried[-1][0] > tried[-2][0] < tried[-3][0]:
                break  # smaller ones are only slower
        return min(tried, default=(0.0, _RATES[2]))[1]

    def _optimiser(self, rate: float) -> torch.optim.Optimizer:
        pairs = zip(self.weights, self.sizes, strict=True)
        return torch.optim.Adam([{"params": [weight], "lr": rate * size} for weight, size in pairs])

    def _train(self, optimiser: torch.optim.Optimizer, steps: int, until: float) -> None:
        taken = 0
        while taken < steps:
            for batch in self.used[torch.randperm(len(self.used), generator=self.generator)].split(self.size):
                optimiser.zero_grad(set_to_none=True)
                loss = self.loss(self.network, batch)
                if not loss.requires_grad:
                    raise BadInput("The outputs have no gradient, so nothing can be trained: give the module one, or budget=0.")
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                taken, self.steps = taken + 1, self.steps + 1
                if taken >= steps or time.monotonic() >= until:
                    return

    def _keep_if_better(self) -> bool:
        """Whether the loss fell by as much as counts; the best weights are kept in any case."""
        now = self.judged()
        helped = now < _HELPS * self.best
        if now < self.best:
            self.best, self.state = now, self._copies()
        return helped

    def _copies(self) -> list[Tensor]:
        return [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def _restore(self) -> None:
        for weight, kept in zip(self.weights, self.state, strict=True):
            weight.copy_(kept)


def _size(weight: Tensor) -> float:
    """The root mean square of a weight; 0.1 where it is 0, such as a new bias."""
    size = float(weight.detach().abs().double().square().mean().sqrt())
    return size if size > 1e-3 else 0.1


class Clock:
    """Divides the seconds of a budget among the trainings that are to come."""

    def __init__(self, budget: float, jobs: int) -> None:
        self.left, self.jobs = budget, jobs

    def spend(self, train: Callable[[float], Trained]) -> Trained:
        """Train for an equal share of what is left."""
        began = time.monotonic()
        found = train(self.left / max(self.jobs, 1))
        self.left, self.jobs = self.left - (time.monotonic() - began), self.jobs - 1
        return found
