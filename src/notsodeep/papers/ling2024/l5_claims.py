"""L5: the paper's accuracies, and the claims and notes that follow from the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Records
from notsodeep.papers.records import Record, of_one_run, where
from notsodeep.papers.statistics import Interval, format_number, mean, over_seeds, signed

LARGEST_WIDTH, SMALLEST_WIDTH = 2**12, 2**5
ACCURACY: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("mnist", "tanh"): {"matched": (0.760, 0.917), "deq": (0.757, 0.918), "plain": (0.775, 0.905)},
    ("mnist", "relu"): {"matched": (0.652, 0.936), "deq": (0.717, 0.939), "plain": (0.576, 0.916)},
    ("fashion-mnist", "tanh"): {"matched": (0.757, 0.837), "deq": (0.742, 0.837), "plain": (0.762, 0.822)},
    ("fashion-mnist", "relu"): {"matched": (0.697, 0.842), "deq": (0.735, 0.846), "plain": (0.658, 0.822)},
    ("cifar10-vgg19", "tanh"): {"matched": (0.759, 0.846), "deq": (0.745, 0.845), "plain": (0.755, 0.845)},
    ("cifar10-vgg19", "relu"): {"matched": (0.623, 0.835), "deq": (0.677, 0.840), "plain": (0.501, 0.760)},
}
"""Test accuracy in [ling2024] at widths 2⁵ and 2¹², readout trained. The features of CIFAR-10 are theirs, not ours."""

_TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10-vgg19": "CIFAR-10 features"}
_NETWORKS = {"deq": "DEQ", "matched": "matched", "closest": "closest twin", "plain": "plain"}
_RUN = ("train", "test", "rate", "batch", "epochs", "var_a")
_CLOSE, _WIDE = 0.01, 2**8
_ENOUGH = 50_000  # training samples: as many as the paper's code takes


def comparable(records: Sequence[Record]) -> list[Record]:
    """The records of one run for each kind, data set and activation: as many samples, trained in the same way."""
    return of_one_run(records, ("kind", "data", "activation"), _RUN)


def accuracies(records: Sequence[Record], data: str, activation: str, how: str, network: str) -> dict[int, Interval]:
    """Test accuracy by width, over the seeds; `how` the readout was found: sgd or ridge."""
    own = where(records, kind="width", data=data, activation=activation)
    return _by_width(own, lambda accuracy: accuracy[how].get(network))


def _ahead(records: Sequence[Record], how: str, first: str, second: str) -> dict[int, Interval]:
    """Lead of the first network over the second, by width: seed by seed, because both saw the same samples."""
    return _by_width(records, lambda accuracy: accuracy[how][first] - accuracy[how][second])


def _by_width(records: Sequence[Record], value: Callable[[Any], float | None]) -> dict[int, Interval]:
    found = over_seeds(records, lambda r: int(r.config["width"]), lambda r: value(r.values["accuracy"]))
    return {width: mean(values) for width, values in found.items()}


@dataclass(frozen=True)
class _Row:
    """One row of the paper's table, with all records."""

    data: str
    activation: str
    records: tuple[Record, ...]

    def of(self, kind: str) -> list[Record]:
        return where(self.records, kind=kind, data=self.data, activation=self.activation)

    def as_the_paper(self) -> list[Record]:
        """The records of the paper's largest width, if trained on as many samples."""
        at = where(self.of("width"), width=LARGEST_WIDTH)
        return at if _as_many_samples(at) else []

    def claim(self, name: str, claim: str, ours: str, spread: str, found: bool, *, paper: str = "—") -> Claim:
        title = f"{_TITLES.get(self.data, self.data)}, {self.activation}: {claim}"
        id = f"L5.{self.data}.{self.activation}.{name}"
        return Claim(id=id, claim=title, paper=paper, ours=ours, spread=spread, verdict=holds(found))


def claims(every: Records) -> list[Claim]:
    records = comparable(every["L5"])
    seen = {(record.config["data"], record.config["activation"]) for record in records}
    found = []
    for data, activation in [row for row in ACCURACY if row in seen] + sorted(seen - set(ACCURACY)):
        row = _Row(data, activation, tuple(records))
        found += [*_levels(row), *_close(row), *_plain(row), *_infinite(row), *_closest(row), *_trained(row)]
    return found


