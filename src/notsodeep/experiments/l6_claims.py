"""L6: what follows from its records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from notsodeep.experiments.claims import Claim, holds
from notsodeep.experiments.experiment import Records
from notsodeep.experiments.l5_claims import accuracies
from notsodeep.experiments.l5_claims import comparable as comparable_accuracies
from notsodeep.experiments.record import Record
from notsodeep.experiments.selection import of_one_setting

NETWORKS = ("deq", "matched")
_SIGNIFICANT = 2.0  # times as fast: what "significantly reduced overhead" is taken to mean
_LEVELS = np.linspace(0.5, 0.95, 5)  # of the accuracies that both networks reach, from the lowest to the highest


def comparable(records: Sequence[Record]) -> list[Record]:
    """On one data set, with batches of one size."""
    return of_one_setting(records, ("data", "training_batch", "inference_batch", "var_a")) if records else []


def claims(every: Records, command: str) -> list[Claim]:
    records, accuracy = comparable(every["L6"]), comparable_accuracies(every["L5"])
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: int(record.config["width"])):
        groups.setdefault((record.config["device"], record.config["activation"]), []).append(record)
    return [
        _speedup(of, accuracy, device, phi, what, command)
        for (device, phi), of in sorted(groups.items())
        for what in ("inference", "training")
    ]


def _speedup(of: Sequence[Record], accuracy: list[Record], device: str, phi: str, what: str, command: str) -> Claim:
    ratios = [r.values["deq"][f"{what}_ms"] / r.values["matched"][f"{what}_ms"] for r in of]
    equal = equal_accuracy_ratios(of, accuracy, phi, what)
    text = f"{min(ratios):.1f} to {max(ratios):.1f} times as fast at equal width, m = {_range(of)}"
    if equal:
        text += f"; {min(equal):.1f} to {max(equal):.1f} times at equal accuracy"
    title = "inference" if what == "inference" else "a training step"
    return Claim(
        id=f"L6.{device}.{phi}.{what}",
        claim=f"The matched network takes less than half of the DEQ's time: {title}, {phi}, {of[-1].values['processor']}",
        paper="“significantly reduced overhead”",
        ours=text,
        spread=f"medians {statistics.median(ratios):.1f}" + (f" and {statistics.median(equal):.1f}" if equal else ""),
        verdict=holds(all(statistics.median(found) >= _SIGNIFICANT for found in (ratios, equal) if found)),
        command=command,
    )


def _range(of: Sequence[Record]) -> str:
    return " … ".join(dict.fromkeys(str(r.config["width"]) for r in (of[0], of[-1])))


def equal_accuracy_ratios(of: Sequence[Record], accuracy: Sequence[Record], phi: str, what: str) -> list[float]:
    """How many times longer a DEQ takes than the matched network of the same accuracy, at some accuracies that both reach.

    Between two widths the logarithm of the time is interpolated in the accuracy, which is made to rise with the width.
    """
    curves = []
    for net in NETWORKS:
        scores = accuracies(accuracy, of[0].config["data"], phi, "sgd", net)
        times = {record.config["width"]: record.values[net][f"{what}_ms"] for record in of}
        widths = [m for m in scores if m in times]
        reached = np.maximum.accumulate([scores[m].value for m in widths]) if widths else np.array([])
        risen = np.flatnonzero(np.diff(reached, prepend=-1.0) > 0.0)
        curves.append((reached[risen], np.log([times[widths[k]] for k in risen])))
    if any(len(reached) < 2 for reached, _ in curves):
        return []
    low, high = max(reached[0] for reached, _ in curves), min(reached[-1] for reached, _ in curves)
    if low >= high:
        return []
    deq, matched = (np.interp(low + _LEVELS * (high - low), reached, times) for reached, times in curves)
    return [float(ratio) for ratio in np.exp(deq - matched)]


def notes(every: Records) -> list[str]:
    if not every["L6"]:
        return []
    evaluations = [record.values["deq"]["evaluations"] for record in every["L6"]]
    return [
        "Both networks are timed in turn in one run; the DEQ is solved as in the paper (Anderson, memory 5, residual 1e-2, at "
        "most 25 steps), and its gradient is the exact implicit one. On a GPU its solver works in lower precision where that "
        "suffices, the explicit network in float32 throughout.",
        f"The DEQ takes {min(evaluations):.0f} to {max(evaluations):.0f} evaluations of its map.",
        "Equal accuracy is that of L5 with a readout trained by SGD; a training step here trains all weights.",
        "FLOPs are those of the matrix products, counted while they run. Kept memory is what the forward pass holds for the "
        "backward one, for each sample, weights and copies of them aside.",
    ]
