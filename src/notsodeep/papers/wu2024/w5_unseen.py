"""W5: errors on a part of the cube that the networks never saw (GOTU). Ref: [wu2024], learning dynamics."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values, from_config
from notsodeep.papers.records import where
from notsodeep.papers.statistics import format_number
from notsodeep.papers.wu2024 import contest
from notsodeep.papers.wu2024.contest import Contest, Training
from notsodeep.separation.diagonal import gotu_bound, gotu_limit, gradient_descent
from notsodeep.separation.targets import BOOLEAN_TARGETS

# The paper's error on the unseen part, for its DEQ and for its feed-forward network.
PAPER = {"f1": (0.96, 2.71), "f2": (1.28, 2.72), "f3": (0.44, 3.87), "f4": (1.02, 3.47)}
PAPER_LIMIT = {"beta": 1.141042, "gotu": 0.047488, "bound": 2.218, "linear": 6.25}
_F_K = 1.25  # a Fourier coefficient of f1


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    """Settings. The paper leaves widths, rates and steps open."""

    targets: tuple[str, ...] = tuple(PAPER)
    width: int = 20
    rivals: tuple[str, ...] = ("L3W20", "L3W50", "L4W20")
    paired: tuple[int, ...] = (1, 2, 3)
    samples: int = 8192
    steps: int = 4000
    descent_steps: int = 20_000


FULL = Config(batch=64, rate=1e-3, bound=1.4, seeds=10)


@dataclass(frozen=True)
class Construction:
    """The diagonal linear DEQ on f1: the limit of its flow, and gradient descent with small steps."""

    descent_steps: int
    kind: str = "constructed"

    @property
    def cost(self) -> float:
        return 3e-4 * self.descent_steps


def units(config: Config) -> list[Construction | Contest]:
    sizes = {name: BOOLEAN_TARGETS[name].dimension if name in BOOLEAN_TARGETS else 0 for name in config.targets}
    contests = [from_config(Contest, config, target=name, dimension=size) for name, size in sizes.items()]
    return [Construction(config.descent_steps), *contests]


def run(unit: Construction | Contest, device: torch.device) -> Values:
    """The limit of the diagonal DEQ and the end of gradient descent, or the losses of a contest on the unseen part."""
    if isinstance(unit, Contest):
        return contest.run_contest(unit, device)
    beta, gotu = gotu_limit(0.0, _F_K)
    found = descended(unit.descent_steps)
    return {"beta": beta, "gotu": gotu, "bound": gotu_bound(_F_K), "linear": 4.0 * _F_K**2, "descended": found}


def descended(steps: int) -> float:
    """Error on the unseen part of f1 of a diagonal linear DEQ, after gradient descent on the seen part."""
    target = BOOLEAN_TARGETS["f1"]
    seen, unseen = target.seen_and_unseen()
    network = gradient_descent(seen, target(seen), steps)
    with torch.no_grad():
        return float((network(unseen) - target(unseen)).square().mean())


def claims(every: Records) -> list[Claim]:
    found = [_limit(record.values) for record in where(every["W5"], kind="constructed")[-1:]]
    for record in contest.of_runs("W5", every["W5"]):
        name, spelt, levels = record.config["target"], "—", {}
        if name in PAPER:
            deq, other = PAPER[name]
            spelt, levels = f"{deq:g} against {other:g}", {"DEQ": deq} | dict.fromkeys(record.config["rivals"], other)
        found += contest.claims_of(record, f"W5.{name}", f"{name}, the error on the unseen part", spelt, levels)
    return found


def _limit(values: Values) -> Claim:
    exact = abs(values["beta"] - PAPER_LIMIT["beta"]) < 1e-6 and abs(values["gotu"] - PAPER_LIMIT["gotu"]) < 1e-6
    return Claim(
        id="W5.limit",
        claim="The diagonal linear DEQ on f1: where its gradient flow ends, and that this is far below a linear network",
        paper="β_k 1.141042, error 0.047488, bound 2.218, linear 6.25",
        ours=f"β_k {values['beta']:.6f}, error {values['gotu']:.6f}, bound {values['bound']:.3f}, linear {values['linear']:g}; "
        f"gradient descent {values['descended']:.6f}",
        spread="exact",
        verdict=holds(exact and abs(values["descended"] - values["gotu"]) < 1e-2 * values["gotu"]),
    )


def notes(every: Records) -> list[str]:
    values = {r.config["target"]: r.values["best_constant"] for r in where(every["W5"], kind="trained")}
    constants = ", ".join(f"{format_number(value)} ({name})" for name, value in values.items()) or "not computed"
    return [
        "All networks fit the seen part; they differ in what they make of the other. Widths, rates and steps of the paper are "
        "open, and its levels depend on them.",
        f"A constant's error on the unseen part is {constants}.",
        "f3 has 2^21 points: some of the seen part are drawn for every seed; the same points with x_1 = −1 are the unseen.",
    ]


W5 = Experiment(
    name="W5",
    title="Out of distribution: the unseen part of the cube",
    shows="Boolean functions of which a half is never seen: a DEQ's guess of it is closer than a feed-forward network's.",
    units=units,
    quick=replace(FULL, paired=(2,), samples=4096, steps=2000, seeds=5),
    full=FULL,
    run=run,
    judge=claims,
    remark=notes,
    command="separate",
)
