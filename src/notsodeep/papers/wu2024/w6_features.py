"""W6: sizes of the features of networks that learnt the same function. Ref: [wu2024], dense features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.models.training.equal_cost import BATCHES, Schedule, train
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values, from_config
from notsodeep.papers.records import Record, in_one_run
from notsodeep.papers.statistics import Interval, mean
from notsodeep.papers.wu2024.contest import Duel, draw
from notsodeep.separation.diagonal import gradient_descent
from notsodeep.separation.targets import BOOLEAN_TARGETS

NETWORKS = ("diagonal", "deq", "fnn")
_SHOWN = 32  # samples of a heat map


@dataclass(frozen=True, kw_only=True)
class Config(Duel):
    """Settings: those of both networks, and the boolean function that they learn."""

    target: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in BOOLEAN_TARGETS:
            raise BadInput(f"There is no target {self.target!r}; there are {', '.join(BOOLEAN_TARGETS)}.")


@dataclass(frozen=True, kw_only=True)
class Unit(Duel):
    """The networks of one kind, for all seeds."""

    network: str
    target: str

    @property
    def cost(self) -> float:
        each = {"diagonal": 3e-4, "fnn": 2e-3, "deq": 8e-3 + self.seeds * self.batch * 1e-5}[self.network]
        return each * self.steps


FULL = Config(target="f1", width=20, rival="L3W20", steps=4000, batch=64, rate=1e-3, bound=1.4, seeds=10)


def units(config: Config) -> list[Unit]:
    return [from_config(Unit, config, network=name) for name in NETWORKS]


def run(unit: Unit, device: torch.device) -> Values:
    """Mean magnitudes of the features over the seen part, each network's largest first, and the first network's heat map."""
    target = BOOLEAN_TARGETS[unit.target]
    samples = draw(unit.target, target.dimension, 2**target.dimension, unit.seeds).to(device)
    loss: Sequence[float | None]
    if unit.network == "diagonal":  # z = x/(1 − w), from w = 0: a single outcome
        network = gradient_descent(samples.x, samples.y, unit.steps)
        with torch.no_grad():
            features = network.features(samples.x)[None]
            loss = [float((network(samples.x) - samples.y).square().mean())]
    else:
        stack = unit.stack(unit.network, target.dimension).to(device)
        schedule = Schedule(unit.steps, unit.batch, unit.rate, unit.decay)
        outcome = train(stack, samples, schedule, torch.Generator().manual_seed(BATCHES))
        with torch.no_grad():
            features, loss = stack.features(samples.x), outcome.train
    return _magnitudes(features.cpu()) | {"loss": list(loss), "features": features.shape[-1]}


def _magnitudes(features: Tensor) -> Values:
    size = features.abs().mean(1)
    order = size[0].argsort(descending=True)
    return {
        "magnitudes": [[round(value, 4) for value in row] for row in size.sort(1, descending=True).values.tolist()],
        "spread_out": [round(value, 5) for value in spread_out(size).tolist()],
        "map": [[round(v, 3) for v in row] for row in features[0, :_SHOWN, order].abs().T.tolist()],
    }


def spread_out(size: Tensor) -> Tensor:
    """(Σ a)²/(m Σ a²) of the m magnitudes in each row: 1 where all are equal, 1/m where only one is not zero."""
    return size.sum(1).square() / (size.shape[1] * size.square().sum(1))


def comparable(records: Sequence[Record]) -> dict[str, Record]:
    """The records of one run, by network."""
    return {record.config["network"]: record for record in in_one_run(records, ("network",))}


def claims(every: Records) -> list[Claim]:
    found = comparable(every["W6"])
    if not {"deq", "fnn"} <= set(found):
        return []
    deq, fnn = (mean(found[name].values["spread_out"]) for name in ("deq", "fnn"))
    other = found.get("diagonal")
    diagonal = f"; diagonal DEQ {other.values['spread_out'][0]:.3f}" if other else ""
    return [
        Claim(
            id="W6.dense",
            claim="The features of a DEQ trained on f1 are alike in size, a feed-forward network's are few: (Σ a)²/(m Σ a²)",
            paper="DEQ dense, FNN few",
            ours=f"DEQ {_spelt(deq)}, FNN {_spelt(fnn)}{diagonal}",
            spread=f"95 % intervals, {deq.count} seeds",
            verdict=holds(deq.above(fnn)),
        )
    ]


def _spelt(found: Interval) -> str:
    return f"{found.value:.3f} ± {found.half_width:.3f}"


def notes(_: Records) -> list[str]:
    return [
        "A feature's size is its mean magnitude over the seen part of the cube. The FNN's are those of its last hidden layer.",
        "A ReLU unit that is never active counts as a feature of size 0, for all networks.",
    ]


W6 = Experiment(
    name="W6",
    title="Dense features",
    shows="The sizes of the features of a diagonal DEQ, a DEQ and a feed-forward network that learnt f1.",
    units=units,
    quick=replace(FULL, steps=2000, seeds=5),
    full=FULL,
    run=run,
    judge=claims,
    remark=notes,
    command="separate",
)
