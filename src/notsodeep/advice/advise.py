"""Advice on a task, a DEQ, the explicit network matched to it, or neither: a rule on measurements, with its reasons."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from notsodeep.advice.evidence import Evidence, LeftOut, evidence
from notsodeep.advice.race import Columns, Race, Say, race
from notsodeep.arguments import flag, function, seed as checked_seed
from notsodeep.arrays import Array, samples

LEARNABLE = 0.95
"""In units of the best constant's error. If the 95 % intervals of all five learners reach it, less than 5 % of the label is
sure to be learnable, and no network is worth its training."""
MISSED = 0.1
"""As a share of what can be learnt. Good learners differ by a few per cent; if both kernels miss a tenth, features must be
learnt (a hidden direction, a steep place), which is where [wu2024] find DEQs ahead at equal cost. If they miss less, wide
networks of both kinds behave as their kernels, which agree, and the explicit network is cheaper to run."""

_LEARNERS = {
    "deq": "the DEQ's kernel",
    "matched": "the matched network's kernel",
    "neighbours": "nearest neighbours",
    "trees": "a forest of trees",
    "metric": "a kernel with a learnt metric",
}
_USE = {
    "deq": "a DEQ",
    "explicit": "the explicit network matched to the DEQ",
    "neither": "neither a DEQ nor the explicit network",
}


def rule(found: Evidence) -> str:
    """The verdict of the evidence alone: "deq", "explicit" or "neither"."""
    if _surest(found).high >= LEARNABLE:
        return "neither"
    if found.missed >= MISSED and found.kernels.low > found.best.high:
        return "deq"
    return "explicit"


@dataclass(frozen=True)
class Advice:
    """A verdict with its reasons and measurements."""

    measured: Evidence
    """The measurements, before any training."""
    race: Race | None = None
    """The result of training both networks, which decides if there is one."""
    dominated: float | None = None
    """The share of x's variance in one feature if it was so large that each feature was scaled to unit variance, else None."""

    @property
    def rule(self) -> str:
        """The verdict before any training."""
        return rule(self.measured)

    @property
    def verdict(self) -> str:
        """The verdict of the race, or of the rule without one: "deq", "explicit" or "neither"."""
        return self.rule if self.race is None else self.race.outcome

    @property
    def sentences(self) -> tuple[str, str, str]:
        """The verdict with its reason, the measured errors, and the result of training."""
        return self._why(), self._errors(), self._training()

    @property
    def evidence(self) -> list[tuple[str, str, str]]:
        """(name, value, meaning) of each measurement."""
        rows = self.measured.rows()
        if self.dominated is not None:
            share = f"{self.dominated:.3g} in one feature"
            rows.insert(1, ("variance as given", share, "for which each was scaled to unit variance; all else is of that"))
        if self.race is not None:
            rows += _race_rows(self.race)
        return rows

    def with_race(self, found: Race) -> Advice:
        """The same advice, decided by a race with settings of your own."""
        return replace(self, race=found)

    def summary(self) -> str:
        """The three sentences and the table of measurements, as text."""
        stream = io.StringIO()
        console = Console(file=stream, width=128, highlight=False, markup=False, color_system=None, legacy_windows=False)
        for sentence in self.sentences:
            console.print(sentence)
        table = Table("measured", "value", "what it means", box=box.SIMPLE_HEAD)
        for row in self.evidence:
            table.add_row(*row)
        console.print(table)
        return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().splitlines()) + "\n"

    def __str__(self) -> str:
        return self.summary()

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        values = asdict(self.measured) | {name: str(getattr(self.measured, name)) for name in ("net", "explicit")}
        return {
            "verdict": self.verdict,
            "rule": self.rule,
            "sentences": list(self.sentences),
            "evidence": [{"name": name, "value": value, "meaning": meaning} for name, value, meaning in self.evidence],
            "measured": values | {"missed": self.measured.missed, "dominated": self.dominated},
            "race": None if self.race is None else self.race.to_dict(),
        }

    def _why(self) -> str:
        if self.race is not None and self.race.outcome != self.rule:
            first = f"Use {_USE[self.verdict]}: training showed otherwise than the measurements, which spoke for"
            return f"{first} {_USE[self.rule]}."
        found = self.measured
        if self.rule == "neither":
            surest = _surest(found)
            return (
                "Use neither a DEQ nor the explicit network: nothing that was tried surely learns "
                f"{_percent(1.0 - LEARNABLE)} of the label (the surest, {_name(found, surest)}, has an error of "
                f"{_interval(surest)} of the best constant's)."
            )
        if self.rule == "deq":
            return (
                f"Use a DEQ: both kernels miss {_percent(found.missed)} of what {_name(found, found.best)} can learn: "
                "features must be learnt, which is where a DEQ does more at the same cost of training."
            )
        if found.missed == 0.0:
            missed = "nothing that was tried learns more than they do"
        else:
            few = f"less than the {_percent(MISSED)} that would call for a DEQ"
            judged = few if found.missed < MISSED else "no more than chance explains"
            missed = f"they miss {_percent(found.missed)} of what {_name(found, found.best)} can learn, {judged}"
        return (
            "Use the explicit network matched to the DEQ, which is cheaper to run: their kernels differ by "
            f"{_percent(found.conjugate_gap)} (conjugate) and {_percent(found.tangent_gap)} (tangent, up to a factor), "
            f"and {missed}."
        )

    def _errors(self) -> str:
        found = self.measured
        scaled = (
            ""
            if self.dominated is None
            else f", with each feature scaled to unit variance because one held {_percent(self.dominated)} of it,"
        )
        return (
            f"On samples left out{scaled} the squared error, 1 being the best constant's, is {_interval(found.deq)} with the "
            f"DEQ's kernel, {_interval(found.matched)} with the matched network's, {found.neighbours.mean:.3g} with nearest "
            f"neighbours, {found.trees.mean:.3g} with trees and {found.metric.mean:.3g} with a learnt metric."
        )

    def _training(self) -> str:
        if self.race is None:
            return (
                f"Nothing was trained; this rests on {self.measured.samples} samples, and training both at equal cost "
                "(train=True, or --train) checks it."
            )
        deq, explicit = self.race.deq, self.race.explicit
        how = "agrees" if self.race.outcome == self.rule else f"decides for {_USE[self.race.outcome]}"
        return (
            f"Training both at equal FLOPs, {len(deq.losses)} seeds each, {how}: the DEQ has a test loss of {deq} and the "
            f"explicit network of {explicit} of the best constant's."
        )


