"""W1: the sawtooth of 2^m pieces, by a construction and by training. Ref: [wu2024], expressivity."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from notsodeep.errors import BadInput
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values
from notsodeep.papers.statistics import format_number, of_one_run
from notsodeep.papers.wu2024 import contest
from notsodeep.papers.wu2024.contest import Contest
from notsodeep.separation.bounds import max_pieces_deq
from notsodeep.separation.constructions import sawtooth_deq
from notsodeep.separation.pieces import count_pieces
from notsodeep.separation.targets import sawtooth

# Final test losses of the paper, by log2 of the pieces.
PAPER: dict[int, dict[str, float]] = {
    1: {"DEQ": 1.05e-5, "L4W3": 0.408, "L3W5": 0.028, "L2W10": 0.311},
    3: {"DEQ": 0.093, "L4W3": 0.129, "L3W6": 0.178, "L2W12": 0.116},
    5: {"DEQ": 0.0745, "L4W3": 0.147, "L3W5": 0.121, "L2W10": 0.119},
    10: {"DEQ": 0.0912, "L4W6": 0.168, "L3W10": 0.150, "L2W15": 0.111},
    15: {"DEQ": 0.091, "L4W10": 0.135, "L3W15": 0.114, "L2W20": 0.161},
}
_POINTS = 100_001
_MOST = 20


@dataclass(frozen=True)
class Config:
    """`steps` batches: the paper's 1000 iterations, and ten times as many. Its samples, batches and starts are open."""

    constructed: tuple[int, ...] = tuple(range(1, 16))
    trained: tuple[int, ...] = tuple(PAPER)
    steps: tuple[int, ...] = (1000, 10_000)
    paired: tuple[int, ...] = (1, 2, 3)
    samples: int = 1000
    batch: int = 128
    rate: float = 5e-4
    decay: float = 1e-4
    bound: float = 0.99
    seeds: int = 5


@dataclass(frozen=True)
class Construction:
    pieces_log2: int
    kind: str = "constructed"

    def __post_init__(self) -> None:
        if self.pieces_log2 > _MOST:
            raise BadInput(
                f"2^{self.pieces_log2} pieces are too many to count one by one; m = {_MOST} is the most here."
            )


def units(config: Config) -> list[Construction | Contest]:
    return [
        *(Construction(m) for m in config.constructed),
        *(_contest(config, m, steps) for steps in config.steps for m in config.trained),
    ]


def _contest(config: Config, m: int, steps: int) -> Contest:
    rivals = tuple(name for name in PAPER.get(m, {}) if name != "DEQ")
    return Contest.of(config, target=f"sawtooth:{m}", dimension=1, width=m, rivals=rivals, steps=steps, skip=True)


def run(unit: Construction | Contest, device: torch.device) -> Values:
    """Of a construction its pieces, counted, and its largest error on a grid; of a contest the losses."""
    if isinstance(unit, Contest):
        return contest.run_contest(unit, device)
    m = unit.pieces_log2
    network = sawtooth_deq(m)
    x = torch.linspace(0.0, 1.0, _POINTS, dtype=torch.float64)[:, None]
    with torch.no_grad():
        error = float((network(x) - sawtooth(m)(x)).abs().max())
    return {"pieces": count_pieces(network, 0.0, 1.0), "most": max_pieces_deq(m), "error": error}


def cost(unit: Construction | Contest) -> float:
    return contest.cost(unit) if isinstance(unit, Contest) else 0.05 + 1.5e-4 * 2.0**unit.pieces_log2


def claims(every: Records, command: str) -> list[Claim]:
    found = _constructed(every, command)
    for record in of_one_run(contest.trained(every["W1"]), ("target", "steps"), ("samples", "rate", "bound", "seeds")):
        m, steps = int(record.config["target"].partition(":")[2]), record.config["steps"]
        name, what = f"W1.2^{m}.{steps}", f"Sawtooth of 2^{m} pieces, {steps} batches"
        theirs = PAPER.get(m, {})
        if record.values["rivals"]:
            found.append(contest.ordering(record, name, what, _spelt(theirs), command))
        if record.values["paired"]:
            found.append(contest.equal_flops(record, f"{name}.flops", what, command))
        close = contest.level(record, f"{name}.level", what, theirs, command)
        found += [close] if close is not None and steps == 1000 else []
    return found


def _constructed(every: Records, command: str) -> list[Claim]:
    records = contest.constructed(every["W1"])
    if not records:
        return []
    most = max(record.config["pieces_log2"] for record in records)
    exact = all(r.values["pieces"] == r.values["most"] and r.values["error"] == 0.0 for r in records)
    worst = max(record.values["error"] for record in records)
    return [
        Claim(
            id="W1.construction",
            claim="A DEQ of m units, without training, is the sawtooth of 2^m linear pieces, the most that m units can have",
            paper="2^m pieces, exactly",
            ours=f"2^m pieces counted for m up to {most}; largest error {worst:g}" if exact else f"error {worst:g}",
            spread=f"{len(records)} value{'s' * (len(records) > 1)} of m",
            verdict=holds(exact),
            command=command,
        )
    ]


def _spelt(theirs: dict[str, float]) -> str:
    others = ", ".join(f"{name} {format_number(value)}" for name, value in theirs.items() if name != "DEQ")
    return f"{format_number(theirs['DEQ'])} against {others}" if theirs else "—"


def notes(every: Records) -> list[str]:
    if not every["W1"]:
        return []
    return [
        "The construction is what shows expressivity. Trained networks hardly learn a sawtooth: a constant has a loss of "
        "1/12 = 0.083, and most losses of the paper's table, and of ours, are no better; the row shows trainability at best.",
        "As in the construction, a linear term V x is added to both kinds of networks. The paper leaves samples, batches and "
        "starts open: the settings below, and starts as torch's linear layers have them (W at half of that).",
        "The DEQ's ‖W‖ is kept below the bound, so that its equilibrium exists and is found; the construction's is not "
        "bounded, and no training finds it.",
    ]


W1 = Experiment(
    name="W1",
    title="Sawtooth: 2^m pieces from m units",
    shows="A DEQ of m units has up to 2^m linear pieces: a construction has them all; training is another matter.",
    quick=replace(Config(), constructed=tuple(range(1, 13)), steps=(1000,), paired=(2,)),
    full=Config(),
    units=units,
    run=run,
    cost=cost,
    claims=claims,
    notes=notes,
    command="separate",
)
