"""The frontier of a DEQ: every way to pay less for its answers, side by side, and which to deploy."""

from __future__ import annotations

import dataclasses
import importlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from notsodeep.errors import BadInput
from notsodeep.models.training.objective import measure, score, spread

_WIDTH = 128  # of a table
_LEGEND = (
    "* no other way is as cheap, as faithful and as good. Linear response: one layer, from the linearised equilibrium.\n"
    "Explicit twin: a network with the DEQ's kernel. Distilled, learnt: trained on the DEQ's outputs. Time up: still learning."
)
_R2_MARGIN = 0.003
_ROUNDING = 1e-9
_ROUNDED_UP = 1.005  # what is not 1 in three figures


@dataclass(frozen=True, eq=False)
class Answers:
    """The outputs of the DEQ on the samples that ways are judged by, and y there: a comparison for other outputs."""

    wanted: Tensor
    y: Tensor | None
    known: bool | None = None

    @property
    def classifies(self) -> bool:
        """Whether outputs are scores of classes, along their last axis; where nobody tells those of (n, K > 1) are."""
        if self.y is not None:
            return not self.y.is_floating_point()
        return self.wanted.ndim == 2 and self.wanted.shape[1] > 1 if self.known is None else self.known

    @property
    def guessed(self) -> bool:
        """Whether nobody said that the outputs are scores of classes."""
        return self.y is None and self.known is None and self.classifies

    @property
    def measure(self) -> str | None:
        """The name of the scores; None without y."""
        return None if self.y is None else measure(self.y)

    def same(self, out: Tensor) -> float | None:
        """The share of samples with the DEQ's class; None where outputs are numbers."""
        return float((out.argmax(-1) == self.wanted.argmax(-1)).double().mean()) if self.classifies else None

    def error(self, out: Tensor) -> float:
        """The root mean square difference from the DEQ's outputs, relative to their spread about the mean sample.

        Of several numbers, (n, K) or (n, T, K), each relative to its own.
        """
        wanted = self.wanted.double()
        apart = (out.double() - wanted).square() / size_of(wanted, self.classifies)
        return float(apart.mean().sqrt())

    def surely(self, out: Tensor) -> float:
        """The share of answers that is kept, or of variance, as `surely` has it."""
        same = self.same(out)
        return surely(1.0 - self.error(out) ** 2 if same is None else same, same is not None, len(out))

    def score(self, out: Tensor) -> float | None:
        """Accuracy or R² on y; None without y."""
        if self.y is None:
            return None
        if self.classifies:
            return score(out.reshape(-1, out.shape[-1]), self.y.reshape(-1))
        return score(out.reshape(len(out), -1), self.y.reshape(len(out), -1))


@dataclass(frozen=True)
class Way:
    """One way to answer, with its cost and what it keeps, on held-out samples."""

    name: str
    """what answers: "the DEQ", "the DEQ at tolerance 0.01", "the DEQ cut after 3 steps", "2 learnt steps" …"""
    mflop: float
    """10⁶ multiplications and additions of the matrix products, per sample"""
    milliseconds: float
    """for 1,000 samples on this machine, the least of a few runs"""
    agreement: float | None
    """share of samples with the DEQ's answer, for a classifier"""
    output_error: float
    """root mean square difference from the DEQ's outputs, relative to their spread"""
    score: float | None = None
    """accuracy or R² on y"""
    iterates: bool = False
    """whether it solves for an equilibrium, with looser tolerance or another solver"""
    portable: bool = True
    """whether files can hold it: not an equilibrium that needs operator splitting or damped steps"""
    plain: bool = False
    """whether it was trained on y, and owes nothing to the DEQ"""
    seconds: float = 0.0
    """time that its training took, after the DEQ's; 0 where there was none"""
    finished: bool = True
    """whether its training ended because it no longer helped, and not for want of time"""
    optimal: bool = False
    """whether no other way is at least as cheap, as faithful and as good, and better in one of these"""
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    """the module that answers so"""

    @property
    def kept(self) -> float:
        """Share of the DEQ's answers; for numbers, of their variance."""
        return 1.0 - self.output_error**2 if self.agreement is None else self.agreement

    def to_dict(self) -> dict[str, Any]:
        """Everything but the module as plain numbers and text, for JSON."""
        names = (each.name for each in dataclasses.fields(self) if each.name != "module")
        return {name: getattr(self, name) for name in names} | {"kept": self.kept}


