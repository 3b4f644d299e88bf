"""A DEQ against feed-forward networks on one target, trained alike: the rows of W1, W2, W4 and W5, and their claims.

Ref: [wu2024], experiments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Values
from notsodeep.papers.records import Record, of_one_run, where
from notsodeep.papers.statistics import Interval, format_number, mean
from notsodeep.separation.targets import BOOLEAN_TARGETS, Sawtooth, Steep, Target

_SETTINGS = ("samples", "steps", "rate", "bound", "seeds")
RUNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "W1": (("target", "steps"), _SETTINGS),
    "W2": (("dimension", "width"), _SETTINGS),
    "W4": ((), ()),
    "W5": (("target",), (*_SETTINGS, "width")),
}
"""By experiment, the settings that tell its contests apart, and those in which the records of one contest must agree."""
_TESTED = 4000  # samples
_MOST_PIECES_LOG2 = 20  # in single precision a sample has 24 binary digits


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of training that a config and its units share; base class of both, never a value itself.

    ‖W‖ of a DEQ is kept below `bound`; 0 leaves it free. `seeds` networks of each kind are trained.
    """

    batch: int
    rate: float
    decay: float = 1e-4
    bound: float = 0.0
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Duel(Training):
    """Settings of a DEQ of `width` units against one feed-forward network, `rival`, both trained for `steps` batches."""

    width: int
    rival: str
    steps: int

    def __post_init__(self) -> None:
        layers(self.rival)  # raises BadInput before anything is trained

    def stack(self, network: str, in_features: int) -> Stack:
        """The networks of all seeds, `network` being "deq" or "fnn"."""
        draws = generators(self.seeds, WEIGHTS)
        if network == "deq":
            return StackedDEQ(draws, in_features, self.width, bound=self.bound)
        return StackedFNN(draws, in_features, layers(self.rival))


@dataclass(frozen=True, kw_only=True)
class Contest(Training):
    """A DEQ of `width` units against `rivals`, such as L3W50 (two hidden layers of 50), and against `paired` networks: of that
    many hidden layers, with training that costs as many FLOPs as the DEQ's."""

    target: str
    dimension: int
    width: int
    rivals: tuple[str, ...]
    paired: tuple[int, ...]
    samples: int
    steps: int
    optimiser: str = "adamw"
    norm: bool = False
    skip: bool = False
    kind: str = "trained"

    def __post_init__(self) -> None:
        """Raises BadInput for a rival or a target that does not exist, before anything is trained."""
        for name in self.rivals:
            layers(name)
        if self.target not in BOOLEAN_TARGETS:
            target_of(self.target, self.dimension)

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.steps, self.batch, self.rate, self.decay, self.optimiser)

    @property
    def cost(self) -> float:
        """Most of it for the equilibria of the DEQ."""
        states = self.seeds * self.batch * (1.0 if self.norm else 0.6)
        per_step = 4e-3 + states * (4e-6 + 6e-7 * self.width) + 1.2e-3 * (len(self.rivals) + len(self.paired))
        return self.steps * per_step


def run_contest(unit: Contest, device: torch.device) -> Values:
    """Losses and costs of each network, and the loss of the best constant."""
    samples = draw(unit.target, unit.dimension, unit.samples, unit.seeds).to(device)

    def trained(stack: Stack) -> Trained:
        return train(stack.to(device), samples, unit.schedule, torch.Generator().manual_seed(BATCHES))

    def rival(widths: Sequence[int]) -> Trained:
        draws = generators(unit.seeds, WEIGHTS)
        return trained(StackedFNN(draws, samples.x.shape[-1], widths, norm=unit.norm, skip=unit.skip))

    draws, inputs = generators(unit.seeds, WEIGHTS), samples.x.shape[-1]
    deq = trained(StackedDEQ(draws, inputs, unit.width, norm=unit.norm, skip=unit.skip, bound=unit.bound))
    paired = {hidden: equal_cost(deq, inputs, hidden, 1) for hidden in unit.paired}
    return {
        "best_constant": round(samples.best_constant, 6),
        "deq": deq.to_dict(),
        "rivals": {name: rival(layers(name)).to_dict() for name in unit.rivals},
        "paired": {f"L{hidden + 1}W{widths[0]}": rival(widths).to_dict() for hidden, widths in paired.items()},
    }


def layers(name: str) -> tuple[int, ...]:
    """Hidden widths of a network by its name: (30, 30, 30) for L4W30, since a depth of 4 has three hidden layers."""
    found = re.fullmatch(r"L(\d{1,2})W(\d{1,5})", name)
    if not found or int(found[1]) < 2 or int(found[2]) < 1:
        raise BadInput(f"A feed-forward network is named like L3W50, of depth 3 and width 50; got {name!r}.")
    return (int(found[2]),) * (int(found[1]) - 1)


def draw(target: str, dimension: int, count: int, seeds: int) -> Samples:
    """Samples for every seed of sawtooth:5, steep, or a boolean function, whose test samples are the unseen ones."""
    if target in BOOLEAN_TARGETS:
        return _of_the_cube(target, count, seeds)
    function = target_of(target, dimension)
    x, x_test = (
        torch.stack([function.sample(many, generator) for generator in generators(seeds, purpose)])
        for many, purpose in ((count, DATA), (_TESTED, TEST))
    )
    # The networks get points in single precision: the values are those of the rounded points.
    x, x_test = x.float(), x_test.float()
    y, y_test = (_each(function, part.double()).float() for part in (x, x_test))
    return Samples(x, y, x_test, y_test)


