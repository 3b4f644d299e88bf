"""L2, L3 and L4: spectra of a DEQ's kernel against the theorem's equivalent, and against a designed network's kernel.

L2 has the equivalent kernel, L3 leaky ReLU for ReLU, L4 hard tanh for tanh. Ref: [ling2024] Figures 2 and 3, sections 5.1, 5.2.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from notsodeep.kernels.structured.equivalent import equivalent_kernel
from notsodeep.kernels.structured.sharp import sharp_kernel
from notsodeep.matching.families import LeakyReluFamily
from notsodeep.matching.solve import nearest
from notsodeep.papers.claims import Claim, Verdict, holds
from notsodeep.papers.experiment import Experiment, Records, Values
from notsodeep.papers.ling2024 import comparison
from notsodeep.papers.ling2024.comparison import TWIN, Printed, Sizes, Unit, absolute_gap
from notsodeep.papers.records import Record, where
from notsodeep.papers.statistics import format_number
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.scalars import scalars
from notsodeep.theory.statistics import tau0

_PAPER = {
    "L2": {"gmm": Printed(0.12, 800), "mnist": Printed(1.57, 6000)},
    "L3": {"gmm": Printed(0.23, 800), "mnist": Printed(1.83, 6000)},  # in the preprint
}
_DATA = {"gmm": "mixture", "mnist": "MNIST 6 and 8"}
_L2_DATA = {"gmm": "mixture, arctan", "mnist": "MNIST 6 and 8, tanh"}
_SMALL = 0.02  # of ‖G*‖: "coincide", in L4, is taken to mean a distance below this


def run_equivalent(unit: Unit, device: torch.device) -> Values:
    """The exact kernels against the theorem's, with its own τ0² = tr C°/p and with the data's τ0² = mean ‖x_i‖², and against
    the sharp one. φ is odd, so G* does not depend on the τ0 that it is centred at."""
    given = comparison.samples(unit, device)
    net, x, stats = Implicit(unit.activation, unit.var_a, unit.var_b), given.x, given.stats
    measured = replace(stats, tau0=tau0(x))
    reference = comparison.kernels_of(net, x, measured.tau0)
    rivals = {
        "equivalent": {name: equivalent_kernel(net, x, stats, name).to_dense() for name in reference},
        "measured τ0": {name: equivalent_kernel(net, x, measured, name).to_dense() for name in reference},
        "sharp": {name: sharp_kernel(net, x, name, tau0=measured.tau0).to_dense() for name in reference},
    }
    found = comparison.compare(reference, rivals, given, pictures=unit.seed == 0)
    return found | {"theorem_tau0": stats.tau0}


def equivalent_claims(every: Records) -> list[Claim]:
    records = comparison.comparable(every["L2"])
    found = []
    for data, printed in _PAPER["L2"].items():
        for rival, text in (("equivalent", "τ0² = tr C°/p"), ("measured τ0", "τ0² the mean of ‖x_i‖²")):
            claim = f"‖G* − Ḡ‖ of the theorem's kernel, {text}, {_L2_DATA[data]}, σ_a² = 0.1"
            id = f"L2.{data}" + ("" if rival == "equivalent" else ".measured-tau0")
            found += printed.claim(id, claim, records, data, rival)
        found += [*_norms(records, data), *_sharper(records, data)]
    return found


def _norms(records: list[Record], data: str) -> list[Claim]:
    """Our claim: where the distance comes from."""
    drawn, even = (absolute_gap(records, data, "measured τ0", unit_norm) for unit_norm in (False, True))
    if drawn is None or even is None:
        return []
    claim = f"Nine tenths of that distance come from the samples' different norms, {_L2_DATA[data]}"
    ours = f"{format_number(even.value)} with every sample divided by its norm, {format_number(drawn.value)} as they are"
    verdict, spread = holds(even.value < 0.1 * drawn.value), even.spelt(".2g", "draw")
    return [Claim(id=f"L2.{data}.norms", claim=claim, ours=ours, spread=spread, verdict=verdict)]


def _sharper(records: list[Record], data: str) -> list[Claim]:
    """Our claim: the label-free kernel is closer than the theorem's."""
    theirs, ours = (absolute_gap(records, data, rival) for rival in ("equivalent", "sharp"))
    if theirs is None or ours is None:
        return []
    claim = f"The label-free kernel of notsodeep is closer to G* than the theorem's, {_L2_DATA[data]}"
    times = f"{theirs.value / ours.value:.3g} times closer"
    text = f"{format_number(ours.value)} against {format_number(theirs.value)}: {times}"
    verdict = Verdict.sharper if ours.value < theirs.value else Verdict.not_reproduced
    return [Claim(id=f"L2.{data}.sharp", claim=claim, ours=text, spread=ours.spelt(".2g", "draw"), verdict=verdict)]


def equivalent_notes(_: Records) -> list[str]:
    return [
        "The paper averages 400 finite networks for G*, which has a noise of its own; here G* is exact, so the distance is the "
        "theorem's own. The norms are absolute and grow with n: ‖G*‖ stands beside them in the records.",
        "The theorem takes the samples' norms for equal up to O(n^(−1/2)). At these sizes that is most of its error: it "
        "is shown with τ0 as the theorem has it and as the data have it, and with every sample divided by its norm.",
    ]