@dataclass(frozen=True, eq=False)
class Frontier:
    """Ways to answer in place of a DEQ, the DEQ itself first, and which of them to deploy."""

    ways: tuple[Way, ...]
    """all of them"""
    keep: float
    """the share of the DEQ's answers that must be kept"""
    samples: int
    """held-out samples that all were measured on"""
    measure: str | None
    """name of the scores"""
    unseen: bool = False
    """whether the samples are others than those that compile_deq was given"""
    guessed: bool = False
    """whether nobody said that the outputs are scores of classes"""

    def __getitem__(self, name: str) -> Way:
        """The way of this name; `BadInput` where there is none."""
        for way in self.ways:
            if way.name == name:
                return way
        raise BadInput(f"There is no way {name!r}; there are {', '.join(way.name for way in self.ways)}.")

    @property
    def faithful(self) -> Way:
        """The cheapest way that keeps enough of the DEQ's answers, of those that files can hold if there are any.

        At equal cost the one that keeps most, then the one that needed least training: times are too noisy to choose by.
        """
        enough = (way for way in self.ways if self.keeps(way) and not way.plain)
        return min(enough, key=lambda way: (not way.portable, way.mflop, -way.kept, way.seconds))

    def keeps(self, way: Way) -> bool:
        """Whether it surely keeps enough; see `surely`. The DEQ itself always does."""
        return way is self.ways[0] or self._surely(way) >= self.keep

    def _surely(self, way: Way) -> float:
        return surely(way.kept, way.agreement is not None, self.samples)

    @property
    def chosen(self) -> Way:
        """The way to deploy: `faithful`, or a plain network, cheaper and as good or no dearer and better."""
        first = self.faithful
        rivals = [way for way in self.ways if way.plain and way.mflop <= first.mflop and _score(way) >= _score(first)]
        better = [way for way in rivals if way.mflop < first.mflop or _score(way) > _score(first)]
        return min(better, key=lambda way: (way.mflop, -_score(way)), default=first)

    @property
    def verdict(self) -> str:
        """What to deploy, in a sentence or two.

        It tells what the cheapest faithful way keeps and how much faster than the DEQ it is, whatever is deployed, and names a
        plain network no dearer than the DEQ that surely scores better than what is deployed, if there is one.
        """
        deq, way, first = self.ways[0], self.chosen, self.faithful
        what = "of its answers" if deq.agreement is not None else "of its variance"
        theirs = what.replace("its", "the DEQ's")
        where = f"on {self.samples} {'unseen' if self.unseen else 'held-out'} sample{'s' * (self.samples > 1)}"
        scores = "" if way.score is None else f" ({self.measure} {way.score:.4f}, the DEQ's {deq.score:.4f})"
        nothing = f"nothing cheaper surely keeps {_share(self.keep)} {theirs if way.plain else what}{self._nearest()}"
        if way is deq:
            said = f"Deploy the DEQ as it is: {where} {nothing}."
        elif way.plain:
            than = f"than {first.name}, the cheapest way that surely keeps {_share(self.keep)} {theirs}{self._told(first)}"
            said = (
                f"Deploy {way.name}, trained on y: {self._savings(way)}{scores} it does no worse {where} "
                f"{f'than the DEQ, and {nothing}' if first is deq else than}."
            )
        else:
            said = f"Deploy {way.name}: {where} it keeps {_share(way.kept)} {theirs} {self._savings(way)}{scores}."
        return " ".join([said, *self._remarks()])

    def _told(self, way: Way) -> str:
        """What a way keeps and how fast it is, in brackets."""
        sure = f" here, surely {_share(self._surely(way))}" if self.keep <= way.kept and not self.keeps(way) else ""
        return f" ({_share(way.kept)}{sure}, {self._faster(way)})"

    def _faster(self, way: Way) -> str:
        return f"{_figures(self.ways[0].milliseconds / max(way.milliseconds, 1e-9))} times as fast"

    def _savings(self, way: Way) -> str:
        deq = self.ways[0]
        faster = f"{self._faster(way)} here"
        fewer = deq.mflop / way.mflop if way.mflop > 0.0 else 1.0
        return f"with {_figures(fewer)} times fewer FLOPs than the DEQ and {faster}" if fewer > _ROUNDED_UP else faster

    def _nearest(self) -> str:
        """The most faithful of the cheaper ways, in brackets; the cheapest of those."""
        cheaper = [other for other in self.ways[1:] if not other.plain and other.mflop < self.ways[0].mflop]
        if not cheaper:
            return ""
        near = max(cheaper, key=lambda other: (other.kept, -other.mflop))
        return f"; {near.name} comes nearest{self._told(near)}"

    def _remarks(self) -> list[str]:
        """What else is to be known."""
        remarks, better, plain = [], self._better_plain(), [way for way in self.ways if way.plain]
        if better is not None:
            own = "" if self.chosen.plain else "Where answers of its own will do, "
            remarks.append(
                f"{own}{better.name} is surely better: {self.measure} {better.score:.4f} against {_score(self.chosen):.4f}, "
                f"{self._savings(better)}."
            )
        if plain and not any(way.finished for way in plain) and not self.chosen.plain:
            remarks.append("The plain networks were still learning when their time was up: a larger budget is fairer to them.")
        if self.measure is not None and not self.unseen:
            remarks.append(
                "If the DEQ was trained on these samples too, they flatter it, and all that copies it: test= takes others."
            )
        if self.ways[0].agreement is not None and surely(1.0, True, self.samples) < self.keep:
            fewer = f"Fewer than {needed(self.keep)}" if self.keep < 1.0 else "However many"
            remarks.append(
                f"{fewer} samples cannot make {_share(self.keep)} sure, even where all answers agree: judge by more, or ask "
                "for less by keep=."
            )
        if self.guessed:
            remarks.append("The outputs are taken for scores of classes; where they are numbers to predict, give y.")
        return remarks

    def _better_plain(self) -> Way | None:
        """The best plain network that costs no more than the DEQ and surely scores better than the way to deploy."""
        own, counted = _score(self.chosen), self.measure == "accuracy"

        def least(way: Way) -> float:
            """Of an accuracy as of answers kept; of R² less a difference that shows in a table."""
            return surely(_score(way), True, self.samples) if counted else _score(way) - _R2_MARGIN

        rivals = [way for way in self.ways if way.plain and way.mflop <= self.ways[0].mflop and least(way) > own]
        return max(rivals, key=_score, default=None)

    def summary(self) -> str:
        """A table of all ways, those marked * optimal, and the verdict, as text."""
        return f"{self.table()}\n{self.verdict}\n"

    def table(self) -> str:
        """A table of all ways, those marked * optimal, with a legend, as text."""
        columns = ["", "", "MFLOP", "ms per 1,000", "same answer", "output error"]
        trained = any(way.seconds for way in self.ways)
        table = Table(
            *columns, *([self.measure] if self.measure else []), *(["trained"] if trained else []), box=box.SIMPLE_HEAD
        )
        for column in (table.columns[1], table.columns[-1]):
            column.no_wrap = True
        for column in table.columns[2:]:
            column.justify = "right"
        for way in self.ways:
            same = "" if way.agreement is None else f"{way.agreement:.1%}"
            scores = [] if way.score is None else [f"{way.score:.4f}"]
            error = "" if way.plain else f"{way.output_error:.1%}"  # its outputs were never to be the DEQ's
            late = "" if way.finished else " (time up)"
            spent = (f"{way.seconds:.1f} s{late}" if way.seconds else "",) if trained else ()
            cells = (_figures(way.mflop), _figures(way.milliseconds), same, error, *scores, *spent)
            table.add_row("*" if way.optimal else "", way.name, *cells)
        stream = io.StringIO()
        console = Console(file=stream, width=_WIDTH, highlight=False, color_system=None, legacy_windows=False)
        console.print(table)
        return "\n".join(map(str.rstrip, stream.getvalue().splitlines())).strip("\n") + f"\n\n{_LEGEND}\n"

    def figure(self) -> Any:
        """Cost against what is kept and against the score, a matplotlib figure; see `notsodeep.figures.frontier`."""
        return importlib.import_module("notsodeep.figures.frontier").frontier_figure(self)  # which lies above models

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text, for JSON."""
        named = {"chosen": self.chosen.name, "verdict": self.verdict}
        ways = [way.to_dict() for way in self.ways]
        told = {"keep": self.keep, "samples": self.samples, "unseen": self.unseen, "measure": self.measure}
        return told | {"ways": ways} | named


def size_of(outputs: Tensor, classifies: bool) -> Tensor:
    """The mean square of outputs about their mean sample; of several numbers, (n, K) or (n, T, K), of each by itself."""
    if not classifies and outputs.ndim in (2, 3):
        return spread(outputs)
    return (outputs - outputs.mean(0)).square().mean().clamp(min=torch.finfo(outputs.dtype).tiny)


def surely(kept: float, classifies: bool, samples: int) -> float:
    """The share that is surely kept: of a share p of n answers, Wilson's lower bound at one standard deviation,

        (n p + ½ − √(n p (1 − p) + ¼)) / (n + 1),

    which is the least share that p is no more than its own standard error above. Where all n answers agree, it is n/(n + 1).

    Args:
        kept: The share p that is kept on the samples.
        classifies: Whether answers are classes. The share of the variance of numbers is returned as it is.
        samples: n.

    Returns:
        The share: less than p, as the best of many ways does worse on other samples.
    """
    if not classifies:
        return kept
    agree = samples * kept
    return (agree + 0.5 - math.sqrt(max(agree * (1.0 - kept), 0.0) + 0.25)) / (samples + 1)


def needed(keep: float) -> int:
    """So many samples, all with the same answer, make a share below 1 sure; see `surely`."""
    return math.ceil(keep / (1.0 - keep) - _ROUNDING)


def _figures(value: float) -> str:
    """Three figures, without an exponent for large numbers."""
    return f"{value:.0f}" if value >= 1000.0 else f"{value:.3g}"


def _share(share: float) -> str:
    """In percent, with as many digits as tell it from 100 %."""
    return f"{share:.1%}" if share == 1.0 or share < 0.9995 else f"{share:.3%}"


def _score(way: Way) -> float:
    return 0.0 if way.score is None else way.score


def optimal(ways: Sequence[Way]) -> tuple[Way, ...]:
    """The ways, those marked that no other one beats."""

    def merits(way: Way) -> tuple[float, ...]:
        return (-way.mflop, way.kept, _score(way))

    def beaten(way: Way) -> bool:
        own = merits(way)
        rivals = (merits(other) for other in ways)
        return any(other != own and all(a >= b for a, b in zip(other, own, strict=True)) for other in rivals)

    return tuple(replace(way, optimal=not beaten(way)) for way in ways)
