"""A DEQ against feed-forward networks on one target, trained alike: the rows of W1, W2, W4 and W5.

Ref: [wu2024], experiments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.models.training.equal_cost import (
    BATCHES,
    DATA,
    TEST,
    WEIGHTS,
    Samples,
    Schedule,
    Trained,
    equal_cost,
    generators,
    train,
)
from notsodeep.models.training.parallel import Stack, StackedDEQ, StackedFNN
from notsodeep.papers.claims import Claim, Verdict, holds
from notsodeep.papers.experiment import Values
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import Estimate, format_number, mean
from notsodeep.separation.targets import BOOLEAN_TARGETS, Sawtooth, Steep, Target

_TESTED = 4000  # samples
_MOST_PIECES_LOG2 = 20  # in single precision a sample has 24 digits


@dataclass(frozen=True)
class Contest:
    """A DEQ of `width` units against `rivals`, such as L3W50 (two hidden layers of 50), and against networks of as many hidden
    layers as `paired` says, whose training costs as many FLOPs as the DEQ's. `seeds` networks of each are trained."""

    target: str
    dimension: int
    width: int
    rivals: tuple[str, ...]
    paired: tuple[int, ...]
    samples: int
    steps: int
    batch: int
    rate: float
    decay: float
    seeds: int
    optimiser: str = "adamw"
    norm: bool = False
    skip: bool = False
    bound: float = 0.0
    kind: str = "trained"

    def __post_init__(self) -> None:
        """What cannot be trained is told before anything is."""
        for name in self.rivals:
            layers(name)
        if self.target not in BOOLEAN_TARGETS:
            target_of(self.target, self.dimension)

    @classmethod
    def of(cls, config: Any, **own: Any) -> Contest:
        """With `own` settings, and those of a config that have the same names."""
        names = {field.name for field in fields(cls)}
        shared = {field.name: getattr(config, field.name) for field in fields(config) if field.name in names}
        return cls(**shared | own)

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.steps, self.batch, self.rate, self.decay, self.optimiser)


def run_contest(unit: Contest, device: torch.device) -> Values:
    """Each network's losses and costs, and the best constant's loss."""
    samples = draw(unit.target, unit.dimension, unit.samples, unit.seeds).to(device)

    def trained(stack: Stack) -> Trained:
        return train(stack.to(device), samples, unit.schedule, torch.Generator().manual_seed(BATCHES))

    def rival(widths: Sequence[int]) -> Trained:
        draws = generators(unit.seeds, WEIGHTS)
        return trained(StackedFNN(draws, samples.x.shape[-1], widths, norm=unit.norm, skip=unit.skip))

    deq = trained(deq_of(unit, samples.x.shape[-1]))
    paired = {hidden: equal_cost(deq, samples.x.shape[-1], hidden, 1) for hidden in unit.paired}
    return {
        "best_constant": round(samples.best_constant, 6),
        "deq": deq.to_dict(),
        "rivals": {name: rival(layers(name)).to_dict() for name in unit.rivals},
        "paired": {f"L{hidden + 1}W{widths[0]}": rival(widths).to_dict() for hidden, widths in paired.items()},
    }


def deq_of(unit: Contest, in_features: int) -> StackedDEQ:
    draws = generators(unit.seeds, WEIGHTS)
    return StackedDEQ(draws, in_features, unit.width, norm=unit.norm, skip=unit.skip, bound=unit.bound)


def layers(name: str) -> tuple[int, ...]:
    """The hidden widths of L4W30: a depth of 4 has three hidden layers."""
    found = re.fullmatch(r"L(\d{1,2})W(\d{1,5})", name)
    if not found or int(found[1]) < 2 or int(found[2]) < 1:
        raise BadInput(f"A feed-forward network is named like L3W50, of depth 3 and width 50; got {name!r}.")
    return (int(found[2]),) * (int(found[1]) - 1)


def draw(target: str, dimension: int, count: int, seeds: int) -> Samples:
    """Samples of a target for every seed: of sawtooth:5, steep, or a boolean function, whose test samples are the unseen."""
    if target in BOOLEAN_TARGETS:
        return _of_the_cube(target, count, seeds)
    function = target_of(target, dimension)
    x, x_test = (
        torch.stack([function.sample(many, generator) for generator in generators(seeds, purpose)])
        for many, purpose in ((count, DATA), (_TESTED, TEST))
    )
    # Values are those of the points as the networks get them, rounded to single precision.
    return _in_single_precision(x, x_test, function)


def target_of(name: str, dimension: int) -> Target:
    kind, _, setting = name.partition(":")
    if kind == "steep" and not setting:
        return Steep(dimension)
    if kind == "sawtooth" and setting.isdecimal():
        if int(setting) > _MOST_PIECES_LOG2:
            raise BadInput(
                f"A sawtooth of 2^{setting} pieces is finer than its samples; 2^{_MOST_PIECES_LOG2} are the most."
            )
        return Sawtooth(int(setting), dimension)
    raise BadInput(
        f"There is no target {name!r}; there are sawtooth:5 and the like, steep, {', '.join(BOOLEAN_TARGETS)}."
    )


