"""A DEQ and the explicit network matched to it, trained at equal cost on one task. Ref: [wu2024], experiments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.approximation.interval import half_width
from notsodeep.arguments import count
from notsodeep.arrays import Array, label_array, samples
from notsodeep.data.standardiser import Standardiser
from notsodeep.data.targets import Targets
from notsodeep.errors import BadInput
from notsodeep.matching.design import design
from notsodeep.models.training.equal_cost import Samples, Schedule, Trained, equal_cost, evaluate, train
from notsodeep.models.training.flops import Flops
from notsodeep.models.training.parallel import Stack, StackedDEQ, StackedFNN
from notsodeep.theory.architecture import Implicit

NOTHING_LEARNT = 0.95
"""In units of the best constant's loss: above it, less than 5 % of the label is learnt."""
WORTH_ITS_COST = 0.01
"""In units of the best constant's loss: for a gain of less than 1 % a DEQ's iterations at every use are too dear."""
TESTED, VALIDATED = 0.3, 0.2
"""Shares of the samples to test on, and of the rest to choose the rate with."""
DOMINATES = 0.9
"""Share of x's variance in one of several features: in distances and inner products the others then count a tenth at most.
Pixels never come near it; a length in millimetres next to one in metres always does."""
FEWEST_SAMPLES = 20

Say = Callable[[str], object]


@dataclass(frozen=True)
class Runner:
    """One kind of network at its best rate: the test loss of each seed, in units of the best constant's, and the cost.

    A network that diverged counts as the constant.

    Args:
        losses: The test loss of each seed, in units of the best constant's.
        rate: The learning rate, the best of those tried.
        widths: The widths of the layers.
        parameters: The number of weights.
        flops: FLOPs per sample and step.
        total_flops: FLOPs of the whole training.
        evaluations: Evaluations of the DEQ's map per equilibrium, a mean over the training.
        unsolved: The share of samples whose equilibrium was not found.
        diverged: How many seeds diverged.
    """

    losses: tuple[float, ...]
    rate: float
    widths: tuple[int, ...]
    parameters: int
    flops: Flops
    total_flops: float
    evaluations: float
    unsolved: float
    diverged: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.losses))

    @property
    def half_width(self) -> float:
        """Half of Student's 95 % interval over the seeds; infinite for one seed."""
        return half_width(self.losses) if len(self.losses) > 1 else math.inf

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.half_width:.1g}"

    def to_dict(self) -> dict[str, Any]:
        flops = {"forward_flops": self.flops.forward, "training_flops": self.flops.training}
        fields = {name: value for name, value in asdict(self).items() if name != "flops"}
        return {"mean": self.mean, "half_width": self.half_width} | fields | flops


@dataclass(frozen=True)
class Race:
    """The result of training both kinds on the same samples, at equal FLOPs.

    Args:
        deq, explicit: The two kinds.
        trained_on, tested_on: Numbers of samples.
    """

    deq: Runner
    explicit: Runner
    trained_on: int
    tested_on: int

    @property
    def gain(self) -> float:
        """Loss of the explicit network minus that of the DEQ, in units of the best constant's."""
        return self.explicit.mean - self.deq.mean

    @property
    def outcome(self) -> str:
        """The verdict: "neither" if both fail to learn the label, "deq" if it is better by more than chance and by more than 1
        % of the constant's loss, else "explicit"."""
        if min(self.deq.mean, self.explicit.mean) > NOTHING_LEARNT:
            return "neither"
        return "deq" if self.deq.high < self.explicit.low and self.gain > WORTH_ITS_COST else "explicit"

    def to_dict(self) -> dict[str, Any]:
        kinds = {"deq": self.deq.to_dict(), "explicit": self.explicit.to_dict()}
        return {"outcome": self.outcome, "trained_on": self.trained_on, "tested_on": self.tested_on} | kinds


