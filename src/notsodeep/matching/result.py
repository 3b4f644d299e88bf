"""A design: the explicit network, what it was matched to, and the measured proof."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from notsodeep.matching.solve import Comparison
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.scalars import Scalars
from notsodeep.tolerances import MATCH_RTOL

WIDTH = 1024  # at which costs are told
_RIVALS = {"scaled": "DEQ's own activation, scaled", "unrolled": "DEQ cut after 2 steps, scaled"}


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

    def to_dict(self) -> dict[str, float]:
        """The gaps as plain numbers, for JSON."""
        return {
            "samples": self.samples,
            "of_samples": self.of_samples,
            "gap": self.gap,
            "undesigned_gap": self.plain_gap,
            "undesigned_scaled_gap": self.plain_scaled_gap,
            "undesigned_factor": self.plain_factor,
        }


@dataclass(frozen=True)
class Optimum:
    """How near the networks of one hidden layer and a dictionary can be, in relative Frobenius norm on the fitted pairs."""

    error: float
    """‖G* − Σ‖/‖G*‖ of the network found"""
    bound: float
    """No layer of the dictionary's directions above 1e-10 of its power has less, whatever kinds of units it mixes; with
    smaller directions, and weights that cancel, one may"""
    rank: int
    """How many kinds of units the nearest one mixes; the network found has as few as come nearly as close"""


@dataclass(frozen=True)
class Candidate:
    """A network that a design may choose."""

    family: str
    """Its family; "scaled" is the DEQ's own activation times a factor, "unrolled" the DEQ cut after two steps likewise"""
    explicit: Explicit
    """The network"""
    gap: float = math.nan
    """‖G* − Σ‖/‖G*‖ in operator norm on samples that nothing was fitted to; of two kernels the larger, or a quarter of the
    tangent one's"""
    matched: bool = False
    """Whether it has the four scalars that decide the kernel in high dimension"""
    optimum: Optimum | None = None
    """The proof of how near any network of its dictionary can be, for a fit of one layer"""


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
    """The kernel that agrees, "conjugate", "tangent" or "both\""""
    tau0: float
    """The root mean square norm of the data"""
    features: int
    """How many features the samples have"""
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
    measured_tangent: Measured | None = None
    """The gaps of the tangent kernels, where both kernels were matched"""
    candidates: tuple[Candidate, ...] = ()
    """What "auto" chose from, the chosen one first"""
    optimum: Optimum | None = None
    """How near any network of the dictionary can be, where one layer was fitted"""
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
            f"kernel{'s' * (self.match == 'both')} at τ0 = {self.tau0:.6g}",
            soft_wrap=True,
        )
        console.print(self._scalar_table())
        for kernel, measured in self._measurements():
            console.print(self._measured_table(measured, "G" if kernel == "conjugate" else "Θ"))
        if self.candidates:
            console.print(self._candidate_table())
            if lead := self._lead():
                console.print(lead, soft_wrap=True)
        if self.optimum is not None:
            console.print(
                f"One layer, fitted: {self.optimum.error:.2e} off in Frobenius norm on the fitted pairs; no network of its "
                f"dictionary's directions above 1e-10 of the power is nearer than {self.optimum.bound:.2e}.",
                soft_wrap=True,
            )
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

    def _measurements(self) -> list[tuple[str, Measured]]:
        first = "tangent" if self.match == "tangent" else "conjugate"
        found = [(first, self.measured), ("tangent", self.measured_tangent)]
        return [(kernel, measured) for kernel, measured in found if measured is not None]

    def _candidate_table(self) -> Table:
        """The candidates with their depth, what the theorem says of them, their cost and their gap, the chosen one first."""
        where = "a Gaussian sample" if self.measured is None else "the same samples, none of them fitted"
        what = "(CK or ¼ NTK, the larger) " if self.match == "both" else ""
        table = Table("chosen from", "layers", "scalars", "MFLOP", f"gap {what}on {where}", box=box.SIMPLE_HEAD)
        for column in (table.columns[1], *table.columns[3:]):
            column.justify = "right"
        for one in self.candidates:
            name = _RIVALS.get(one.family, one.family)
            depth, cost = one.explicit.depth, 2e-6 * WIDTH * (self.features + (one.explicit.depth - 1) * WIDTH)
            figures = f"{cost:.2f}" if cost >= 0.1 else f"{cost:.2g}"
            table.add_row(name, str(depth), "matched" if one.matched else "", figures, f"{one.gap:.2e}")
        table.caption = f"MFLOP per sample at width {WIDTH}; matched: its kernel is the DEQ's as n and p grow"
        return table

    def _lead(self) -> str:
        """By how much the chosen network is nearer than the simplest rivals among the candidates, as a sentence."""
        chosen, *others = self.candidates
        if chosen.family in _RIVALS:
            return f"No design is nearer than the {_RIVALS[chosen.family]}: it is chosen."
        rivals = {c.family: c.gap for c in reversed(others) if c.family in _RIVALS}  # of each the nearest
        leads = [
            f"{_times(gap / chosen.gap)} times nearer than the {_RIVALS[name]}"
            for name, gap in rivals.items()
            if gap > chosen.gap
        ]
        return f"The chosen network is {', and '.join(leads)}." if leads else ""

    def _measured_table(self, m: Measured, letter: str) -> Table:
        of = f"{m.samples}" if m.samples == m.of_samples else f"{m.samples} of {m.of_samples}"
        table = Table("network", f"‖{letter}* − {letter}‖/‖{letter}*‖ on {of} samples", box=box.SIMPLE_HEAD)
        table.columns[1].justify = "right"
        table.add_row("designed", f"{m.gap:.2e}")
        table.add_row(f"undesigned: {' → '.join(map(str, m.plain.layers))}", f"{m.plain_gap:.2e}")
        table.add_row(f"undesigned, times its best factor {m.plain_factor:.4g}", f"{m.plain_scaled_gap:.2e}")
        return table

    def to_dict(self) -> dict[str, Any]:
        """The design as plain numbers and text, for JSON."""
        chosen_from = [
            {"family": c.family, "explicit": str(c.explicit), "layers": c.explicit.depth, "matched": c.matched, "gap": c.gap}
            for c in self.candidates
        ]
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
            "measured": self.measured and self.measured.to_dict(),
            "measured_tangent": self.measured_tangent and self.measured_tangent.to_dict(),
            "candidates": chosen_from,
            "optimum": None if self.optimum is None else asdict(self.optimum),
            "note": self.note,
        }


def _times(factor: float) -> str:
    """Three figures, without an exponent for large numbers."""
    return f"{factor:.0f}" if factor >= 1000.0 else f"{factor:.3g}"