def _of_the_cube(name: str, count: int, seeds: int) -> Samples:
    """All of the seen and of the unseen part, the same for all seeds; where the cube is large, some of each."""
    target = BOOLEAN_TARGETS[name]
    if 2**target.dimension <= count:
        x, x_test = target.seen_and_unseen(torch.float32)
        return Samples(x, target(x), x_test, target(x_test))
    drawn = [target.sample(count, generator, torch.float32) for generator in generators(seeds, DATA)]
    x = torch.stack(drawn)
    x_test = x.clone()
    x_test[..., 1] = -1.0  # f1 … f3, the large ones: U is where x_1 = −1
    return Samples(x, _each(target, x), x_test, _each(target, x_test))


def _in_single_precision(x: Tensor, x_test: Tensor, function: Target) -> Samples:
    parts = [part.float() for part in (x, x_test)]
    values = [_each(function, part.double()).float() for part in parts]
    return Samples(parts[0], values[0], parts[1], values[1])


def _each(function: Any, x: Tensor) -> Tensor:
    """The function's values of (copies, n, d), as (copies, n, 1)."""
    values: Tensor = function(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    return values


def losses(values: Values, of: str = "test") -> Estimate | None:
    """Over the networks that did not diverge."""
    known = [value for value in values[of] if value is not None]
    return mean(known) if known else None


def diverged(values: Values) -> int:
    return sum(value is None for value in values["test"])


def below(deq: Estimate | None, others: Sequence[Estimate | None]) -> bool:
    """Whether the DEQ's interval lies below each of the others'. One network has no interval, and shows nothing."""
    return deq is not None and all(
        other is not None and min(deq.count, other.count) > 1 and deq.value + deq.spread < other.value - other.spread
        for other in others
    )


def ordering(record: Record, id: str, what: str, paper: str, command: str) -> Claim:
    """The claim that the DEQ ends below each of the networks that the paper sets beside it."""
    return _ordering(record, "rivals", id, f"{what}: the DEQ ends below each feed-forward network", paper, command)


def equal_flops(record: Record, id: str, what: str, command: str) -> Claim:
    """Ours beside it: the same against networks whose training costs as many FLOPs."""
    claim = f"{what}: the DEQ ends below feed-forward networks of equal FLOPs"
    return _ordering(record, "paired", id, claim, "—", command)


def _ordering(record: Record, group: str, id: str, claim: str, paper: str, command: str) -> Claim:
    deq = losses(record.values["deq"])
    others = {name: losses(values) for name, values in record.values[group].items()}
    spelt = ", ".join(f"{name} {_spelt(found)}" for name, found in others.items())
    constant = format_number(record.values["best_constant"])
    lost = diverged(record.values["deq"]) + sum(map(diverged, record.values[group].values()))
    return Claim(
        id=id,
        claim=claim,
        paper=paper,
        ours=f"{_spelt(deq)} against {spelt}; a constant {constant}",
        spread=f"95 % intervals, {record.config['seeds']} seeds{f'; {lost} diverged' * bool(lost)}",
        verdict=holds(below(deq, list(others.values()))),
        command=command,
    )


def level(record: Record, id: str, what: str, paper: dict[str, float], command: str) -> Claim | None:
    """The claim that each network's loss is within a factor of two of the paper's, by name ("DEQ", "L3W50")."""
    found = {"DEQ": losses(record.values["deq"])} | {k: losses(v) for k, v in record.values["rivals"].items()}
    ratios = {name: found[name].value / theirs for name, theirs in paper.items() if found.get(name)}  # type: ignore[union-attr]
    if not ratios:
        return None
    worst = max(ratios, key=lambda name: max(ratios[name], 1.0 / ratios[name]))
    close = all(0.5 <= ratio <= 2.0 for ratio in ratios.values())
    return Claim(
        id=id,
        claim=f"{what}: losses within a factor of two of the paper's",
        paper=", ".join(f"{name} {format_number(value)}" for name, value in paper.items()),
        ours=f"{', '.join(f'{name} × {ratio:.2f}' for name, ratio in ratios.items())}; farthest: {worst}",
        spread=f"{record.config['seeds']} seeds",
        verdict=Verdict.reproduced if close else Verdict.not_reproduced,
        command=command,
    )


def _spelt(found: Estimate | None) -> str:
    if found is None:
        return "diverged"
    return f"{format_number(found.value)} ± {format_number(found.half_width)}"


def cost(unit: Contest) -> float:
    """Seconds: most go into the equilibria of the DEQ."""
    states = unit.seeds * unit.batch * (1.0 if unit.norm else 0.6)
    per_step = 4e-3 + states * (4e-6 + 6e-7 * unit.width) + 1.2e-3 * (len(unit.rivals) + len(unit.paired))
    return unit.steps * per_step


def trained(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.config.get("kind") == "trained"]


def constructed(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.config.get("kind") == "constructed"]