def race(
    x: Array,
    y: Any,
    *,
    width: int = 30,
    seeds: int = 5,
    steps: int = 1500,
    rates: Sequence[float] = (3e-3, 1e-2),
    batch: int = 100,
    test: tuple[Array, Any] | None = None,
    net: Implicit | None = None,
    generator: torch.Generator | None = None,
    say: Say | None = None,
) -> Race:
    """Train a ReLU DEQ, and the explicit network designed for `net` with as many FLOPs of training, on (x, y).

    Args:
        x: Samples, (n, p).
        y: Real numbers, (n,) or (n, K), or classes (n,).
        width: Units of the DEQ; the width of the explicit network follows from the FLOPs.
        seeds: Networks of each kind, at least 2.
        steps: Steps of training.
        rates: Learning rates to try; the best on a fifth of the training samples, used for nothing else, is kept.
        batch: Samples per step.
        test: Samples and labels to test on; by default 30 % of the samples are held out.
        net: The network that the explicit one is designed for; `Implicit("relu", var_a=0.2)` by default.
        generator: The source of random choices; seeded with 0 by default.
        say: Called with a text at each step.

    Returns:
        The losses and costs of both kinds.

    Raises:
        BadInput: If there are fewer than 20 samples, one seed or no rate, or all labels are equal.
    """
    random = generator or torch.Generator().manual_seed(0)
    if count(seeds, "seeds") < 2:
        raise BadInput("One network of each kind says nothing about the spread; train with 2 seeds at least.")
    if not rates:
        raise BadInput("A race needs at least one rate; give rates=(1e-2,).")
    task = _RaceData.of(x, y, test, random)
    schedules = [Schedule(steps=count(steps, "steps"), batch=count(batch, "batch"), rate=rate) for rate in rates]
    features, outputs = task.samples.x.shape[1], task.samples.y.shape[1]
    phis = design(net or Implicit("relu", var_a=0.2), tau0=1.0, family="matched").explicit.layers
    seed = int(torch.randint(2**31 - 1, (), generator=random))

    def draws() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed + k) for k in range(seeds)]

    def best(kind: str, make: Callable[[], Stack]) -> tuple[Trained, float]:
        found = []
        for schedule in schedules:
            (say or str)(f"training {seeds} × {kind}, rate {schedule.rate:g}")
            stack, order = make(), torch.Generator().manual_seed(seed)  # every rate sees the same batches
            trained = train(stack, task.samples, schedule, order)
            found.append((task.validation_loss(stack, trained), schedule.rate, trained))
        _, rate, trained = min(found, key=lambda one: one[0])
        return trained, rate

    deq = best("DEQ", lambda: StackedDEQ(draws(), features, width, outputs))
    widths = equal_cost(deq[0], features, len(phis), outputs)
    explicit = best("matched network", lambda: StackedFNN(draws(), features, widths, outputs, activations=phis))
    return Race(
        deq=task.runner(*deq, (width,)),
        explicit=task.runner(*explicit, widths),
        trained_on=len(task.samples.x),
        tested_on=len(task.samples.x_test),
    )