def _levels(row: _Row) -> list[Claim]:
    """The paper's levels, where its width, its number of samples and its data were taken."""
    theirs, at = ACCURACY.get((row.data, row.activation)), row.as_the_paper()
    if theirs is None or row.data.startswith("cifar") or not at:
        return []
    found = []
    for net, title in (("deq", "DEQ"), ("matched", "matched network")):
        paper, ours = theirs[net][1], mean([record.values["accuracy"]["sgd"][net] for record in at])
        claim, spread = f"test accuracy of the {title}, m = 2¹² (within {_CLOSE:g})", ours.spelt(".4f", "seed")
        close = abs(ours.value - paper) <= _CLOSE
        found.append(row.claim(net, claim, f"{ours.value:.4f}", spread, close, paper=f"{paper:.3f}"))
    return found


def _close(row: _Row) -> list[Claim]:
    """At the paper's largest width, and at every width from 2⁸."""
    gaps = {width: gap for width, gap in _ahead(row.of("width"), "sgd", "matched", "deq").items() if width >= _WIDE}
    if not gaps:
        return []
    at, worst = _shown_width(gaps), max(gaps, key=lambda width: abs(gaps[width].value))
    far = [width for width, gap in gaps.items() if abs(gap.value) > _CLOSE]
    since = next((width for width in gaps if not far or width > max(far)), None)
    where = f"; less from m = {since} on" if far and since else ""
    largest = f"largest {signed(gaps[worst].value, 4)}, at m = {worst}{where}"

    def within(name: str, text: str, width: int, ours: str) -> Claim:
        claim, spread = (f"matched network and DEQ within {_CLOSE:g} of each other, {text}", gaps[width].spelt(".4f", "seed"))
        return row.claim(name, claim, ours, spread, abs(gaps[width].value) <= _CLOSE, paper=f"≤ {_CLOSE:g}")

    return [
        within("gap", f"m = {at}", at, signed(gaps[at].value, 4)),
        within("every-gap", "every width from 2⁸", worst, largest),
    ]


def _plain(row: _Row) -> list[Claim]:
    """The paper's gap to the plain network, and whether it outlives a change of scale or a readout in closed form."""
    theirs, at = ACCURACY.get((row.data, row.activation)), row.as_the_paper()
    if theirs is None or not at:
        return []
    paper, ahead = theirs["deq"][1] - theirs["plain"][1], _ahead(at, "sgd", "deq", "plain")[LARGEST_WIDTH]
    rescaled = _ahead(at, "sgd", "deq", "rescaled")[LARGEST_WIDTH].value
    closed = _ahead(at, "ridge", "deq", "plain")[LARGEST_WIDTH].value
    ours = (
        f"{signed(ahead.value, 4)}; {signed(rescaled, 4)} when the plain features are rescaled; {signed(closed, 4)} with a "
        "ridge readout"
    )
    claim = f"the DEQ's lead over the plain network, SGD readout, m = 2¹² (within {_CLOSE:g})"
    close = abs(ahead.value - paper) <= _CLOSE
    return [row.claim("plain", claim, ours, ahead.spelt(".4f", "seed"), close, paper=signed(paper, 3))]


def _infinite(row: _Row) -> list[Claim]:
    """Our claim: at infinite width, where no draw of weights blurs it, which network predicts as the DEQ does."""
    if not (records := row.of("infinite")):
        return []
    gap, same = records[0].values["prediction_gap"], records[0].values["agreement"]
    shown = {net: f"{format_number(gap[net])} and {same[net]:.2%}" for net in ("matched", "plain", "rescaled")}
    claim = "at infinite width the matched network's kernel regression is nearer to the DEQ's than the plain network's"
    ours = f"distance and same answers: {shown['matched']}; plain {shown['plain']}; rescaled {shown['rescaled']}"
    nearer = gap["matched"] < min(gap["plain"], gap["rescaled"])
    return [row.claim("infinite", claim, ours, f"{records[0].config['train']} samples", nearer)]


def _closest(row: _Row) -> list[Claim]:
    """Our claims on the closest twin: its accuracy, and whether at infinite width it predicts as the DEQ, before all others."""
    found = []
    if has_twin(records := row.of("width")):
        gaps = _ahead(records, "sgd", "closest", "deq")
        at = _shown_width(gaps)
        gap, claim = gaps[at], f"closest twin and DEQ within {_CLOSE:g} of each other, m = {at}"
        close = abs(gap.value) <= _CLOSE
        found.append(row.claim("closest-gap", claim, signed(gap.value, 4), gap.spelt(".4f", "seed"), close))
    if has_twin(records := row.of("infinite")):
        gap_of = records[0].values["prediction_gap"]
        others = [net for net in gap_of if net != "closest"]
        claim = "at infinite width the closest twin's kernel regression is nearer to the DEQ's than all others"
        shown = ", ".join(f"{net} {format_number(gap_of[net])}" for net in others)
        same = records[0].values["agreement"]["closest"]
        ours = f"distance {format_number(gap_of['closest'])}, same answers {same:.2%}; {shown}"
        nearer = gap_of["closest"] < min(gap_of[net] for net in others)
        found.append(row.claim("closest-infinite", claim, ours, f"{records[0].config['train']} samples", nearer))
    return found


