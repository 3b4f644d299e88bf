"""Training of DEQs and feed-forward networks side by side, with its cost. Ref: [wu2024], experiments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from notsodeep.errors import BadInput, NumericsWarning
from notsodeep.models.training.flops import Flops, paired_width
from notsodeep.models.training.parallel import Stack, StackedDEQ

DATA, TEST, WEIGHTS, BATCHES = range(4)  # purposes of `generators`
_DIVERGED = 1e3  # in units of the first loss, or of that of predicting 0
_EVALUATED_AT_ONCE = 2048  # samples


@dataclass(frozen=True)
class Samples:
    """Samples per network, x (copies, n, d) and y (copies, n, outputs), or without the first axis for the same ones."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def to(self, device: torch.device) -> Samples:
        return Samples(*(part.to(device) for part in (self.x, self.y, self.x_test, self.y_test)))

    @property
    def best_constant(self) -> float:
        """Test loss of the mean of y."""
        guess = self.y.mean(-2, keepdim=True)
        return float((self.y_test - guess).square().mean())


@dataclass(frozen=True)
class Schedule:
    """AdamW or SGD (momentum 0.9) on the mean squared error, with a cosine rate over `steps` batches."""

    steps: int = 1000
    batch: int = 128
    rate: float = 5e-4
    decay: float = 1e-4
    optimiser: str = "adamw"

    def make(self, stack: Stack) -> torch.optim.Optimizer:
        """The optimiser of the weights of `stack`."""
        if self.optimiser == "adamw":
            return torch.optim.AdamW(stack.parameters(), lr=self.rate, weight_decay=self.decay)
        if self.optimiser == "sgd":
            return torch.optim.SGD(stack.parameters(), lr=self.rate, weight_decay=self.decay, momentum=0.9)
        raise BadInput(f"The optimiser is adamw or sgd, got {self.optimiser!r}.")


@dataclass(frozen=True)
class Trained:
    """Losses and largest weight of each network (None where it diverged, at the step in `diverged`), and the cost of training:
    parameters of a network, FLOPs per sample and in total."""

    test: tuple[float | None, ...]
    train: tuple[float | None, ...]
    largest_weight: tuple[float | None, ...]
    diverged: tuple[int | None, ...]
    parameters: int
    flops: Flops
    total_flops: float
    evaluations: float = 0.0
    unsolved: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain rounded numbers, for a record."""
        return {
            "test": _rounded(self.test),
            "train": _rounded(self.train),
            "largest_weight": _rounded(self.largest_weight),
            "diverged": list(self.diverged),
            "parameters": self.parameters,
            "forward_flops": round(self.flops.forward),
            "backward_flops": round(self.flops.backward),
            "total_flops": round(self.total_flops),
            "evaluations": round(self.evaluations, 2),
            "unsolved": round(self.unsolved, 5),
        }


def train(
    stack: Stack,
    samples: Samples,
    schedule: Schedule,
    generator: torch.Generator,
    watch: Callable[[int, Stack], bool | None] | None = None,
) -> Trained:
    """Train every network of the stack on batches drawn with replacement, stopping those that diverge.

    `watch` is called with the step and the stack after every step; returning True ends the training.
    """
    optimiser = schedule.make(stack)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, schedule.steps)
    alive = torch.ones(stack.copies, dtype=torch.bool, device=samples.x.device)
    ended: list[int | None] = [None] * stack.copies
    limit: Tensor | None = None
    spent = _Spent()
    for step in range(schedule.steps):
        x, y = _batch(samples, schedule.batch, stack.copies, generator)
        losses = (stack(x) - y).square().mean((1, 2))
        limit = _DIVERGED * torch.maximum(losses.detach(), y.square().mean((1, 2))) if limit is None else limit
        optimiser.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericsWarning)  # counted, in `unsolved`
            torch.where(alive, losses, 0.0).sum().backward()
        optimiser.step()
        rates.step()
        stack.constrain()
        spent.add(stack, len(x[0]))
        lost = alive & ~(losses.detach() <= limit)
        if bool(lost.any()):
            ended = [step if bool(lost[k]) else was for k, was in enumerate(ended)]
            alive &= ~lost
        if not bool(alive.all()):
            _silence(stack, ~alive)
        if watch is not None and watch(step + 1, stack):
            break
    return _outcome(stack, samples, alive, ended, spent)


def evaluate(stack: Stack, x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error of each network."""
    with torch.no_grad():
        parts = zip(x.split(_EVALUATED_AT_ONCE, -2), y.split(_EVALUATED_AT_ONCE, -2), strict=True)
        sums = [(stack(part) - wanted).square().sum((1, 2)) for part, wanted in parts]
    return torch.stack(sums).sum(0) / (y.shape[-2] * y.shape[-1])


