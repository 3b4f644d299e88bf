"""W2: the steep function, by a construction and by training. Ref: [wu2024], steep functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values, from_config
from notsodeep.papers.records import where
from notsodeep.papers.wu2024 import contest
from notsodeep.papers.wu2024.contest import Contest, Training
from notsodeep.separation.constructions import SteepDEQ
from notsodeep.separation.targets import Steep

RIVALS = ("L3W50", "L4W30", "L3W30")
# Losses of the paper: DEQs of width 30, 40, 50, and the three feed-forward networks, by dimension.
PAPER: dict[int, tuple[dict[int, float], dict[str, float]]] = {
    10: ({30: 1.9e-3, 40: 2.3e-3, 50: 9.6e-4}, dict(zip(RIVALS, (2.8e-3, 5.9e-3, 4.4e-3), strict=True))),
    20: ({30: 5.4e-3, 40: 5.8e-3, 50: 3.3e-3}, dict(zip(RIVALS, (1.5e-2, 1.7e-2, 1.5e-2), strict=True))),
}
PAPER_ERRORS = {4: 0.0996, 10: 0.045, 20: 0.024, 50: 0.0097}
_TWO_DIGITS = 0.01  # of the value: a little more than the rounding of the paper's errors to two digits
_AT_ONCE = 20_000


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    """Settings. 30 epochs as in the paper, which leaves samples, batches and the rate open."""

    constructed: tuple[int, ...] = (4, 10, 20, 50)
    dimension: int = 20
    dimensions: tuple[int, ...] = (10, 20)
    widths: tuple[int, ...] = (30, 40, 50)
    paired: tuple[int, ...] = (1, 2, 3)
    samples: int = 10_000
    epochs: int = 30


FULL = Config(batch=100, rate=0.01, bound=0.99, seeds=5)


@dataclass(frozen=True)
class Construction:
    """The DEQ of 4N + 2 units, whose error is taken on grids of `points`."""

    dimension: int
    N: int
    points: int = 200_001
    kind: str = "constructed"

    @property
    def cost(self) -> float:
        return 1.0 + 0.3 * self.N


def units(config: Config) -> list[Construction | Contest]:
    return [
        *(Construction(config.dimension, N) for N in config.constructed),
        *(_contest(config, d, width) for d in config.dimensions for width in config.widths),
    ]


def _contest(config: Config, d: int, width: int) -> Contest:
    rivals = RIVALS if width == config.widths[-1] else ()  # once for every dimension
    steps = max(1, config.epochs * config.samples // config.batch)
    return from_config(Contest, config, target="steep", dimension=d, width=width, rivals=rivals, steps=steps)


def run(unit: Construction | Contest, device: torch.device) -> Values:
    """The largest error of a construction, on grids over [0, 1] and within 4Nδ of 1, or the losses of a contest."""
    if isinstance(unit, Contest):
        return contest.run_contest(unit, device)
    target, network = Steep(unit.dimension), SteepDEQ(unit.dimension, unit.N)
    flat = torch.linspace(0.0, 1.0, unit.points, dtype=torch.float64)
    first = torch.cat([flat, 1.0 - min(4.0 * unit.N * target.delta, 1.0) * flat])
    parts = [part[:, None].expand(-1, unit.dimension) for part in first.split(_AT_ONCE)]
    return {"error": max(float((network(x) - target(x)).abs().max()) for x in parts), "width": network.width}


def claims(every: Records) -> list[Claim]:
    found = [_error(record.config, record.values) for record in where(every["W2"], kind="constructed")]
    records = contest.of_runs("W2", every["W2"])
    # The feed-forward networks of a dimension were trained together with one of its DEQs.
    rivals = {r.config["dimension"]: r.values["rivals"] for r in records if r.values["rivals"]}
    for record in records:
        d, width = record.config["dimension"], record.config["width"]
        deqs, others = PAPER.get(d, ({}, {}))
        levels = ({"DEQ": deqs[width]} if width in deqs else {}) | (others if record.values["rivals"] else {})
        whole = replace(record, values=record.values | {"rivals": rivals.get(d, {})})
        what, theirs = f"Steep function, d = {d}, a DEQ of width {width}", contest.spelt_paper(deqs.get(width), others)
        found += contest.claims_of(whole, f"W2.d{d}.W{width}", what, theirs, levels)
    return found


def _error(config: dict[str, int], values: Values) -> Claim:
    N, d, ours = config["N"], config["dimension"], values["error"]
    theirs = PAPER_ERRORS.get(N) if d == 20 else None
    near = ours <= 1.0 / N if theirs is None else ours <= theirs * (1.0 + _TWO_DIGITS)
    return Claim(
        id=f"W2.construction.N{N}",
        claim=f"A DEQ of width 4N + 2 = {values['width']}, without training, is the steep function of d = {d} to about 1/(2N)",
        paper=f"{theirs:g}" if theirs else "—",
        ours=f"{ours:.4f}",
        spread=f"on a grid of {2 * config['points']} points",
        verdict=holds(near),
    )


def notes(_: Records) -> list[str]:
    return [
        "Half of the samples lie within δ = 2^(−d) of x_1 = 1. A network that tells them from the others, and gives all of "
        "them their mean, has a loss of 0.0025; only below that is the steep part itself resolved.",
        "Samples, batches and rate are open in the paper. The DEQ's ‖W‖ is kept below the bound after every step: left free "
        "it leaves the region where the equilibrium is unique, and training gets worse and three times dearer.",
        "Networks of equal FLOPs are several times wider than those of the paper's table; FLOPs count the matrix products of "
        "both passes, every evaluation of the map and the solver's own work.",
    ]


W2 = Experiment(
    name="W2",
    title="A steep function",
    shows="A function that rises within 2^(−d): a small DEQ has it without training; trained ones against other networks.",
    units=units,
    quick=replace(FULL, widths=(30,), paired=(2,), samples=5000),
    full=FULL,
    run=run,
    judge=claims,
    remark=notes,
    command="separate",
)
