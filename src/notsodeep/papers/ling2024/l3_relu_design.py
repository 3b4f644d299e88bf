"""L3: a ReLU DEQ and its leaky ReLU network have the same spectrum. Ref: [ling2024] Figure 3, section 5.1."""

from __future__ import annotations

from dataclasses import replace

import torch

from notsodeep.matching.families import LeakyReluFamily
from notsodeep.matching.solve import nearest
from notsodeep.papers.claims import Claim
from notsodeep.papers.experiment import Experiment, Records, Values
from notsodeep.papers.ling2024 import comparison
from notsodeep.papers.ling2024.comparison import Printed, Sizes, Unit, absolute_gap
from notsodeep.papers.statistics import format_number
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.scalars import scalars

_PAPER = {"gmm": Printed(0.23, 800), "mnist": Printed(1.83, 6000)}  # in the preprint
_DATA = {"gmm": "mixture", "mnist": "MNIST 6 and 8"}


def units(config: Sizes) -> list[Unit]:
    return comparison.units(config, "relu", "relu")


def run(unit: Unit, device: torch.device) -> Values:
    return comparison.compare_designs(unit, device, _one_layer)


def _one_layer(net: Implicit, tau0: float) -> dict[str, Explicit]:
    """The preprint's design has one layer, which cannot match all four scalars: the nearest there is."""
    return {"one layer": nearest(LeakyReluFamily(1), scalars(net, tau0), "conjugate").explicit}


def claims(every: Records, command: str) -> list[Claim]:
    records = comparison.comparable(every["L3"])
    found = []
    for data, printed in _PAPER.items():
        for rival, text in (
            ("designed", "two layers, as in the paper"),
            ("one layer", "one layer, as in the preprint"),
        ):
            claim = (
                f"‖G* − Σ‖ of the leaky ReLU network ({text}), {_DATA[data]}, σ_a² = 0.1; the number is the preprint's"
            )
            found += printed.claim(f"L3.{data}.{rival.replace(' ', '-')}", claim, records, data, rival, command)
    return found


def notes(every: Records) -> list[str]:
    records = comparison.comparable(every["L3"])
    found = [
        "One layer of leaky ReLU cannot match the four scalars of a ReLU DEQ; two can, exactly. The preprint's numbers are of "
        "averages over finite networks, which have a noise of their own; ours are exact.",
        "The design matches the conjugate kernel, and only that: the tangent kernel of the two-layer network is not the DEQ's. "
        'notsodeep designs for the tangent kernel with match="tangent".',
    ]
    plain, scaled, designed = (absolute_gap(records, "mnist", r) for r in ("plain", "plain rescaled", "designed"))
    if plain and scaled and designed:
        found.append(
            f"On MNIST the plain network of two ReLU layers is {format_number(plain.value)} off, and "
            f"{format_number(scaled.value)} after the best scalar factor; the designed one {format_number(designed.value)}."
        )
    return found


L3 = Experiment(
    name="L3",
    title="A ReLU DEQ and its leaky ReLU network",
    shows="Two layers of a designed leaky ReLU have the conjugate kernel of a ReLU DEQ, eigenvalue by eigenvalue.",
    quick=replace(Sizes(), images=1500, mixture_seeds=2, image_seeds=1),
    full=Sizes(),
    units=units,
    run=run,
    cost=comparison.cost,
    claims=claims,
    notes=notes,
)
