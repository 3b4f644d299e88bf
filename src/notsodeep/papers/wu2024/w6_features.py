"""W6: how many features carry a function that was learnt. Ref: [wu2024], dense features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.models.training.equal_cost import BATCHES, WEIGHTS, Schedule, generators, train
from notsodeep.models.training.parallel import Stack, StackedDEQ, StackedFNN
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import Estimate, mean, of_one_setting
from notsodeep.papers.wu2024.contest import draw, layers
from notsodeep.separation.diagonal import gradient_descent
from notsodeep.separation.targets import BOOLEAN_TARGETS

NETWORKS = ("diagonal", "deq", "fnn")
_SHOWN = 32  # samples of a heat map


@dataclass(frozen=True)
class Config:
    target: str = "f1"
    width: int = 20
    rival: str = "L3W20"
    steps: int = 4000
    batch: int = 64
    rate: float = 1e-3
    decay: float = 1e-4
    bound: float = 1.4
    seeds: int = 10


@dataclass(frozen=True)
class Unit:
    network: str
    target: str
    width: int
    rival: str
    steps: int
    batch: int
    rate: float
    decay: float
    bound: float
    seeds: int

    def __post_init__(self) -> None:
        """What cannot be trained is told before anything is."""
        layers(self.rival)
        if self.target not in BOOLEAN_TARGETS:
            raise BadInput(f"There is no target {self.target!r}; there are {', '.join(BOOLEAN_TARGETS)}.")


def units(config: Config) -> list[Unit]:
    shared = {field.name: getattr(config, field.name) for field in fields(config)}
    return [Unit(network=name, **shared) for name in NETWORKS]


def run(unit: Unit, device: torch.device) -> Values:
    """The mean magnitude of every feature over the seen part, each network's largest first, and the heat map of the first."""
    target = BOOLEAN_TARGETS[unit.target]
    samples = draw(unit.target, target.dimension, 2**target.dimension, unit.seeds).to(device)
    loss: Sequence[float | None]
    if unit.network == "diagonal":
        features, loss = _diagonal(samples.x, samples.y, unit)
    else:
        stack = _stack(unit, target.dimension).to(device)
        schedule = Schedule(unit.steps, unit.batch, unit.rate, unit.decay)
        outcome = train(stack, samples, schedule, torch.Generator().manual_seed(BATCHES))
        with torch.no_grad():
            features, loss = stack.features(samples.x), outcome.train
    return _magnitudes(features.cpu()) | {"loss": list(loss), "features": features.shape[-1]}


def _stack(unit: Unit, in_features: int) -> Stack:
    draws = generators(unit.seeds, WEIGHTS)
    if unit.network == "deq":
        return StackedDEQ(draws, in_features, unit.width, bound=unit.bound)
    return StackedFNN(draws, in_features, layers(unit.rival))


def _diagonal(x: Tensor, y: Tensor, unit: Unit) -> tuple[Tensor, list[float]]:
    """z = x/(1 − w), which starts at w = 0 and so has one outcome."""
    network = gradient_descent(x, y, unit.steps)
    with torch.no_grad():
        return network.features(x)[None], [float((network(x) - y).square().mean())]


def _magnitudes(features: Tensor) -> Values:
    size = features.abs().mean(1)
    order = size[0].argsort(descending=True)
    return {
        "magnitudes": [[round(value, 4) for value in row] for row in size.sort(1, descending=True).values.tolist()],
        "spread_out": [round(value, 5) for value in spread_out(size).tolist()],
        "map": [[round(v, 3) for v in row] for row in features[0, :_SHOWN, order].abs().T.tolist()],
    }


def spread_out(size: Tensor) -> Tensor:
    """(Σ a)²/(m Σ a²) of m magnitudes, row by row: 1 where all are alike, 1/m where there is one."""
    return size.sum(1).square() / (size.shape[1] * size.square().sum(1))


def cost(unit: Unit) -> float:
    each = {"diagonal": 3e-4, "fnn": 2e-3, "deq": 8e-3 + unit.seeds * unit.batch * 1e-5}[unit.network]
    return each * unit.steps


def comparable(records: Sequence[Record]) -> dict[str, Record]:
    """By network, those of one run."""
    if not records:
        return {}
    same = of_one_setting(records, [name for name in records[-1].config if name != "network"])
    return {record.config["network"]: record for record in same}


def claims(every: Records, command: str) -> list[Claim]:
    found = comparable(every["W6"])
    if not {"deq", "fnn"} <= set(found):
        return []
    deq, fnn = (mean(found[name].values["spread_out"]) for name in ("deq", "fnn"))
    apart = min(deq.count, fnn.count) > 1 and deq.value - deq.spread > fnn.value + fnn.spread
    return [
        Claim(
            id="W6.dense",
            claim="The features of a DEQ trained on f1 are alike in size, a feed-forward network's are few: (Σ a)²/(m Σ a²)",
            paper="DEQ dense, FNN few",
            ours=f"DEQ {_spelt(deq)}, FNN {_spelt(fnn)}{_of_diagonal(found)}",
            spread=f"95 % intervals, {deq.count} seeds",
            verdict=holds(apart),
            command=command,
        )
    ]


def _spelt(found: Estimate) -> str:
    return f"{found.value:.3f} ± {found.half_width:.3f}"


def _of_diagonal(found: dict[str, Record]) -> str:
    return f"; diagonal DEQ {found['diagonal'].values['spread_out'][0]:.3f}" if "diagonal" in found else ""


def notes(every: Records) -> list[str]:
    found = comparable(every["W6"])
    if not found:
        return []
    return [
        "A feature's size is its mean magnitude over the seen part of the cube. The FNN's are those of its last hidden layer.",
        "A ReLU unit that is never active counts as a feature of size 0, for all networks.",
    ]


W6 = Experiment(
    name="W6",
    title="Dense features",
    shows="The sizes of the features of a diagonal DEQ, a DEQ and a feed-forward network that learnt f1.",
    quick=replace(Config(), steps=2000, seeds=5),
    full=Config(),
    units=units,
    run=run,
    cost=cost,
    claims=claims,
    notes=notes,
    command="separate",
)
