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
_RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # of the size of a weight: first rates of Adam, tried from the same start
_FIRST = 4  # the rate that is tried first
_TRIED, _SHARE_TRIED = 100, 0.04  # steps of each at most, and the most of the time for one of them
_SHORTENED = 0.5  # what is left of the time is this much less where two rounds in turn do not help
_EARLY = 0.9  # of the time: a training that takes less has ended by itself
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
    """whether it ended before its time, as it no longer helped"""


def train_until(
    network: nn.Module, loss: Loss, rows: Tensor, seconds: float, generator: torch.Generator, *, whole: bool = False
) -> Trained:
    """Train all weights that require a gradient, in place and in eval mode, on the samples `rows`, until it no longer helps.

    The rate falls to 0 by a half wave of a cosine, from the one of which a short such fall does most. A tenth of the samples is
    not trained on: where their loss stays for two rounds, training goes on from the best weights in half of the time that is
    left, and these are kept in the end. Each weight moves by a share of its own size, whatever its parametrization.

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
        """Find a rate, then train while it falls to 0."""
        rate = self._first_rate(_SHARE_TRIED * seconds)
        round_steps = max(_ROUND, -(-len(self.used) // self.size))
        fall, optimiser, vain = _Fall(self.began + seconds), self._optimiser(rate), 0
        while not fall.over:
            self._train(optimiser, round_steps, fall)
            vain = 0 if self._keep_if_better() else vain + 1
            if vain >= _PATIENCE:
                fall.shorten()
                self._restore()
                optimiser, vain = self._optimiser(rate), 0
        self._restore()
        spent = time.monotonic() - self.began
        return Trained(self.steps, spent, self.before, self.best, spent < _EARLY * seconds)

    def judged(self) -> float:
        """The mean loss on the samples that are not trained on; infinite where it is not finite."""
        with torch.no_grad():
            parts = self.held.split(max(self.size, 1024))
            total = sum(float(self.loss(self.network, part)) * len(part) for part in parts) / max(len(self.held), 1)
        return total if math.isfinite(total) else math.inf

    def _first_rate(self, seconds: float) -> float:
        """The rate of which a short fall, of so many seconds at most, leaves the smallest loss; the weights stay.

        Down the losses from one in the middle, a step at a time: far ones are too small, or run away.
        """
        losses: dict[int, float] = {}

        def left_by(place: int) -> float:
            if place not in losses and 0 <= place < len(_RATES):
                self._train(self._optimiser(_RATES[place]), _TRIED, _Fall(time.monotonic() + seconds, _TRIED))
                losses[place] = self.judged()
                self._restore()
            return losses.get(place, math.inf)

        best = _FIRST
        for way in (1, -1):
            while left_by(best + way) < left_by(best):
                best += way
        return _RATES[best]

    def _optimiser(self, rate: float) -> torch.optim.Optimizer:
        pairs = zip(self.weights, self.sizes, strict=True)
        groups = [{"params": [weight], "lr": rate * size, "first": rate * size} for weight, size in pairs]
        return torch.optim.Adam(groups)

    def _train(self, optimiser: torch.optim.Optimizer, steps: int, fall: _Fall) -> None:
        taken = 0
        while taken < steps:
            for batch in self.used[torch.randperm(len(self.used), generator=self.generator)].split(self.size):
                if taken >= steps or fall.over:
                    return
                for group in optimiser.param_groups:
                    group["lr"] = fall.share * group["first"]
                optimiser.zero_grad(set_to_none=True)
                loss = self.loss(self.network, batch)
                if not loss.requires_grad:
                    raise BadInput("The outputs have no gradient, so nothing can be trained: give the module one, or budget=0.")
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                taken, self.steps = taken + 1, self.steps + 1
                fall.step()

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


class _Fall:
    """The share of the first rate, from 1 to 0 by a half wave of a cosine, until a time, or sooner after so many steps."""

    def __init__(self, end: float, steps: float = math.inf) -> None:
        self.now, self.end, self.steps, self.taken, self.passed = time.monotonic(), end, steps, 0, 0.0

    @property
    def over(self) -> bool:
        return self.now >= self.end or self.taken >= self.steps

    @property
    def share(self) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * max(self.passed, self.taken / self.steps)))

    def step(self) -> None:
        """Go on by the time since the last step, of what was left of it then."""
        now = min(time.monotonic(), self.end)
        self.passed += (1.0 - self.passed) * (now - self.now) / max(self.end - self.now, 1e-9)
        self.now, self.taken = now, self.taken + 1

    def shorten(self) -> None:
        """Fall in less time than is left."""
        self.end -= _SHORTENED * (self.end - self.now)


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
