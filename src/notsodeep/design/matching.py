"""Which scalars two networks must share to have the same kernel, and how far they are from it.

Ref: docs/theory.md, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from notsodeep.arguments import shown
from notsodeep.errors import BadInput
from notsodeep.theory.scalars import Scalars

MATCHES: dict[str, tuple[str, ...]] = {
    "conjugate": ("gamma", "alpha1", "alpha2", "alpha3"),
    "tangent": ("kappa", "beta1", "beta2", "beta3"),
}


def matched_names(match: str) -> tuple[str, ...]:
    """The four scalars that decide the kernel `match`."""
    if not isinstance(match, str) or match not in MATCHES:
        raise BadInput(f"There is no kernel {shown(match)} to match; choose {' or '.join(MATCHES)}.")
    return MATCHES[match]


@dataclass(frozen=True)
class Comparison:
    """One scalar of the DEQ beside that of the explicit network."""

    name: str
    target: float
    reached: float
    scale: float

    @property
    def gap(self) -> float:
        """|reached − target|/scale."""
        return abs(self.reached - self.target) / self.scale


def compare_scalars(target: Scalars, reached: Scalars, names: tuple[str, ...]) -> tuple[Comparison, ...]:
    """γ (or κ) relative to itself; each α (or β) relative to the largest of the three, since a tiny one (α2 = 0 for an odd
    activation) has no scale of its own."""
    wanted = {name: float(getattr(target, name)) for name in names}
    largest = max(abs(value) for name, value in wanted.items() if name[-1].isdigit())
    return tuple(
        Comparison(name, value, float(getattr(reached, name)), largest if name[-1].isdigit() else abs(value))
        for name, value in wanted.items()
    )