def has_twin(records: Sequence[Record]) -> bool:
    """Whether the records know the closest twin; those of the first revision do not."""
    return bool(records) and all("closest" in record.values["kernel_gap"] for record in records)


def _trained(row: _Row) -> list[Claim]:
    if not (records := row.of("trained")):
        return []
    nets = [net for net in _NETWORKS if net in records[0].values["accuracy"]]
    by = {net: mean([record.values["accuracy"][net] for record in records]) for net in nets}
    claim = f"all weights trained, m = {records[0].config['width']}: matched network and DEQ within {_CLOSE:g}"
    text = ", ".join(f"{_NETWORKS[net]} {by[net].value:.4f}" for net in nets)
    close = abs(by["deq"].value - by["matched"].value) <= _CLOSE
    return [row.claim("trained", claim, text, by["deq"].spelt(".4f", "seed"), close)]


def _shown_width(by_width: dict[int, Interval]) -> int:
    """The paper's largest width if it was run, else our largest."""
    return LARGEST_WIDTH if LARGEST_WIDTH in by_width else max(by_width)


def _as_many_samples(records: Sequence[Record]) -> bool:
    """Whether all records were trained on as many samples as the paper: all, or as many as its code takes."""
    return all(record.config["train"] == 0 or record.config["train"] >= _ENOUGH for record in records)


def notes(every: Records) -> list[str]:
    records = where(comparable(every["L5"]), kind="width")
    found = [
        "CIFAR-10's features here are not the paper's: compare the gaps between the networks there, not the level.",
        "The public code designs with σ_a² = 0.1 (tanh) and 0.3 (ReLU) for networks of 0.2; here it is 0.2 throughout.",
    ]
    if not records:
        return found
    at = _shown_width(_by_width(records, lambda _: 0.0))
    if at != LARGEST_WIDTH or not _as_many_samples(records):
        found.append("At this size the paper's levels (m = 2¹², 50,000 samples) are not compared; --full does.")
    return [*_what_accuracy_shows(where(records, width=at), at), *found]


def _what_accuracy_shows(records: Sequence[Record], width: int) -> list[str]:
    def average(quantity: str, *path: str) -> float:
        return mean([reduce(getitem, path, record.values[quantity]) for record in records]).value

    def lead(how: str, network: str) -> str:
        ahead = signed(average("accuracy", how, "deq") - average("accuracy", how, network), 4)
        return f"{ahead} ({_by_row(records, how, network)} row by row)"

    nets = ("matched", "plain", "rescaled", "deq_again", *("closest",) * has_twin(records))
    gap = {net: f"{average('kernel_gap', net):.3f}" for net in nets}
    same = {net: f"{average('agreement', 'sgd', net):.1%}" for net in nets}
    twin = [gap["closest"], same["closest"]] if "closest" in gap else []
    also = [f"that of the closest twin {twin[0]}, ", f"{twin[1]} the closest twin, "] if twin else ["", ""]
    return [
        "What the paper's accuracy figure shows: from some hundreds of units on, a DEQ and the network matched to it "
        "are equally accurate. What it does not show: that they compute the same, for other networks of that width are nearly "
        f"as accurate once the scale of their features is right. On average at m = {width} the DEQ leads the plain one by "
        f"{lead('sgd', 'plain')} under SGD, by {lead('sgd', 'rescaled')} after the plain features are multiplied by one "
        f"factor, by {lead('ridge', 'plain')} with a readout in closed form: under SGD the scale acts as a learning rate.",
        f"What tells the networks apart, at m = {width}: the kernel of the matched network is {gap['matched']} from the DEQ's, "
        f"{also[0]}where two draws of the DEQ are {gap['deq_again']} apart; the plain network's is {gap['plain']} away, "
        f"{gap['rescaled']} rescaled. Same answers as the DEQ: {same['matched']} matched, {also[1]}"
        f"{same['deq_again']} a second draw, {same['plain']} plain, {same['rescaled']} rescaled. At infinite width, without "
        "draws, the claims say it exactly.",
    ]


def _by_row(records: Sequence[Record], how: str, network: str) -> str:
    """Range of the DEQ's lead over the rows of the table: in the average, rows may cancel each other."""
    rows = {(record.config["data"], record.config["activation"]) for record in records}
    own = [where(records, kind="width", data=data, activation=activation) for data, activation in rows]
    leads = [next(iter(_ahead(row, how, "deq", network).values())).value for row in own]
    return f"{signed(min(leads), 4)} to {signed(max(leads), 4)}"