def _one_layer(net: Implicit, tau0: float) -> dict[str, Explicit]:
    """The preprint's design has one layer, which cannot match all four scalars: the nearest there is."""
    return {"one layer": nearest(LeakyReluFamily(1), scalars(net, tau0), "conjugate").explicit}


def relu_claims(every: Records) -> list[Claim]:
    records = comparison.comparable(every["L3"])
    layers = {"designed": "two layers, as in the paper", "one layer": "one layer, as in the preprint"}
    found = []
    for data, printed in _PAPER["L3"].items():
        for rival, text in layers.items():
            claim = f"‖G* − Σ‖ of the leaky ReLU network ({text}), {_DATA[data]}, σ_a² = 0.1; the number is the preprint's"
            found += printed.claim(f"L3.{data}.{rival.replace(' ', '-')}", claim, records, data, rival)
        found += _closest("L3", data, records)
    return found


def tanh_claims(every: Records) -> list[Claim]:
    records = comparison.comparable(every["L4"])
    found = []
    for data, title in _DATA.items():
        gap = absolute_gap(records, data, "designed")
        if gap is None:
            continue
        own = where(records, data=data)
        relative = max(r.values["kernels"]["conjugate"]["rivals"]["designed"]["relative"] for r in own)
        claim = f"A tanh DEQ and its hard tanh network have one kernel (within {_SMALL:.0%}), {title}, σ_a² = 0.2"
        ours = f"‖G* − Σ‖ = {format_number(gap.value)}, {relative:.2%} of ‖G*‖"
        verdict, spread = holds(relative <= _SMALL), gap.spelt(".2g", "draw")
        found.append(Claim(id=f"L4.{data}", claim=claim, paper="coincide", ours=ours, spread=spread, verdict=verdict))
        found += _closest("L4", data, records)
    return found


def _closest(experiment: str, data: str, records: list[Record]) -> list[Claim]:
    """Our claim: on samples that it was not fitted to, the closest twin is nearer than the paper's design and the plain network
    times the factor that is best on these very samples."""
    rivals = {rival: gap for rival in (TWIN, "designed", "plain rescaled") if (gap := absolute_gap(records, data, rival))}
    if TWIN not in rivals:
        return []
    twin, *others = rivals.values()
    claim = f"The closest twin is nearer to the DEQ's kernel than the paper's design and plain layers rescaled, {_DATA[data]}"
    ours = f"‖G* − Σ‖ = {', '.join(f'{format_number(gap.value)} {rival}' for rival, gap in rivals.items())}"
    verdict, spread = holds(all(twin.value < other.value for other in others)), twin.spelt(".2g", "draw")
    return [Claim(id=f"{experiment}.{data}.closest", claim=claim, ours=ours, spread=spread, verdict=verdict)]


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
            f"{format_number(scaled.value)} after the best scalar factor; the designed one {format_number(designed.value)}"
            f"{_and_the_twin(records, 'mnist')}."
        )
    return found


def tanh_notes(every: Records) -> list[str]:
    records = comparison.comparable(every["L4"])
    found = []
    for data, title in _DATA.items():
        ours, scaled = (absolute_gap(records, data, rival) for rival in ("designed", "plain rescaled"))
        if ours and scaled and scaled.value < ours.value:
            found.append(
                f"{title[0].upper()}{title[1:]}: plain tanh times one factor is closer still, {format_number(scaled.value)} "
                f"against {format_number(ours.value)}{_and_the_twin(records, data)}. For tanh the design mostly sets a scale."
            )
    return found


def _and_the_twin(records: list[Record], data: str) -> str:
    twin = absolute_gap(records, data, TWIN)
    return f"; the closest twin, fitted to other samples, {format_number(twin.value)}" if twin else ""


L2 = Experiment(
    name="L2",
    title="Spectra of a DEQ's kernel and of the theorem's",
    shows="The paper: the eigenvalues and leading eigenvectors of G* and Ḡ coincide. Here: how far they do, on a mixture and "
    "on MNIST's sixes and eights.",
    units=partial(comparison.units, mixture="arctan", images="tanh", norms=(False, True)),
    quick=Sizes().quick(),
    full=Sizes(),
    run=run_equivalent,
    judge=equivalent_claims,
    remark=equivalent_notes,
)

L3 = Experiment(
    name="L3",
    title="A ReLU DEQ and its leaky ReLU network",
    shows="Two layers of a designed leaky ReLU have the conjugate kernel of a ReLU DEQ, eigenvalue by eigenvalue.",
    units=partial(comparison.units, mixture="relu", images="relu"),
    quick=Sizes().quick(),
    full=Sizes(),
    run=partial(comparison.compare_designs, more=_one_layer),
    judge=relu_claims,
    remark=relu_notes,
    revision=2,
)

L4 = Experiment(
    name="L4",
    title="A tanh DEQ and its hard tanh network",
    shows="One layer of hard tanh, with slope and corner matched, has the conjugate kernel of a tanh DEQ.",
    units=partial(comparison.units, mixture="tanh", images="tanh"),
    quick=Sizes(var_a=0.2).quick(),
    full=Sizes(var_a=0.2),
    run=comparison.compare_designs,
    judge=tanh_claims,
    remark=tanh_notes,
    revision=2,
)