def largest_weights(stack: Stack) -> Tensor:
    """max |weight| of each network."""
    return torch.stack([parameter.detach().abs().flatten(1).amax(1) for parameter in stack.parameters()]).amax(0)


def generators(seeds: int, purpose: int) -> list[torch.Generator]:
    """One generator per seed, independent between purposes (DATA, WEIGHTS, …)."""
    return [torch.Generator().manual_seed(1_000_003 * purpose + seed) for seed in range(seeds)]


def equal_cost(deq: Trained, in_features: int, hidden: int, outputs: int) -> tuple[int, ...]:
    """Widths of a feed-forward network of `hidden` layers whose training costs at most the FLOPs of the DEQ's."""
    return (paired_width(in_features, hidden, outputs, deq.flops.training),) * hidden


class _Spent:
    """Sums over the steps of FLOPs, samples, evaluations and unsolved samples."""

    def __init__(self) -> None:
        self.steps, self.forward, self.backward, self.samples = 0, 0.0, 0.0, 0
        self.evaluations = self.unsolved = 0.0

    def add(self, stack: Stack, samples: int) -> None:
        flops = stack.flops()
        self.steps, self.samples = self.steps + 1, self.samples + samples
        self.forward, self.backward = self.forward + flops.forward, self.backward + flops.backward
        if isinstance(stack, StackedDEQ):
            self.evaluations += stack.ahead.solves.evaluations
            self.unsolved += float(stack.unsolved.mean())


def _outcome(stack: Stack, samples: Samples, alive: Tensor, ended: list[int | None], spent: _Spent) -> Trained:
    flops = Flops(spent.forward / spent.steps, spent.backward / spent.steps)
    mean_samples = spent.samples / spent.steps
    return Trained(
        test=_known(evaluate(stack, samples.x_test, samples.y_test), alive),
        train=_known(evaluate(stack, samples.x, samples.y), alive),
        largest_weight=_known(largest_weights(stack), alive),
        diverged=tuple(ended),
        parameters=stack.parameter_count(),
        flops=flops,
        total_flops=(spent.forward + spent.backward) * mean_samples,
        evaluations=spent.evaluations / spent.steps,
        unsolved=spent.unsolved / spent.steps,
    )


def _batch(samples: Samples, size: int, copies: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch (copies, size, …), drawn for each network."""
    n = samples.x.shape[-2]
    drawn = torch.randint(n, (copies, min(size, n)), generator=generator).to(samples.x.device)
    if samples.x.ndim == 2:
        return samples.x[drawn], samples.y[drawn]
    each = torch.arange(copies, device=drawn.device)[:, None]
    return samples.x[each, drawn], samples.y[each, drawn]


@torch.no_grad()
def _silence(stack: Stack, lost: Tensor) -> None:
    """Set the networks that diverged to 0, so that the others do not wait for their equilibria."""
    for parameter in stack.parameters():
        parameter[lost] = 0.0


def _known(values: Tensor, alive: Tensor) -> tuple[float | None, ...]:
    return tuple(float(v) if bool(k) and bool(torch.isfinite(v)) else None for v, k in zip(values, alive, strict=True))


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{value:.5g}") for value in values]
