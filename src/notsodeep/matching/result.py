"""A design: the explicit network, what it was matched to, and the measured proof."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from notsodeep.matching.solve import Comparison
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.scalars import Scalars
from notsodeep.tolerances import MATCH_RTOL


@dataclass(frozen=True, eq=False)
class Measured:
    """Relative gaps ‖G* − Σ‖/‖G*‖ of exact kernels on the data, for the design and for the same depth undesigned."""

    samples: int
    """How many samples were used"""
    of_samples: int
    """of how many"""
    gap: float
    """of the design"""
    plain: Explicit
    """The activation of the DEQ in every layer, centred"""
    plain_gap: float
    """of `plain`"""
    plain_scaled_gap: float
    """of `plain` times its best factor"""
    plain_factor: float
    """That factor"""
    kernel: Tensor = field(repr=False)
    """The exact kernel of the DEQ, (samples, samples)"""
    explicit_kernel: Tensor = field(repr=False)
    """That of the design"""
    plain_kernel: Tensor = field(repr=False)
    """That of `plain`"""


@dataclass(frozen=True)
class Design:
    """An explicit network equivalent to a DEQ."""

    net: Implicit
    """The DEQ"""
    explicit: Explicit
    """The designed network"""
    family: str
    """Its family"""
    match: str
    """The kernel that agrees, "conjugate" or "tangent\""""
    tau0: float
    """The root mean square norm of the data"""
    target: Scalars
    """The scalars of the DEQ"""
    scalars: Scalars
    """Those of `explicit`"""
    comparisons: tuple[Comparison, ...]
    """The four scalars that decide the kernel, compared"""
    residual: float
    """The largest relative gap of one"""
    measured: Measured | None = None
    """The gaps of the exact kernels on the data, where there was any"""
    note: str = ""
    """A caveat, as a sentence"""

    def summary(self) -> str:
        """The table of scalars (DEQ, explicit, gap) and, given data, the measured gaps, as text for `print`."""
        stream = io.StringIO()
        console = Console(file=stream, width=110, highlight=False, color_system=None, legacy_windows=False)
        console.print(f"{self.net}  ≈  {self.explicit}", soft_wrap=True)
        how = "matched" if self.residual <= MATCH_RTOL else f"near, residual {self.residual:.1e}"
        console.print(
            f"family {self.family}, {self.explicit.depth} hidden layer{'s' * (self.explicit.depth > 1)}, {how}: {self.match} "
            f"kernel at τ0 = {self.tau0:.6g}",
            soft_wrap=True,
        )
        console.print(self._scalar_table())
        if self.measured is not None:
            console.print(self._measured_table(self.measured))
        if self.note:
            console.print(self.note, soft_wrap=True)
        return stream.getvalue().rstrip() + "\n"

    def _scalar_table(self) -> Table:
        table = Table("scalar", "DEQ", "explicit", "gap", box=box.SIMPLE_HEAD)
        for column in table.columns[1:]:
            column.justify = "right"
        for c in self.comparisons:
            table.add_row(c.name, f"{c.target:.8f}", f"{c.reached:.8f}", f"{c.gap:.1e}")
        return table

    def _measured_table(self, m: Measured) -> Table:
        of = f"{m.samples}" if m.samples == m.of_samples else f"{m.samples} of {m.of_samples}"
        letter = "G" if self.match == "conjugate" else "Θ"
        table = Table("network", f"‖{letter}* − {letter}‖/‖{letter}*‖ on {of} samples", box=box.SIMPLE_HEAD)
        table.columns[1].justify = "right"
        table.add_row("designed", f"{m.gap:.2e}")
        table.add_row(f"undesigned: {' → '.join(map(str, m.plain.layers))}", f"{m.plain_gap:.2e}")
        table.add_row(f"undesigned, times its best factor {m.plain_factor:.4g}", f"{m.plain_scaled_gap:.2e}")
        return table

    def to_dict(self) -> dict[str, Any]:
        """The design as plain numbers and text, for JSON."""
        measured = self.measured and {
            "samples": self.measured.samples,
            "of_samples": self.measured.of_samples,
            "gap": self.measured.gap,
            "undesigned_gap": self.measured.plain_gap,
            "undesigned_scaled_gap": self.measured.plain_scaled_gap,
            "undesigned_factor": self.measured.plain_factor,
        }
        return {
            "network": str(self.net),
            "activation": str(self.net.phi),
            "var_a": self.net.var_a,
            "var_b": self.net.var_b,
            "family": self.family,
            "match": self.match,
            "tau0": self.tau0,
            "layers": [repr(layer) for layer in self.explicit.layers],
            "explicit": str(self.explicit),
            "scalars": {c.name: {"deq": c.target, "explicit": c.reached, "gap": c.gap} for c in self.comparisons},
            "residual": self.residual,
            "measured": measured,
            "note": self.note,
        }
