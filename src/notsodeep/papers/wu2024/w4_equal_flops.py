"""W4: the sawtooth of 2^5 pieces in ten dimensions, a small DEQ against networks of ten times its parameters.

Ref: [wu2024], experiments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from notsodeep.papers.claims import Claim
from notsodeep.papers.experiment import Experiment, Records, Values
from notsodeep.papers.statistics import format_number, of_one_setting
from notsodeep.papers.wu2024 import contest
from notsodeep.papers.wu2024.contest import Contest

PAPER = {"DEQ": 0.078, "L4W30": 0.094, "L3W40": 0.082, "L2W200": 0.085}
_SPREADS = {"DEQ": 0.004, "L4W30": 0.006, "L3W40": 0.004, "L2W200": 0.007}


@dataclass(frozen=True)
class Config:
    pieces_log2: int = 5
    dimension: int = 10
    width: int = 10
    rivals: tuple[str, ...] = tuple(name for name in PAPER if name != "DEQ")
    paired: tuple[int, ...] = (1, 2, 3)
    samples: int = 1000
    steps: int = 1000
    batch: int = 128
    rate: float = 5e-4
    decay: float = 1e-4
    seeds: int = 20


def units(config: Config) -> list[Contest]:
    return [Contest.of(config, target=f"sawtooth:{config.pieces_log2}", norm=True)]


def run(unit: Contest, device: torch.device) -> Values:
    """The losses and costs of all networks."""
    return contest.run_contest(unit, device)


def claims(every: Records, command: str) -> list[Claim]:
    if not every["W4"]:
        return []
    record = of_one_setting(every["W4"], [name for name in every["W4"][-1].config if name != "seed"])[-1]
    what = f"Sawtooth of 2^{record.config['target'].partition(':')[2]} pieces, {record.config['dimension']} inputs"
    spelt = {name: f"{format_number(value)} ± {_SPREADS[name]:g}" for name, value in PAPER.items()}
    theirs = f"{spelt['DEQ']} against {', '.join(f'{k} {v}' for k, v in spelt.items() if k != 'DEQ')}"
    found = [contest.ordering(record, "W4.order", what, theirs, command)]
    if record.values["paired"]:
        found.append(contest.equal_flops(record, "W4.flops", what, command))
    close = contest.level(record, "W4.level", what, PAPER, command)
    return [*found, *([close] if close is not None else [])]


def notes(every: Records) -> list[str]:
    if not every["W4"]:
        return []
    values = every["W4"][-1].values
    parts = {"the DEQ": values["deq"]} | values["rivals"] | values["paired"]
    spelt = ", ".join(
        f"{name} {part['parameters']} and {format_number(part['forward_flops'] + part['backward_flops'])}"
        for name, part in parts.items()
    )
    return [
        f"Parameters, and FLOPs of training a sample: {spelt}.",
        "No network does better than a constant on new samples: 1000 samples of a sawtooth in ten dimensions do not show it. "
        "The order of the losses is that of how little a network follows the noise.",
        "The paper's DEQ has 251 parameters, a second bias among them; ours has 241. Every hidden layer has a normalisation "
        "over its units with its own scale and shift, the DEQ's map as well, so that ‖W‖ needs no bound.",
    ]


W4 = Experiment(
    name="W4",
    title="Equal FLOPs",
    shows="A DEQ of ten units against feed-forward networks of ten times its parameters, and of its FLOPs.",
    quick=replace(Config(), paired=(2,), seeds=10),
    full=Config(),
    units=units,
    run=run,
    cost=contest.cost,
    claims=claims,
    notes=notes,
    command="separate",
)