def target_of(name: str, dimension: int) -> Target:
    """The target of a name like sawtooth:5 or steep; raises BadInput for another one."""
    kind, _, setting = name.partition(":")
    if kind == "steep" and not setting:
        return Steep(dimension)
    if kind == "sawtooth" and setting.isdecimal():
        if int(setting) > _MOST_PIECES_LOG2:
            raise BadInput(f"A sawtooth of 2^{setting} pieces is finer than its samples; 2^{_MOST_PIECES_LOG2} are the most.")
        return Sawtooth(int(setting), dimension)
    raise BadInput(f"There is no target {name!r}; there are sawtooth:5 and the like, steep, {', '.join(BOOLEAN_TARGETS)}.")


def _of_the_cube(name: str, count: int, seeds: int) -> Samples:
    """The whole seen and unseen part, the same for all seeds; of a large cube some points of each part."""
    target = BOOLEAN_TARGETS[name]
    if 2**target.dimension <= count:
        x, x_test = target.seen_and_unseen(torch.float32)
        return Samples(x, target(x), x_test, target(x_test))
    drawn = [target.sample(count, generator, torch.float32) for generator in generators(seeds, DATA)]
    x = torch.stack(drawn)
    x_test = x.clone()
    x_test[..., 1] = -1.0  # the large ones are among f1 … f3, whose unseen part is x_1 = −1
    return Samples(x, _each(target, x), x_test, _each(target, x_test))


def _each(function: Any, x: Tensor) -> Tensor:
    """Values of the function at x (copies, n, d), as (copies, n, 1)."""
    values: Tensor = function(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    return values


def losses(values: Values, of: str = "test") -> Interval | None:
    """The mean loss over the networks that did not diverge; None if all did."""
    known = [value for value in values[of] if value is not None]
    return mean(known) if known else None


def diverged(values: Values) -> int:
    """How many networks diverged."""
    return sum(value is None for value in values["test"])


def claims_of(record: Record, id: str, what: str, paper: str, levels: Mapping[str, float]) -> list[Claim]:
    """The claims of one contest: its order, its order at equal FLOPs, and the paper's `levels`, as far as there are any."""
    found = [ordering(record, id, what, paper)] if record.values["rivals"] else []
    if record.values["paired"]:
        claim = f"{what}: the DEQ ends below feed-forward networks of equal FLOPs"
        found.append(_ordering(record, "paired", f"{id}.flops", claim, "—"))
    close = level(record, f"{id}.level", what, levels)
    return found if close is None else [*found, close]


def ordering(record: Record, id: str, what: str, paper: str) -> Claim:
    """The claim that the DEQ ends below each network that the paper compares it with."""
    return _ordering(record, "rivals", id, f"{what}: the DEQ ends below each feed-forward network", paper)


def _ordering(record: Record, group: str, id: str, claim: str, paper: str) -> Claim:
    deq = losses(record.values["deq"])
    others = {name: losses(values) for name, values in record.values[group].items()}
    below = deq is not None and all(other is not None and other.above(deq) for other in others.values())
    spelt = ", ".join(f"{name} {_spelt(found)}" for name, found in others.items())
    lost = diverged(record.values["deq"]) + sum(map(diverged, record.values[group].values()))
    ours = f"{_spelt(deq)} against {spelt}; a constant {format_number(record.values['best_constant'])}"
    spread = f"95 % intervals, {record.config['seeds']} seeds{f'; {lost} diverged' * bool(lost)}"
    return Claim(id=id, claim=claim, paper=paper, ours=ours, spread=spread, verdict=holds(below))


def level(record: Record, id: str, what: str, paper: Mapping[str, float]) -> Claim | None:
    """The claim that each network's loss is within a factor of two of the paper's, by name ("DEQ", "L3W50")."""
    found = {"DEQ": losses(record.values["deq"])} | {k: losses(v) for k, v in record.values["rivals"].items()}
    ratios = {name: found[name].value / theirs for name, theirs in paper.items() if found.get(name)}  # type: ignore[union-attr]
    if not ratios:
        return None
    worst = max(ratios, key=lambda name: max(ratios[name], 1.0 / ratios[name]))
    theirs = ", ".join(f"{name} {format_number(value)}" for name, value in paper.items())
    ours = f"{', '.join(f'{name} × {ratio:.2f}' for name, ratio in ratios.items())}; farthest: {worst}"
    claim, spread = f"{what}: losses within a factor of two of the paper's", f"{record.config['seeds']} seeds"
    close = all(0.5 <= ratio <= 2.0 for ratio in ratios.values())
    return Claim(id=id, claim=claim, paper=theirs, ours=ours, spread=spread, verdict=holds(close))


def spelt_paper(deq: float | None, others: Mapping[str, float]) -> str:
    """The paper's losses as text, "0.1 against L3W5 0.2, L4W3 0.3"; "—" where it has none of the DEQ."""
    if deq is None:
        return "—"
    return f"{format_number(deq)} against {', '.join(f'{name} {format_number(loss)}' for name, loss in others.items())}"


def _spelt(found: Interval | None) -> str:
    if found is None:
        return "diverged"
    return f"{format_number(found.value)} ± {format_number(found.half_width)}"


def of_runs(name: str, records: Sequence[Record]) -> list[Record]:
    """The records of trained networks, those of one run for each contest."""
    return of_one_run(where(records, kind="trained"), *RUNS[name])
