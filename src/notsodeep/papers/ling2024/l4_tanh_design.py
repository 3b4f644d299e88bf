"""L4: a tanh DEQ and its hard tanh network. Ref: [ling2024] section 5.2."""

from __future__ import annotations

from dataclasses import replace

import torch

from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values
from notsodeep.papers.ling2024 import comparison
from notsodeep.papers.ling2024.comparison import Sizes, Unit, absolute_gap
from notsodeep.papers.statistics import format_number

_SMALL = 0.02  # of ‖G*‖: what "coincide" is taken to mean
_DATA = {"gmm": "mixture", "mnist": "MNIST 6 and 8"}


def units(config: Sizes) -> list[Unit]:
    return comparison.units(config, "tanh", "tanh")


def run(unit: Unit, device: torch.device) -> Values:
    return comparison.compare_designs(unit, device, lambda *_: {})


def claims(every: Records, command: str) -> list[Claim]:
    records = comparison.comparable(every["L4"])
    found = []
    for data, where in _DATA.items():
        gap = absolute_gap(records, data, "designed")
        if gap is None:
            continue
        of_data = [record for record in records if record.config["data"] == data]
        relative = [r.values["kernels"]["conjugate"]["rivals"]["designed"]["relative"] for r in of_data]
        found.append(
            Claim(
                id=f"L4.{data}",
                claim=f"A tanh DEQ and its hard tanh network have one kernel (within {_SMALL:.0%}), {where}, σ_a² = 0.2",
                paper="coincide",
                ours=f"‖G* − Σ‖ = {format_number(gap.value)}, {max(relative):.2%} of ‖G*‖",
                spread=gap.spelt(".2g", "draw"),
                verdict=holds(max(relative) <= _SMALL),
                command=command,
            )
        )
    return found


def notes(every: Records) -> list[str]:
    records = comparison.comparable(every["L4"])
    found = []
    for data, where in _DATA.items():
        ours, scaled = (absolute_gap(records, data, rival) for rival in ("designed", "plain rescaled"))
        if ours and scaled and scaled.value < ours.value:
            found.append(
                f"{where[0].upper()}{where[1:]}: plain tanh times one factor is closer still, {format_number(scaled.value)} "
                f"against {format_number(ours.value)}. For tanh the design mostly sets a scale."
            )
    return found


L4 = Experiment(
    name="L4",
    title="A tanh DEQ and its hard tanh network",
    shows="One layer of hard tanh, with slope and corner matched, has the conjugate kernel of a tanh DEQ.",
    quick=replace(Sizes(), images=1500, var_a=0.2, mixture_seeds=2, image_seeds=1),
    full=replace(Sizes(), var_a=0.2),
    units=units,
    run=run,
    cost=comparison.cost,
    claims=claims,
    notes=notes,
)
