"""What a compiled network keeps of its DEQ, measured."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from notsodeep.matching.solve import Comparison


@dataclass(frozen=True)
class Score:
    """A figure of the DEQ and of the explicit network on held-out samples."""

    name: str
    deq: float
    explicit: float


@dataclass(frozen=True)
class Certificate:
    """What was kept, and what was gained.

    ``kernel_gap`` is ‖G* − G‖/‖G*‖ of the exact infinite-width kernels on ``kernel_samples`` of the ``samples``. It speaks for
    random weights, so for a trained DEQ what counts is ``output_error`` (root mean square, relative to the outputs' spread) and
    ``agreement`` (share of equal answers) on held-out samples. ``scores`` compare both networks on the given y, held out too.
    ``measured_speedup`` is in one run on ``batch`` samples, ``expected_speedup`` the ratio of ``flops`` a sample.
    """

    kernel_gap: float
    kernel_samples: int
    samples: int
    scalars: tuple[Comparison, ...]
    evaluations: int
    deq_flops: int
    explicit_flops: int
    deq_seconds: float
    explicit_seconds: float
    batch: int
    trained: bool
    distilled_epochs: int = 0
    output_error: float | None = None
    agreement: float | None = None
    held_out: int = 0
    scores: tuple[Score, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def expected_speedup(self) -> float:
        return self.deq_flops / self.explicit_flops

    @property
    def measured_speedup(self) -> float:
        return self.deq_seconds / self.explicit_seconds

    def summary(self) -> str:
        """One table: what was kept, what was gained."""
        of = (
            f"{self.kernel_samples}"
            if self.kernel_samples == self.samples
            else f"{self.kernel_samples} of {self.samples}"
        )
        table = Table("", "DEQ", "explicit", "kept", box=box.SIMPLE_HEAD)
        for column in table.columns[1:]:
            column.justify = "right"
        table.add_row(f"exact kernel, {of} samples", "", "", f"gap {self.kernel_gap:.1e}")
        for c in self.scalars:
            table.add_row(f"  {c.name}", f"{c.target:.6f}", f"{c.reached:.6f}", f"gap {c.gap:.1e}")
        if self.output_error is not None:
            table.add_row(f"outputs, {self.held_out} held-out samples", "", "", f"error {self.output_error:.1%}")
        if self.agreement is not None:
            table.add_row("  same answer", "", "", f"{self.agreement:.1%}")
        for score in self.scores:
            change = f"{score.explicit - score.deq:+.4f}"
            table.add_row(score.name, f"{score.deq:.4f}", f"{score.explicit:.4f}", change)
        table.add_row("evaluations of the map", f"{self.evaluations}", "0", "")
        flops = [f"{count / 1e6:.3g}" for count in (self.deq_flops, self.explicit_flops)]
        table.add_row("MFLOP a sample", *flops, f"{self.expected_speedup:.1f}× fewer")
        times = [f"{1e3 * seconds:.3g}" for seconds in (self.deq_seconds, self.explicit_seconds)]
        table.add_row(f"ms for {self.batch} samples", *times, f"{self.measured_speedup:.1f}× faster")
        stream = io.StringIO()
        console = Console(file=stream, width=110, highlight=False, color_system=None, legacy_windows=False)
        console.print(table)
        for note in self.notes:
            console.print(note, soft_wrap=True)
        return stream.getvalue().strip("\n") + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text, for JSON."""
        return {
            **dataclasses.asdict(self),
            "expected_speedup": self.expected_speedup,
            "measured_speedup": self.measured_speedup,
        }
