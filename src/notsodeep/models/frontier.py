"""Every way to pay less for a trained DEQ, side by side: looser solves, fewer steps, explicit twins, and a plain network."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from notsodeep.errors import NotConverged
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.timing import seconds
from notsodeep.models.training.fit import fit
from notsodeep.models.training.objective import Batches, measure, score
from notsodeep.models.training.readout import in_batches
from notsodeep.theory.architecture import Explicit

_TOLERANCES, _STEPS = (1e-3, 1e-2, 1e-1), (8, 5, 3, 2, 1)
_TIMED_ROWS, _TIMED_RUNS = 1000, 5
# Of the plain network: some seconds of training, more steps where they are cheap.
_BATCH, _RATE, _FEWEST, _MOST, _FLOPS = 128, 1e-2, 300, 1500, 3e11


@dataclass(frozen=True)
class Way:
    """One way to answer, with its cost and what it keeps, on held-out samples."""

    name: str
    """what answers: "the DEQ", "the DEQ at tolerance 0.01", "the DEQ cut after 3 steps" …"""
    how: str
    """the code that deploys it"""
    mflop: float
    """10⁶ multiplications and additions of the matrix products, per sample"""
    milliseconds: float
    """for 1,000 samples on this machine, the median of a few runs"""
    agreement: float | None
    """share of samples with the DEQ's answer, for a classifier"""
    output_error: float
    """root mean square difference from the DEQ's outputs, relative to their spread"""
    score: float | None = None
    """accuracy or R² on y"""
    plain: bool = False
    """whether it was trained on y, and owes nothing to the DEQ"""
    optimal: bool = False
    """whether no other way is at least as cheap, as faithful and as good, and better in one of these"""

    @property
    def kept(self) -> float:
        """Share of the DEQ's answers; for real numbers, of their variance."""
        return 1.0 - self.output_error**2 if self.agreement is None else self.agreement


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
    plain: tuple[ENN, ...] = field(default=(), repr=False)
    """the plain networks, one of each twin's shape, where there was a y to train them on"""

    @property
    def faithful(self) -> Way:
        """The cheapest way that keeps enough of the DEQ's answers."""
        enough = (way for way in self.ways if way.kept >= self.keep and not way.plain)
        return min(enough, key=lambda way: (way.mflop, -way.kept))

    @property
    def chosen(self) -> Way:
        """The way to deploy: `faithful`, or a plain network that costs no more and scores no less."""
        first = self.faithful
        rivals = [way for way in self.ways if way.plain and way.mflop <= first.mflop and _score(way) >= _score(first)]
        return min(rivals, key=lambda way: way.mflop, default=first)

    @property
    def verdict(self) -> str:
        """What to deploy, in one sentence."""
        deq, way, first = self.ways[0], self.chosen, self.faithful
        what = "of its answers" if deq.agreement is not None else "of its variance"
        theirs, where = what.replace("its", "the DEQ's"), f"on {self.samples} held-out samples"
        less = f"with {deq.mflop / way.mflop:.1f} times fewer FLOPs than the DEQ"
        scores = "" if way.score is None else f" ({self.measure} {way.score:.4f}, the DEQ's {deq.score:.4f})"
        if way is deq:
            near = max((other for other in self.ways[1:] if not other.plain), key=lambda other: other.kept)
            nearest = f"{near.name}: {near.kept:.1%}"
            return f"Deploy the DEQ as it is: {where} nothing cheaper keeps {self.keep:.1%} {what} ({nearest})."
        if way.plain:
            return (
                f"Deploy {way.name}, trained on y: {less}{scores} it does no worse {where} than {first.name}, the cheapest way "
                f"to keep {self.keep:.1%} {theirs}."
            )
        return f"Deploy {way.name}: {where} it keeps {way.kept:.1%} {theirs} {less}{scores}."

    def summary(self) -> str:
        """A table of all ways, those marked * optimal, and the verdict, as text."""
        columns = ["", "", "MFLOP", "ms per 1,000", "same answer", "output error"]
        table = Table(*columns, *([self.measure] if self.measure else []), box=box.SIMPLE_HEAD)
        for column in table.columns[2:]:
            column.justify = "right"
        for way in self.ways:
            same = "" if way.agreement is None else f"{way.agreement:.1%}"
            scores = [] if way.score is None else [f"{way.score:.4f}"]
            error = "" if way.plain else f"{way.output_error:.1%}"  # its outputs were never to be the DEQ's
            cells = (f"{way.mflop:.3g}", f"{way.milliseconds:.3g}", same, error, *scores)
            table.add_row("*" if way.optimal else "", way.name, *cells)
        stream = io.StringIO()
        console = Console(file=stream, width=110, highlight=False, color_system=None, legacy_windows=False)
        console.print(table)
        console.print(f"{self.verdict}\nTo do so: {self.chosen.how}", soft_wrap=True)
        return stream.getvalue().strip("\n") + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text, for JSON."""
        ways = [dataclasses.asdict(way) | {"kept": way.kept} for way in self.ways]
        named = {"chosen": self.chosen.name, "verdict": self.verdict}
        return {"keep": self.keep, "samples": self.samples, "measure": self.measure, "ways": ways, **named}


def _score(way: Way) -> float:
    return 0.0 if way.score is None else way.score


@dataclass(frozen=True, eq=False)
class Judged:
    """The samples that ways are measured on, and those that a plain network is trained on; y (n,) or (n, K), or None."""

    x: Tensor
    y: Tensor | None
    train_x: Tensor
    train_y: Tensor | None


def frontier(deq: DEQ, twins: Mapping[str, ENN], data: Judged, keep: float) -> Frontier:
    """The DEQ, looser and shorter solves of it, `twins` by the code that gives them, and with y a plain network, measured.

    Each plain network has the layers of a twin, with ReLUs and biases.

    Raises:
        NotConverged: The DEQ has no finite outputs to compare with.
    """
    ways = _of_deq(deq, data.x)
    for how, twin in twins.items():
        ways.append(_Untried(f"explicit, {_shape(twin)}", how, twin.flops(), twin))
    plain: list[ENN] = []
    if data.train_y is not None:
        plain = [_trained(twin, data.train_x, data.train_y) for twin in twins.values()]
    for number, network in enumerate(plain):
        name, how = f"a plain network, {_shape(network)}", f"frontier.plain[{number}]"
        ways.append(_Untried(name, how, network.flops(), network, plain=True))
    rows = torch.cat([data.x, data.train_x])[:_TIMED_ROWS]
    with torch.no_grad():
        wanted, *rest = (in_batches(way.call, data.x) for way in ways)
        wrong = int((~wanted.isfinite()).any(1).sum())
        if wrong:
            raise NotConverged(
                f"The DEQ's outputs are not finite for {wrong} of {len(wanted)} held-out samples, so there is nothing to "
                "compare with: its map diverges there. Leave these samples out, or give the DEQ another solver.",
                residual=math.nan,
                steps=deq.plan.max_steps,
            )
        # Steps of a map that does not contract may overflow: that is no way to answer.
        answers = [(way, out) for way, out in zip(ways, (wanted, *rest), strict=True) if bool(out.isfinite().all())]
        times = seconds([partial(way.call, rows) for way, _ in answers], rows.device, _TIMED_RUNS)
    measured = [
        way.measured(1e6 * median(spent) / len(rows), out, wanted, data.y)
        for (way, out), spent in zip(answers, times, strict=True)
    ]
    scored = None if data.y is None else measure(data.y)
    return Frontier(optimal(measured), keep, len(data.x), scored, tuple(plain))


def optimal(ways: list[Way]) -> tuple[Way, ...]:
    """The ways, those marked that no other one beats."""

    def merits(way: Way) -> tuple[float, ...]:
        return (-way.mflop, way.kept, _score(way))

    def beaten(way: Way) -> bool:
        own = merits(way)
        rivals = (merits(other) for other in ways)
        return any(other != own and all(a >= b for a, b in zip(other, own, strict=True)) for other in rivals)

    return tuple(replace(way, optimal=not beaten(way)) for way in ways)


@dataclass(frozen=True, eq=False)
class _Untried:
    """A way that was not measured yet."""

    name: str
    how: str
    flops: int
    call: Callable[[Tensor], Tensor]
    plain: bool = False

    def measured(self, milliseconds: float, out: Tensor, wanted: Tensor, y: Tensor | None) -> Way:
        classifies = wanted.shape[1] > 1 and (y is None or not y.is_floating_point())
        spread = (wanted - wanted.mean(0)).double().square().mean().clamp(min=torch.finfo(wanted.dtype).tiny)
        error = float(((out - wanted).double().square().mean() / spread).sqrt())
        same = float((out.argmax(1) == wanted.argmax(1)).double().mean()) if classifies else None
        found = None if y is None else score(out, y)
        return Way(self.name, self.how, self.flops / 1e6, milliseconds, same, error, found, self.plain)


def _of_deq(deq: DEQ, x: Tensor) -> list[_Untried]:
    """The DEQ at its own tolerance and at looser ones, and after some steps."""
    plan = deq.plan
    tol = plan.tolerance(x.dtype)
    ways = [_Untried("the DEQ", "deq", deq.flops(_evaluations(deq, x)), deq)]
    for looser in _TOLERANCES:
        if looser > tol or not plan.relative:
            loose = copy.copy(deq)  # the same weights
            loose.plan = replace(plan, tol=looser, relative=True, atol=0.0, throw=False)
            how = f"deq.plan = dataclasses.replace(deq.plan, tol={looser:g})"
            ways.append(_Untried(f"the DEQ at tolerance {looser:g}", how, deq.flops(_evaluations(loose, x)), loose))
    for k in _STEPS:
        steps = "1 step" if k == 1 else f"{k} steps"
        how = f"deq.to_onnx(path, nsd.fixed_points.Steps({k})), or deq.cut(x, {k})"
        ways.append(_Untried(f"the DEQ cut after {steps}", how, deq.flops(k), partial(deq.cut, steps=k)))
    return ways


@torch.no_grad()
def _evaluations(deq: DEQ, x: Tensor) -> int:
    return deq.solve(x[:_TIMED_ROWS]).evaluations


def _trained(twin: ENN, x: Tensor, y: Tensor) -> ENN:
    """A ReLU network of the twin's shape, trained on y by Adam with a cosine rate."""
    assert twin.out_features is not None
    draw, depth = torch.Generator().manual_seed(0), len(twin.widths)
    made = ENN(
        Explicit(["relu"] * depth),
        twin.in_features,
        twin.widths,
        twin.out_features,
        bias=True,
        readout_bias=True,
        generator=draw,
        device=x.device,
        dtype=x.dtype,
    )
    made.preprocessing = twin.preprocessing
    steps = min(_MOST, max(_FEWEST, round(_FLOPS / (3.0 * _BATCH * made.flops()))))
    batches = Batches(x, y, _BATCH, draw)
    fit(made, batches, -(-steps // len(batches)), optimiser=torch.optim.Adam(made.parameters(), lr=_RATE), progress=False)
    return made


def _shape(network: ENN) -> str:
    depth, width = len(network.widths), network.width
    return f"{depth} layer{'s' if depth > 1 else ''} of {width}"
