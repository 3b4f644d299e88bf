"""L3 and L4: a DEQ and the network designed for it, leaky ReLU for ReLU and hard tanh for tanh.

Ref: [ling2024] Figure 3, sections 5.1 and 5.2.
"""

from __future__ import annotations

import torch

from notsodeep.matching.families import LeakyReluFamily
from notsodeep.matching.solve import nearest
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values
from notsodeep.papers.ling2024 import comparison
from notsodeep.papers.ling2024.comparison import Printed, Sizes, Unit, absolute_gap
from notsodeep.papers.statistics import format_number
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.scalars import scalars

_PAPER = {"gmm": Printed(0.23, 800), "mnist": Printed(1.83, 6000)}  # L3, in the preprint
_SMALL = 0.02  # of ‖G*‖: "coincide", in L4, is taken to mean a distance below this
_DATA = {"gmm": "mixture", "mnist": "MNIST 6 and 8"}


def relu_units(config: Sizes) -> list[Unit]:
    return comparison.units(config, "relu", "relu")


def tanh_units(config: Sizes) -> list[Unit]:
    return comparison.units(config, "tanh", "tanh")


def run_relu(unit: Unit, device: torch.device) -> Values:
    """L3: the design with two layers, and the nearest one with one layer."""
    return comparison.compare_designs(unit, device, _one_layer)


def run_tanh(unit: Unit, device: torch.device) -> Values:
    """L4: the design alone."""
    return comparison.compare_designs(unit, device, lambda *_: {})


def _one_layer(net: Implicit, tau0: float) -> dict[str, Explicit]:
    """The preprint's design has one layer, which cannot match all four scalars: the nearest there is."""
    return {"one layer": nearest(LeakyReluFamily(1), scalars(net, tau0), "conjugate").explicit}


def relu_claims(every: Records) -> list[Claim]:
    records = comparison.comparable(every["L3"])
    layers = {"designed": "two layers, as in the paper", "one layer": "one layer, as in the preprint"}
    found = []
    for data, printed in _PAPER.items():
        for rival, text in layers.items():
            claim = (
                f"‖G* − Σ‖ of the leaky ReLU network ({text}), {_DATA[data]}, σ_a² = 0.1; the number is the preprint's"
            )
            found += printed.claim(f"L3.{data}.{rival.replace(' ', '-')}", claim, records, data, rival)
    return found


def tanh_claims(every: Records) -> list[Claim]:
    records = comparison.comparable(every["L4"])
    found = []
    for data, where in _DATA.items():
        gap = absolute_gap(records, data, "designed")
        if gap is None:
            continue
        of_data = [record for record in records if record.config["data"] == data]
        relative = max(r.values["kernels"]["conjugate"]["rivals"]["designed"]["relative"] for r in of_data)
        claim = f"A tanh DEQ and its hard tanh network have one kernel (within {_SMALL:.0%}), {where}, σ_a² = 0.2"
        ours = f"‖G* − Σ‖ = {format_number(gap.value)}, {relative:.2%} of ‖G*‖"
        verdict, spread = holds(relative <= _SMALL), gap.spelt(".2g", "draw")
        found.append(Claim(id=f"L4.{data}", claim=claim, paper="coincide", ours=ours, spread=spread, verdict=verdict))
    return found


def relu_notes(every: Records) -> list[str]:
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


def tanh_notes(every: Records) -> list[str]:
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


L3 = Experiment(
    name="L3",
    title="A ReLU DEQ and its leaky ReLU network",
    shows="Two layers of a designed leaky ReLU have the conjugate kernel of a ReLU DEQ, eigenvalue by eigenvalue.",
    units=relu_units,
    quick=Sizes().quick(),
    full=Sizes(),
    run=run_relu,
    judge=relu_claims,
    remark=relu_notes,
)

L4 = Experiment(
    name="L4",
    title="A tanh DEQ and its hard tanh network",
    shows="One layer of hard tanh, with slope and corner matched, has the conjugate kernel of a tanh DEQ.",
    units=tanh_units,
    quick=Sizes(var_a=0.2).quick(),
    full=Sizes(var_a=0.2),
    run=run_tanh,
    judge=tanh_claims,
    remark=tanh_notes,
)
