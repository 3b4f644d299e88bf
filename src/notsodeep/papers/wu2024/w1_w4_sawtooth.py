"""The sawtooth of 2^m pieces. W1: by a construction and by training, in one dimension; W4: at equal FLOPs, in ten.

Ref: [wu2024], expressivity and experiments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from notsodeep.errors import BadInput
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values, from_config
from notsodeep.papers.records import where
from notsodeep.papers.statistics import format_number
from notsodeep.papers.wu2024 import contest
from notsodeep.papers.wu2024.contest import Contest, Training
from notsodeep.separation.bounds import max_pieces_deq
from notsodeep.separation.constructions import sawtooth_deq
from notsodeep.separation.pieces import count_pieces
from notsodeep.separation.targets import Sawtooth

# Final test losses of the paper: of W1 by log2 of the pieces, and of W4.
W1_PAPER: dict[int, dict[str, float]] = {
    1: {"DEQ": 1.05e-5, "L4W3": 0.408, "L3W5": 0.028, "L2W10": 0.311},
    3: {"DEQ": 0.093, "L4W3": 0.129, "L3W6": 0.178, "L2W12": 0.116},
    5: {"DEQ": 0.0745, "L4W3": 0.147, "L3W5": 0.121, "L2W10": 0.119},
    10: {"DEQ": 0.0912, "L4W6": 0.168, "L3W10": 0.150, "L2W15": 0.111},
    15: {"DEQ": 0.091, "L4W10": 0.135, "L3W15": 0.114, "L2W20": 0.161},
}
W4_PAPER = {"DEQ": 0.078, "L4W30": 0.094, "L3W40": 0.082, "L2W200": 0.085}
_W4_SPREADS = {"DEQ": 0.004, "L4W30": 0.006, "L3W40": 0.004, "L2W200": 0.007}
_PAPER_STEPS = 1000  # of W1
_POINTS = 100_001
_MOST = 20


def _rivals(losses: dict[str, float]) -> dict[str, float]:
    return {name: loss for name, loss in losses.items() if name != "DEQ"}


def pieces_log2(target: str) -> int:
    """5 for "sawtooth:5"."""
    return int(target.partition(":")[2])


@dataclass(frozen=True, kw_only=True)
class W1Config(Training):
    """Settings of W1. `steps` batches: the paper's 1000, and ten times as many. It leaves samples, batches and starts open."""

    constructed: tuple[int, ...] = tuple(range(1, 16))
    trained: tuple[int, ...] = tuple(W1_PAPER)
    steps: tuple[int, ...] = (_PAPER_STEPS, 10_000)
    paired: tuple[int, ...] = (1, 2, 3)
    samples: int = 1000


@dataclass(frozen=True)
class Construction:
    """The DEQ of m = `pieces_log2` units."""

    pieces_log2: int
    kind: str = "constructed"

    def __post_init__(self) -> None:
        if self.pieces_log2 > _MOST:
            raise BadInput(f"2^{self.pieces_log2} pieces are too many to count one by one; m = {_MOST} is the most here.")

    @property
    def cost(self) -> float:
        return 0.05 + 1.5e-4 * 2.0**self.pieces_log2


def w1_units(config: W1Config) -> list[Construction | Contest]:
    return [
        *(Construction(m) for m in config.constructed),
        *(
            from_config(
                Contest,
                config,
                target=f"sawtooth:{m}",
                dimension=1,
                width=m,
                rivals=tuple(_rivals(W1_PAPER.get(m, {}))),
                steps=steps,
                skip=True,
            )
            for steps in config.steps
            for m in config.trained
        ),
    ]


def run_w1(unit: Construction | Contest, device: torch.device) -> Values:
    """The pieces of a construction, counted, and its largest error on a grid, or the losses of a contest."""
    if isinstance(unit, Contest):
        return contest.run_contest(unit, device)
    m = unit.pieces_log2
    network = sawtooth_deq(m)
    x = torch.linspace(0.0, 1.0, _POINTS, dtype=torch.float64)[:, None]
    with torch.no_grad():
        error = float((network(x) - Sawtooth(m)(x)).abs().max())
    return {"pieces": count_pieces(network, 0.0, 1.0), "most": max_pieces_deq(m), "error": error}


