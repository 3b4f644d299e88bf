"""The certificate of a compiled network: measurements against its DEQ."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from notsodeep.data.preprocessing import Preprocessing
from notsodeep.matching.solve import Comparison


@dataclass(frozen=True)
class Score:
    """One score of the DEQ and of the explicit network on held-out samples."""

    name: str
    deq: float
    explicit: float


@dataclass(frozen=True)
class Certificate:
    """Fidelity and cost of a compiled network, measured against its DEQ.

    `kernel_gap` is about random weights; for a trained DEQ, `output_error` and `agreement` on held-out samples count.
    """

    kernel_gap: float
    """‖G* − G‖/‖G*‖ of the exact infinite-width kernels: the conjugate ones, unless only the tangent one was matched"""
    kernel_samples: int
    """samples that the kernels were measured on"""
    samples: int
    """samples given"""
    scalars: tuple[Comparison, ...]
    """scalars that decide the kernel, of both networks"""
    evaluations: int
    """evaluations of the DEQ's map per batch"""
    deq_flops: int
    """FLOPs of the DEQ per sample"""
    explicit_flops: int
    """FLOPs of the explicit network per sample"""
    deq_seconds: float
    """time of the DEQ for a batch"""
    explicit_seconds: float
    """time of the explicit network for a batch"""
    batch: int
    """samples of a timed batch"""
    match: str = "conjugate"
    """the kernel that was matched, "conjugate", "tangent" or "both\""""
    tangent_gap: float | None = None
    """as `kernel_gap`, of the tangent kernels, where both kernels were matched"""
    gains: tuple[float, ...] = ()
    """of the explicit network's layers and its readout: how fast they train"""
    trained: bool = False
    """whether the DEQ's hidden weights were trained"""
    distilled_epochs: int = 0
    """epochs of distillation"""
    output_error: float | None = None
    """root mean square error of the outputs, relative to their spread"""
    agreement: float | None = None
    """share of samples with the same answer"""
    held_out: int = 0
    """samples held out"""
    preprocessing: Preprocessing | None = None
    """what leads from raw rows to the inputs of both networks, and from their outputs to answers, where it is known"""
    scores: tuple[Score, ...] = ()
    """scores of both networks on the given y"""
    notes: tuple[str, ...] = ()
    """remarks for the reader"""

    @property
    def expected_speedup(self) -> float:
        """Ratio of the FLOPs."""
        return self.deq_flops / self.explicit_flops

    @property
    def measured_speedup(self) -> float:
        """Ratio of the times."""
        return self.deq_seconds / self.explicit_seconds

    def summary(self) -> str:
        """One table of all measurements, as text."""
        of = f"{self.kernel_samples}" + (f" of {self.samples}" if self.kernel_samples != self.samples else "")
        table = Table("", "DEQ", "explicit", "kept", box=box.SIMPLE_HEAD)
        for column in table.columns[1:]:
            column.justify = "right"
        kernel = "tangent" if self.match == "tangent" else "conjugate"
        table.add_row(f"exact {kernel} kernel, {of} samples", "", "", f"gap {self.kernel_gap:.1e}")
        for c in self.scalars:
            table.add_row(f"  {c.name}", f"{c.target:.6f}", f"{c.reached:.6f}", f"gap {c.gap:.1e}")
        if self.tangent_gap is not None:
            table.add_row(f"exact tangent kernel, {of} samples", "", "", f"gap {self.tangent_gap:.1e}")
        if any(gain != 1.0 for gain in self.gains):
            table.add_row("gains in training", "", ", ".join(f"{gain:.4g}" for gain in self.gains), "")
        if self.output_error is not None:
            table.add_row(f"outputs, {self.held_out} held-out samples", "", "", f"error {self.output_error:.1%}")
        if self.agreement is not None:
            table.add_row("  same answer", "", "", f"{self.agreement:.1%}")
        for score in self.scores:
            change = f"{score.explicit - score.deq:+.4f}"
            table.add_row(score.name, f"{score.deq:.4f}", f"{score.explicit:.4f}", change)
        table.add_row("evaluations of the map", f"{self.evaluations}", "0", "")
        flops = [f"{count / 1e6:.3g}" for count in (self.deq_flops, self.explicit_flops)]
        table.add_row("MFLOP per sample", *flops, f"{self.expected_speedup:.1f}× fewer")
        times = [f"{1e3 * seconds:.3g}" for seconds in (self.deq_seconds, self.explicit_seconds)]
        table.add_row(f"ms for {self.batch} samples", *times, f"{self.measured_speedup:.1f}× faster")
        stream = io.StringIO()
        console = Console(file=stream, width=110, highlight=False, color_system=None, legacy_windows=False)
        console.print(table)
        if self.preprocessing is not None:
            console.print(f"Files take {self.preprocessing}.", soft_wrap=True)
        for note in self.notes:
            console.print(note, soft_wrap=True)
        return stream.getvalue().strip("\n") + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text, for JSON."""
        speedups = {"expected_speedup": self.expected_speedup, "measured_speedup": self.measured_speedup}
        known = {"preprocessing": None if self.preprocessing is None else self.preprocessing.to_record()}
        return dataclasses.asdict(self) | known | speedups