def advise(
    x: Array, y: Any, *, train: bool = False, test: tuple[Array, Any] | None = None, seed: int = 0, say: Say | None = None
) -> Advice:
    """Advice whether to predict y from x with a DEQ, with the explicit network matched to it, or with neither.

    The measurements use at most 2000 samples and take some seconds; training takes a minute or two. If one feature holds over
    90 % of the variance of x, each feature is scaled to unit variance, and the advice says so.

    Args:
        x: Samples, (n, p).
        y: Real numbers (floats), (n,) or (n, K), or classes (n,), whole numbers or words.
        train: Whether to train both networks at equal FLOPs; the result then decides.
        test: Samples and labels to test the trained networks on; by default 30 % of the samples are held out.
        seed: The seed of every random choice.
        say: Called with a text at each step, for example `print`.

    Returns:
        The verdict with its reasons; `print` shows it.

    Raises:
        BadInput: If there are fewer than 20 samples, x or y cannot be used, or all labels are equal.
    """
    train, seed = flag(train, "train"), checked_seed(seed)
    say = str if say is None else function(say, "say", "a function of a text", 1)
    rows = samples(x).detach().cpu()
    columns = Columns.of(rows)
    say("measuring what kernels, neighbours and trees learn")
    measured = evidence(columns(rows), y, generator=torch.Generator().manual_seed(seed))
    found = Advice(measured, dominated=columns.largest if columns.scaled else None)
    if not train:
        return found
    return found.with_race(race(rows, y, test=test, generator=torch.Generator().manual_seed(seed), say=say))


def _surest(found: Evidence) -> LeftOut:
    """The error of the learner whose interval has the lowest upper end."""
    errors: list[LeftOut] = [getattr(found, learner) for learner in _LEARNERS]
    return min(errors, key=lambda error: error.high)


def _name(found: Evidence, error: LeftOut) -> str:
    return next(name for learner, name in _LEARNERS.items() if getattr(found, learner) is error)


def _interval(error: LeftOut) -> str:
    return f"{error.mean:.3g} ({max(error.low, 0.0):.3g}–{error.high:.3g})"


def _percent(share: float) -> str:
    return f"{100.0 * share:.3g} %" if share >= 0.1 else f"{100.0 * share:.2g} %"


def _race_rows(found: Race) -> list[tuple[str, str, str]]:
    deq, explicit = found.deq, found.explicit
    return [
        ("trained DEQ", str(deq), f"test loss, {len(deq.losses)} seeds, {found.tested_on} samples; 1 is a constant's"),
        ("trained explicit", str(explicit), "the same of the matched network, trained with as many FLOPs"),
        ("units", f"{deq.widths[0]} | {'+'.join(map(str, explicit.widths))}", "of the DEQ | the explicit network"),
        ("parameters", f"{deq.parameters} | {explicit.parameters}", "the same"),
        ("training FLOPs", f"{deq.flops.training:.3g} | {explicit.flops.training:.3g}", "of a sample in a step"),
        ("running FLOPs", f"{deq.flops.forward:.3g} | {explicit.flops.forward:.3g}", "of a sample, once trained"),
        ("rates", f"{deq.rate:g} | {explicit.rate:g}", "the best of those tried, by samples used for nothing else"),
        ("diverged", f"{deq.diverged} | {explicit.diverged}", "of the seeds; each counts as a constant"),
        ("evaluations", f"{deq.evaluations:.3g}", "of the DEQ's map for an equilibrium, mean over the training"),
    ]
