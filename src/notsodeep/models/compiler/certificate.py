"""The certificate of a compiled network: measurements against its DEQ, the outcome first."""

from __future__ import annotations

import dataclasses
import io
import math
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from notsodeep.data.preprocessing import Preprocessing
from notsodeep.matching.result import Design
from notsodeep.matching.solve import Comparison
from notsodeep.models.compiler.frontier import Frontier

_BATCH = 1000


@dataclass(frozen=True)
class Score:
    """One score of the DEQ and of the network on held-out samples."""

    name: str
    deq: float
    network: float


@dataclass(frozen=True)
class Kernels:
    """The exact infinite-width kernels of a DEQ with random weights and of its explicit twin."""

    gap: float
    """‖G* − G‖/‖G*‖: of the conjugate kernels, unless only the tangent one was matched"""
    samples: int
    """samples that they were measured on"""
    scalars: tuple[Comparison, ...]
    """scalars that decide the kernel, of both networks"""
    nets: tuple[str, str]
    """the DEQ and the twin"""
    match: str
    """the kernel that was matched, "conjugate", "tangent" or "both\""""
    tangent_gap: float | None
    """as `gap`, of the tangent kernels, where both kernels were matched"""
    gains: tuple[float, ...]
    """of the twin's layers and its readout: how fast they train"""

    @classmethod
    def of(cls, found: Design) -> Kernels:
        """Those of a design that was measured."""
        assert found.measured is not None
        tangent = None if found.measured_tangent is None else found.measured_tangent.gap
        measured = found.measured
        nets = f"{found.net}", f"{found.explicit}"
        return cls(measured.gap, measured.samples, found.comparisons, nets, found.match, tangent, found.explicit.gains)

    def table(self, samples: int) -> Table:
        """Name, DEQ, twin and gap of each; `samples` are those given."""
        table = Table("", "DEQ", "explicit twin", "gap", box=box.SIMPLE_HEAD)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self._rows(samples):
            table.add_row(*row)
        return table

    def _rows(self, samples: int) -> list[tuple[str, str, str, str]]:
        of = f"{self.samples}" + (f" of {samples}" if self.samples != samples else "")
        first = "tangent" if self.match == "tangent" else "conjugate"
        rows = [(f"exact {first} kernel, {of} samples", "", "", f"{self.gap:.1e}")]
        rows += [(f"  {c.name}", f"{c.target:.6f}", f"{c.reached:.6f}", f"{c.gap:.1e}") for c in self.scalars]
        if self.tangent_gap is not None:
            rows.append((f"exact tangent kernel, {of} samples", "", "", f"{self.tangent_gap:.1e}"))
        if any(gain != 1.0 for gain in self.gains):
            rows.append(("gains in training", "", ", ".join(f"{gain:.4g}" for gain in self.gains), ""))
        return rows


