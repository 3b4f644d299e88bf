"""W3: the largest weights of networks that fit the steep function equally well, trained or constructed.

Ref: [wu2024], steep functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from notsodeep.models.training.equal_cost import BATCHES, Samples, Schedule, evaluate, largest_weights, train
from notsodeep.models.training.parallel import Stack
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values, from_config
from notsodeep.papers.records import Record, of_one_run, where
from notsodeep.papers.statistics import Interval, format_number, line, mean, signed
from notsodeep.papers.wu2024.contest import Duel, draw, layers
from notsodeep.separation.bounds import min_weight_fnn, min_weight_steep_fnn
from notsodeep.separation.constructions import SteepDEQ, steep_fnn
from notsodeep.separation.targets import Steep

# Largest weights of the paper's feed-forward networks, by dimension; its DEQs have 1.4 to 2.15 at every dimension.
PAPER_FNN = {6: 3.5, 8: 3.7, 10: 4.2, 12: 5.3, 14: 5.9, 16: 7.7, 18: 9.2, 20: 12.0}
NETWORKS = ("deq", "fnn")
RESOLVED = 2.45e-3
"""The loss of a network that gives the whole steep part its mean value; below it, the steep part is resolved."""
_LOOK_EVERY = 50  # steps
_FLAT = 0.05  # of log(weight) per dimension: about a doubling from d = 6 to 20
_MARGIN = 0.95  # of the level: the loss on finitely many samples may lie above its expectation


@dataclass(frozen=True, kw_only=True)
class DuelToLevel(Duel):
    """Settings that a config and its trained units share; networks are compared when their loss reaches `level`."""

    level: float = 4.5e-3
    samples: int = 10_000
    optimiser: str = "adamw"


@dataclass(frozen=True, kw_only=True)
class Config(DuelToLevel):
    """Settings. `resolved_level` is a loss that only networks reach which resolve the steep part, and only in the `resolved`
    dimensions. The paper's SGD (rate 0.005) takes far longer to reach either level. Networks without training, in the `built`
    dimensions, have a loss of at most `built_level`."""

    built: tuple[int, ...] = tuple(PAPER_FNN)
    built_level: float = 1e-4
    dimensions: tuple[int, ...] = tuple(PAPER_FNN)
    resolved: tuple[int, ...] = (3, 4, 5, 6, 7, 8)
    resolved_level: float = 2e-3
    resolved_steps: int = 8000


@dataclass(frozen=True, kw_only=True)
class Unit(DuelToLevel):
    """Trained networks of one kind and dimension, for all seeds."""

    network: str
    dimension: int

    @property
    def cost(self) -> float:
        per_step = 3e-3 if self.network == "fnn" else 6e-3 + self.seeds * self.batch * (2e-6 + 6e-7 * self.width)
        return self.steps * per_step


@dataclass(frozen=True, kw_only=True)
class Construction:
    """A DEQ of `width` = 4N + 2 units, or a feed-forward network of the rival's shape, made for a loss of at most `level`; the
    loss is measured on the test samples of the trained networks."""

    network: str
    dimension: int
    width: int
    rival: str
    level: float
    seeds: int
    kind: str = "constructed"

    cost = 0.5


FULL = Config(width=50, rival="L3W50", steps=3000, batch=100, rate=0.01, bound=0.99, seeds=5)


def units(config: Config) -> list[Construction | Unit]:
    lower = {"level": config.resolved_level, "steps": config.resolved_steps}
    return [
        *(
            from_config(Construction, config, network=name, dimension=d, level=config.built_level)
            for d in config.built
            for name in NETWORKS
        ),
        *(from_config(Unit, config, network=name, dimension=d) for d in config.dimensions for name in NETWORKS),
        *(from_config(Unit, config, network=name, dimension=d, **lower) for d in config.resolved for name in NETWORKS),
    ]


def run(unit: Construction | Unit, device: torch.device) -> Values:
    """The largest weight of each network when its test loss first reaches the level, and at the end of training.

    Where the level is below `RESOLVED`, training ends when all networks have reached it.
    """
    if isinstance(unit, Construction):
        return run_built(unit)
    samples = draw("steep", unit.dimension, unit.samples, unit.seeds).to(device)
    stack = unit.stack(unit.network, unit.dimension)
    arrival = _Arrival(samples, unit.level, unit.seeds)
    schedule = Schedule(unit.steps, unit.batch, unit.rate, unit.decay, unit.optimiser)
    found = train(stack.to(device), samples, schedule, torch.Generator().manual_seed(BATCHES), arrival.look)
    return found.to_dict() | {
        "best_constant": round(samples.best_constant, 6),
        "weight_at_level": [None if weight is None else round(weight, 4) for weight in arrival.weights],
        "steps_to_level": arrival.steps,
    }


class _Arrival:
    """The step at which each network first reaches the level, and its largest weight there."""

    def __init__(self, samples: Samples, level: float, networks: int) -> None:
        self.samples, self.level = samples, level
        self.weights: list[float | None] = [None] * networks
        self.steps: list[int | None] = [None] * networks

    def look(self, step: int, stack: Stack) -> bool:
        """Note the networks that have arrived; True where training may stop."""
        if step % _LOOK_EVERY == 0 and None in self.steps:
            there: Tensor = evaluate(stack, self.samples.x_test, self.samples.y_test) <= self.level
            for index in (k for k, reached in enumerate(there.tolist()) if reached and self.steps[k] is None):
                self.steps[index] = step
                self.weights[index] = float(largest_weights(stack)[index])
        return self.level < RESOLVED and None not in self.steps


def run_built(unit: Construction) -> Values:
    """The loss on each seed's test samples, the largest weight, the least one that any feed-forward network of this shape can
    have at the level, and the units of a layer; in double precision."""
    network: nn.Module
    weights: nn.Module
    least: float | None = None
    if unit.network == "deq":
        deq = SteepDEQ(unit.dimension, max(1, (unit.width - 2) // 4))
        network, weights, width = deq, deq.as_relu_deq(), deq.width
    else:
        widths = layers(unit.rival)
        network = weights = steep_fnn(unit.dimension, widths, _MARGIN * unit.level)
        width, least = widths[0], min_weight_steep_fnn(unit.dimension, widths, unit.level)
    return {
        "loss": [float(f"{loss:.5g}") for loss in _losses(network, unit)],
        "largest_weight": round(max(float(weight.detach().abs().max()) for weight in weights.parameters()), 6),
        "least_weight": None if least is None else round(least, 6),
        "width": width,
    }


@torch.no_grad()
def _losses(network: nn.Module, unit: Construction) -> list[float]:
    """Losses on the test samples, which are numbers of single precision."""
    x_test = draw("steep", unit.dimension, 1, unit.seeds).x_test.double()
    target = Steep(unit.dimension)
    return [float((network(x) - target(x)).square().mean()) for x in x_test]


def comparable(records: Sequence[Record]) -> list[Record]:
    """The trained records of one run at each level: they agree in all settings but the network and the dimension."""
    others = [field.name for field in fields(Unit) if field.name not in ("network", "dimension", "level")]
    return of_one_run([r for r in records if r.config.get("kind") != "constructed"], ("level",), others)


def at_level(records: Sequence[Record]) -> dict[float, list[Record]]:
    """Records by level, the highest level first."""
    levels = sorted({float(record.config["level"]) for record in records}, reverse=True)
    return {level: [record for record in records if record.config["level"] == level] for level in levels}


def weights(records: Sequence[Record], network: str, of: str = "weight_at_level") -> dict[int, list[float]]:
    """Weights by dimension, of the networks that reached the level."""
    found = {}
    for record in sorted(where(records, network=network), key=lambda record: int(record.config["dimension"])):
        known = [value for value in record.values[of] if value is not None]
        if known:
            found[int(record.config["dimension"])] = known
    return found


def built(records: Sequence[Record]) -> list[Record]:
    """The constructed records of one run: they agree in all settings but the network and the dimension."""
    return of_one_run(where(records, kind="constructed"), ("kind",), ("width", "rival", "level", "seeds"))


def built_weights(records: Sequence[Record], network: str, of: str = "largest_weight") -> dict[int, float]:
    """Weights of constructed networks, by dimension."""
    found = {int(r.config["dimension"]): r.values[of] for r in where(records, network=network)}
    return {d: float(weight) for d, weight in sorted(found.items()) if weight is not None}


def growth(by_dimension: dict[int, list[float]]) -> Interval | None:
    """The slope of log(weight) against d; None where there are too few points."""
    points = [(d, math.log(weight)) for d, values in by_dimension.items() for weight in values]
    if len(by_dimension) < 2 or len(points) < 3:
        return None
    return line([d for d, _ in points], [weight for _, weight in points])


def claims(every: Records) -> list[Claim]:
    found = []
    for level, mine in at_level(comparable(every["W3"])).items():
        for network in NETWORKS:
            found += _claim(network, level, weights(mine, network))
    return [*found, *_built_claims(built(every["W3"]))]


def _claim(network: str, level: float, found: dict[int, list[float]]) -> list[Claim]:
    rate = growth(found)
    if rate is None:
        return []
    first, last = min(found), max(found)
    ends = f"{mean(found[first]).value:.2f} at d = {first}, {mean(found[last]).value:.2f} at d = {last}"
    flat = abs(rate.value) <= _FLAT
    growing = rate.value - rate.half_width > 0.0 and not flat
    deq = network == "deq"
    return [
        Claim(
            id=f"W3.{network}{'.resolved' * (level < RESOLVED)}",
            claim=f"The largest weight of {'a DEQ' if deq else 'a feed-forward network'} at a loss of {level:g} on the "
            f"steep function {'stays as d grows' if deq else 'grows with d'}",
            paper="1.4 to 2.15 at every d" if deq else "3.5 at d = 6 to 12.0 at d = 20",
            ours=f"{ends}; log weight changes by {signed(rate.value, 3)} a dimension",
            spread=rate.spelt(".3f", "network"),
            verdict=holds(flat if deq else growing),
        )
    ]


def _built_claims(records: list[Record]) -> list[Claim]:
    found = []
    for network in NETWORKS:
        own = where(records, network=network)
        if not own:
            continue
        by_dimension = {d: [weight] for d, weight in built_weights(own, network).items()}
        level = float(own[-1].config["level"])
        there = all(mean(record.values["loss"]).value <= level for record in own)
        missed = f"; not all reach {level:g}" * (not there)
        losses = [mean(record.values["loss"]).value for record in own]
        span = f"{format_number(min(losses))} to {format_number(max(losses))}"
        found += [
            replace(
                claim,
                id=f"W3.{network}.built",
                claim=f"{claim.claim}: networks without training, which resolve the steep part at every d",
                ours=f"{claim.ours}{_least(own, network)}; losses {span}{missed}",
                verdict=claim.verdict if there else holds(False),
            )
            for claim in _claim(network, level, by_dimension)
        ]
    return found


def _least(records: Sequence[Record], network: str) -> str:
    """The proven bound in words; "" where there is none."""
    least = built_weights(records, network, "least_weight")
    if not least:
        return ""
    first, last = min(least), max(least)
    return f"; any {records[-1].config['rival']} of this loss has at least {least[first]:.2f} and {least[last]:.2f} (proven)"


def notes(every: Records) -> list[str]:
    records = [r for r in comparable(every["W3"]) if r.config["level"] >= RESOLVED]
    ends = {name: weights(records, name, "largest_weight") for name in NETWORKS}
    found = [
        "A loss above 0.0025 does not need the steep part to be resolved, only to be told from the flat one; so weights need "
        "not grow, and do not. Below it they must: the theorem asks for 2^(d/6) at depth 3, a slope of 0.116 of the logarithm "
        f"({min_weight_fnn(20, 3):.1f} at d = 20), of networks narrower than these, for a largest error of 1/16. Training gets "
        "there for small d only.",
        *_of_built(built(every["W3"])),
        "The paper's SGD with a rate of 0.005 ends at a loss of 0.012 after thirty epochs, its weights hardly moved; so AdamW.",
    ]
    for name, by_dimension in ends.items():
        if by_dimension:
            values = ", ".join(f"{mean(values).value:.2f} (d = {d})" for d, values in by_dimension.items())
            found.append(f"At the end of training the largest weights are {values} for the {name.upper()}.")
    return found


def _of_built(records: Sequence[Record]) -> list[str]:
    """Sentences on the networks without training."""
    weight, least = built_weights(records, "fnn"), built_weights(records, "fnn", "least_weight")
    if not weight or not built_weights(records, "deq"):
        return []
    d, level = max(weight), records[-1].config["level"]
    return [
        "Trained networks do not show what the paper says; networks that resolve the steep part at every d do. Without "
        f"training, and with a loss below {level:g}, a DEQ's largest weight is the same at every d, and a feed-forward "
        f"network's is {weight[d]:.2f} at d = {d}; for small d it is the smaller one.",
        "That the feed-forward network's grows is proven, for any widths and depth: with H hidden layers some weight is at "
        f"least (Λ 2^d/∏ widths)^(1/(H + 1)), Λ = (1 + 2^(−d))(9 ln 2 − 6) − √(24 loss); here {least[d]:.2f} at d = {d}.",
    ]


W3 = Experiment(
    name="W3",
    title="The size of the weights",
    shows="Networks that fit the steep function equally well: whether their largest weight grows as it gets steeper.",
    units=units,
    quick=replace(FULL, dimensions=(6, 12, 20), resolved=(3, 4, 5, 6), samples=5000, steps=1500, resolved_steps=2000),
    full=FULL,
    run=run,
    judge=claims,
    remark=notes,
    command="separate",
)
