"""L2: the spectra of a DEQ's kernel and of the theorem's equivalent coincide. Ref: [ling2024] Figure 2."""

from __future__ import annotations

from dataclasses import replace

import torch

from notsodeep.kernels.structured.equivalent import equivalent_kernel
from notsodeep.kernels.structured.sharp import sharp_kernel
from notsodeep.papers.claims import Claim, Verdict, holds
from notsodeep.papers.experiment import Experiment, Records, Values
from notsodeep.papers.ling2024 import comparison
from notsodeep.papers.ling2024.comparison import Printed, Sizes, Unit, absolute_gap
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import format_number
from notsodeep.theory.architecture import Implicit
from notsodeep.theory.statistics import tau0

_PAPER = {"gmm": Printed(0.12, 800), "mnist": Printed(1.57, 6000)}
_DATA = {"gmm": "mixture, arctan", "mnist": "MNIST 6 and 8, tanh"}


def units(config: Sizes) -> list[Unit]:
    return comparison.units(config, "arctan", "tanh", norms=(False, True))


def run(unit: Unit, device: torch.device) -> Values:
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


def claims(every: Records) -> list[Claim]:
    records = comparison.comparable(every["L2"])
    found = []
    for data, printed in _PAPER.items():
        for rival, text in (("equivalent", "τ0² = tr C°/p"), ("measured τ0", "τ0² the mean of ‖x_i‖²")):
            claim = f"‖G* − Ḡ‖ of the theorem's kernel, {text}, {_DATA[data]}, σ_a² = 0.1"
            id = f"L2.{data}" + ("" if rival == "equivalent" else ".measured-tau0")
            found += printed.claim(id, claim, records, data, rival)
        found += [*_norms(records, data), *_sharper(records, data)]
    return found


def _norms(records: list[Record], data: str) -> list[Claim]:
    """Our claim: where the distance comes from."""
    drawn, even = (absolute_gap(records, data, "measured τ0", unit_norm) for unit_norm in (False, True))
    if drawn is None or even is None:
        return []
    claim = f"Nine tenths of that distance come from the samples' different norms, {_DATA[data]}"
    ours = (
        f"{format_number(even.value)} with every sample divided by its norm, {format_number(drawn.value)} as they are"
    )
    verdict, spread = holds(even.value < 0.1 * drawn.value), even.spelt(".2g", "draw")
    return [Claim(id=f"L2.{data}.norms", claim=claim, ours=ours, spread=spread, verdict=verdict)]


def _sharper(records: list[Record], data: str) -> list[Claim]:
    """Our claim: the label-free kernel is closer than the theorem's."""
    theirs, ours = (absolute_gap(records, data, rival) for rival in ("equivalent", "sharp"))
    if theirs is None or ours is None:
        return []
    claim = f"The label-free kernel of notsodeep is closer to G* than the theorem's, {_DATA[data]}"
    times = f"{theirs.value / ours.value:.3g} times closer"
    text = f"{format_number(ours.value)} against {format_number(theirs.value)}: {times}"
    verdict = Verdict.sharper if ours.value < theirs.value else Verdict.not_reproduced
    return [Claim(id=f"L2.{data}.sharp", claim=claim, ours=text, spread=ours.spelt(".2g", "draw"), verdict=verdict)]


def notes(_: Records) -> list[str]:
    return [
        "The paper averages 400 finite networks for G*, which has a noise of its own; here G* is exact, so the distance is the "
        "theorem's own. The norms are absolute and grow with n: ‖G*‖ stands beside them in the records.",
        "The theorem takes the samples' norms for equal up to O(n^(−1/2)). At these sizes that is most of its error: it "
        "is shown with τ0 as the theorem has it and as the data have it, and with every sample divided by its norm.",
    ]


L2 = Experiment(
    name="L2",
    title="Spectra of a DEQ's kernel and of the theorem's",
    shows="The paper: the eigenvalues and leading eigenvectors of G* and Ḡ coincide. Here: how far they do, on a mixture and "
    "on MNIST's sixes and eights.",
    units=units,
    quick=Sizes().quick(),
    full=Sizes(),
    run=run,
    judge=claims,
    remark=notes,
)