@dataclass(frozen=True)
class Certificate:
    """Fidelity and cost of a compiled network, measured against its DEQ.

    `output_error`, `agreement` and `scores` are about these two networks; `kernels` is about wide ones with random weights.
    """

    network: str
    """the way that the network answers"""
    samples: int
    """samples given"""
    held_out: int
    """samples that both were measured on"""
    evaluations: int
    """evaluations of the DEQ's map per batch"""
    deq_flops: float
    """FLOPs of the DEQ per sample"""
    network_flops: float
    """FLOPs of the network per sample"""
    deq_seconds: float
    """time of the DEQ for a batch"""
    network_seconds: float
    """time of the network for a batch"""
    batch: int
    """samples of a timed batch"""
    unseen: bool = False
    """whether the samples measured on are others than those given"""
    output_error: float | None = None
    """root mean square error of the outputs, relative to their spread"""
    agreement: float | None = None
    """share of samples with the same answer"""
    scores: tuple[Score, ...] = ()
    """scores of both networks on y"""
    trained: bool = True
    """whether the DEQ's hidden weights were trained"""
    kernels: Kernels | None = None
    """of a DEQ of this package and its explicit twin"""
    preprocessing: Preprocessing | None = None
    """what leads from raw rows to the inputs of both networks, and from their outputs to answers, where it is known"""
    notes: tuple[str, ...] = ()
    """remarks for the reader"""

    @classmethod
    def of(cls, frontier: Frontier, samples: int, evaluations: int, **known: Any) -> Certificate:
        """The certificate of the cheapest way that keeps enough."""
        deq, way = frontier.ways[0], frontier.faithful
        scores: tuple[Score, ...] = ()
        if frontier.measure is not None and deq.score is not None and way.score is not None:
            scores = (Score(frontier.measure, deq.score, way.score),)
        return cls(
            network=way.name,
            samples=samples,
            held_out=frontier.samples,
            evaluations=evaluations,
            deq_flops=1e6 * deq.mflop,
            network_flops=1e6 * way.mflop,
            deq_seconds=1e-3 * deq.milliseconds,
            network_seconds=1e-3 * way.milliseconds,
            batch=_BATCH,
            unseen=frontier.unseen,
            output_error=way.output_error,
            agreement=way.agreement,
            scores=scores,
            **known,
        )

    @property
    def expected_speedup(self) -> float:
        """Ratio of the FLOPs; NaN where none could be counted."""
        return self.deq_flops / self.network_flops if self.network_flops > 0.0 else math.nan

    @property
    def measured_speedup(self) -> float:
        """Ratio of the times."""
        return self.deq_seconds / self.network_seconds

    def summary(self) -> str:
        """One table of all measurements, the outcome first, and what they are about, as text."""
        table = Table("", "DEQ", self.network, "kept", box=box.SIMPLE_HEAD)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self._outcome():
            table.add_row(*row)
        table.add_section()
        table.add_row("evaluations of the map", f"{self.evaluations}", "", "")
        flops = [f"{count / 1e6:.3g}" for count in (self.deq_flops, self.network_flops)]
        table.add_row("MFLOP per sample", *flops, f"{self.expected_speedup:.1f}× fewer")
        times = [f"{1e3 * seconds:.3g}" for seconds in (self.deq_seconds, self.network_seconds)]
        table.add_row(f"ms for {self.batch} samples", *times, f"{self.measured_speedup:.1f}× faster")
        stream = io.StringIO()
        console = Console(file=stream, width=110, highlight=False, color_system=None, legacy_windows=False)
        console.print(table)
        if self.kernels is not None:
            console.print(self.kernels.table(self.samples))
            console.print("{}  →  {}".format(*self.kernels.nets), soft_wrap=True)
        for line in (*self._about(), *self.notes):
            console.print(line, soft_wrap=True)
        return "\n".join(map(str.rstrip, stream.getvalue().splitlines())).strip("\n") + "\n"

    def _outcome(self) -> list[tuple[str, str, str, str]]:
        what = f"{self.held_out} {'unseen' if self.unseen else 'held-out'} samples"
        rows = []
        for score in self.scores:
            rows.append(
                (f"{score.name}, {what}", f"{score.deq:.4f}", f"{score.network:.4f}", f"{score.network - score.deq:+.4f}")
            )
        if self.agreement is not None:
            rows.append((f"same answer, {what}", "", "", f"{self.agreement:.1%}"))
        if self.output_error is not None:
            rows.append((f"outputs, {what}", "", "", f"error {self.output_error:.1%}"))
        return rows

    def _about(self) -> list[str]:
        """What the figures speak of."""
        lines = []
        if self.held_out and not self.unseen and self.agreement is not None and not self.scores:
            lines.append("If the DEQ was trained on the held-out samples too, they flatter it: test= takes others.")
        if self.kernels is not None and self.trained:
            lines.append("The kernels and scalars speak for random weights, of the DEQ and of its explicit twin.")
        if self.preprocessing is not None:
            lines.append(f"Files take {self.preprocessing}.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text, for JSON."""
        speedups = {"expected_speedup": self.expected_speedup, "measured_speedup": self.measured_speedup}
        known = {"preprocessing": None if self.preprocessing is None else self.preprocessing.to_record()}
        return dataclasses.asdict(self) | known | speedups