@dataclass(frozen=True, eq=False)
class _RaceData:
    """Samples in float32; on the training part x is centred, of mean squared norm p, and y has total variance 1."""

    samples: Samples
    x_validation: Tensor
    y_validation: Tensor
    constant: float

    @classmethod
    def of(cls, x: Array, y: Any, test: tuple[Array, Any] | None, generator: torch.Generator) -> _RaceData:
        rows = samples(x).detach().cpu()
        n = len(rows)
        if n < FEWEST_SAMPLES:
            raise BadInput(f"There are {n} samples; {FEWEST_SAMPLES} at least are needed to train, choose and test.")
        if test is None:
            targets = Targets.numbered(y, n).standardised()
            order = torch.randperm(n, generator=generator)
            tested, known = order.split([round(TESTED * n), n - round(TESTED * n)])
            rows_test, targets_test = rows[tested], targets[tested]
        else:
            rows_test = samples(test[0], "the test samples").detach().cpu()
            targets = Targets.numbered(_together(y, test[1]), n + len(rows_test)).standardised()
            targets, targets_test = targets[:n], targets[n:]
            known = torch.randperm(n, generator=generator)
        chosen, learnt = known.split([round(VALIDATED * len(known)), len(known) - round(VALIDATED * len(known))])
        columns = Columns.of(rows[learnt])
        standardiser = Standardiser.of(columns(rows[learnt]))
        mean = targets[learnt].mean(0)
        size = float((targets[learnt] - mean).square().sum(1).mean().sqrt())
        if size == 0.0:
            raise BadInput("All labels to train on are equal: there is nothing to learn.")

        def inputs(part: Tensor) -> Tensor:
            return (standardiser(columns(part)) * math.sqrt(part.shape[1])).float()

        def outputs(part: Tensor) -> Tensor:
            return ((part - mean) / size).float()

        seen = Samples(inputs(rows[learnt]), outputs(targets[learnt]), inputs(rows_test), outputs(targets_test))
        constant = seen.best_constant
        if constant == 0.0:
            raise BadInput("All labels to test on are the mean of those to train on: there is nothing to tell apart.")
        return cls(seen, inputs(rows[chosen]), outputs(targets[chosen]), constant)

    def validation_loss(self, stack: Stack, trained: Trained) -> float:
        """The mean loss of the seeds; a network that diverged counts as the constant."""
        losses = evaluate(stack, self.x_validation, self.y_validation).tolist()
        constant = float(self.y_validation.square().mean())
        return float(np.mean([constant if t is None else v for v, t in zip(losses, trained.test, strict=True)]))

    def runner(self, trained: Trained, rate: float, widths: tuple[int, ...]) -> Runner:
        return Runner(
            losses=tuple(1.0 if loss is None else loss / self.constant for loss in trained.test),
            rate=rate,
            widths=widths,
            parameters=trained.parameters,
            flops=trained.flops,
            total_flops=trained.total_flops,
            evaluations=trained.evaluations,
            unsolved=trained.unsolved,
            diverged=sum(loss is None for loss in trained.test),
        )


def _together(y: Any, y_test: Any) -> np.ndarray[Any, Any]:
    """Labels to train on and to test on in one array, where a class has one number."""
    parts = [label_array(part) for part in (y, y_test)]
    parts = [part[:, 0] if part.ndim == 2 and part.shape[1] == 1 else part for part in parts]
    if parts[0].shape[1:] != parts[1].shape[1:] or parts[0].dtype.kind != parts[1].dtype.kind:
        shown = " and ".join(f"{part.dtype} of shape {part.shape}" for part in parts)
        raise BadInput(f"The labels to train on and to test on differ in kind: {shown}.")
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Columns:
    """Divisors of the features: 1, or their standard deviations if one feature dominates."""

    divisors: Tensor
    """(p,), float64."""
    largest: float
    """The largest share of the variance in one feature, before the division."""

    @classmethod
    def of(cls, x: Tensor) -> Columns:
        """The divisors for x (n, p); 1 for a feature that never changes."""
        variances = x.double().var(0, correction=0)
        total = float(variances.sum())
        largest = float(variances.max()) / total if total > 0.0 else 0.0
        if x.shape[1] == 1 or largest <= DOMINATES:
            return cls(torch.ones_like(variances), largest)
        # A feature that never changes keeps a variance of the size of rounding.
        floor = (torch.finfo(x.dtype).eps * x.double().abs().amax(0)).square()
        return cls(torch.where(variances > floor, variances.sqrt(), 1.0), largest)

    @property
    def scaled(self) -> bool:
        """Whether one feature dominated."""
        return len(self.divisors) > 1 and self.largest > DOMINATES

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[1] != len(self.divisors):
            raise BadInput(f"x has {x.shape[1]} features, and {len(self.divisors)} elsewhere.")
        return x.double() / self.divisors