def w1_claims(every: Records) -> list[Claim]:
    found = _constructed(every)
    for record in contest.of_runs("W1", every["W1"]):
        m, steps = pieces_log2(record.config["target"]), record.config["steps"]
        theirs, what = W1_PAPER.get(m, {}), f"Sawtooth of 2^{m} pieces, {steps} batches"
        spelt = contest.spelt_paper(theirs.get("DEQ"), _rivals(theirs))
        levels = theirs if steps == _PAPER_STEPS else {}
        found += contest.claims_of(record, f"W1.2^{m}.{steps}", what, spelt, levels)
    return found


def _constructed(every: Records) -> list[Claim]:
    records = where(every["W1"], kind="constructed")
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
        )
    ]


def w1_notes(_: Records) -> list[str]:
    return [
        "The construction is what shows expressivity. Trained networks hardly learn a sawtooth: a constant has a loss of "
        "1/12 = 0.083, and most losses of the paper's table, and of ours, are no better; the row shows trainability at best.",
        "As in the construction, a linear term V x is added to both kinds of networks. The paper leaves samples, batches and "
        "starts open: the settings below, and starts as torch's linear layers have them (W at half of that).",
        "The DEQ's ‖W‖ is kept below the bound, so that its equilibrium exists and is found; the construction's is not "
        "bounded, and no training finds it.",
    ]


@dataclass(frozen=True, kw_only=True)
class W4Config(Training):
    """Settings of W4: a small DEQ against networks of ten times its parameters."""

    pieces_log2: int = 5
    dimension: int = 10
    width: int = 10
    rivals: tuple[str, ...] = tuple(_rivals(W4_PAPER))
    paired: tuple[int, ...] = (1, 2, 3)
    samples: int = 1000
    steps: int = 1000


def w4_units(config: W4Config) -> list[Contest]:
    return [from_config(Contest, config, target=f"sawtooth:{config.pieces_log2}", norm=True)]


def w4_claims(every: Records) -> list[Claim]:
    record = every["W4"][-1]
    m, inputs = pieces_log2(record.config["target"]), record.config["dimension"]
    spelt = {name: f"{format_number(value)} ± {_W4_SPREADS[name]:g}" for name, value in W4_PAPER.items()}
    theirs = f"{spelt.pop('DEQ')} against {', '.join(f'{name} {text}' for name, text in spelt.items())}"
    found = contest.claims_of(record, "W4", f"Sawtooth of 2^{m} pieces, {inputs} inputs", theirs, W4_PAPER)
    return [replace(claim, id="W4.order") if claim.id == "W4" else claim for claim in found]


def w4_notes(every: Records) -> list[str]:
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


_W1_FULL = W1Config(batch=128, rate=5e-4, bound=0.99, seeds=5)
W1 = Experiment(
    name="W1",
    title="Sawtooth: 2^m pieces from m units",
    shows="A DEQ of m units has up to 2^m linear pieces: a construction has them all; training is another matter.",
    units=w1_units,
    quick=replace(_W1_FULL, constructed=tuple(range(1, 13)), steps=(_PAPER_STEPS,), paired=(2,)),
    full=_W1_FULL,
    run=run_w1,
    judge=w1_claims,
    remark=w1_notes,
    command="separate",
)

_W4_FULL = W4Config(batch=128, rate=5e-4, seeds=20)
W4 = Experiment(
    name="W4",
    title="Equal FLOPs",
    shows="A DEQ of ten units against feed-forward networks of ten times its parameters, and of its FLOPs.",
    units=w4_units,
    quick=replace(_W4_FULL, paired=(2,), seeds=10),
    full=_W4_FULL,
    run=contest.run_contest,
    judge=w4_claims,
    remark=w4_notes,
    command="separate",
)
