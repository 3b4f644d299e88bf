"""What the papers say, and whether it was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

_SLACK = 0.1  # of a bound's size: within it, ours may lie above where its spread reaches back


class Verdict(StrEnum):
    """`sharper`: found, and by more than the spread better than they say."""

    reproduced = "reproduced"
    not_reproduced = "not reproduced"
    sharper = "sharper"


@dataclass(frozen=True)
class Claim:
    """One claim: their number and ours, each as text; `paper` is "—" where a claim of ours stands beside theirs."""

    id: str
    claim: str
    paper: str
    ours: str
    spread: str
    verdict: Verdict
    command: str

    @property
    def experiment(self) -> str:
        return self.id.partition(".")[0]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def at_most(ours: float, bound: float, spread: float) -> Verdict:
    """Of a claim "it is at most `bound`": found where ours lies below, or above by no more than its spread, which is not to
    excuse more than a tenth of the bound; sharper where it lies below by more than its spread and half of the bound."""
    return _judged(ours, bound, spread, min(spread, _SLACK * abs(bound)))


def about(ours: float, theirs: float, spread: float) -> Verdict:
    """Of a distance that they give as "≈ theirs", a Monte Carlo average in two digits: up to a quarter more counts as found."""
    return _judged(ours, theirs, spread, 0.25 * theirs)


def _judged(ours: float, bound: float, spread: float, slack: float) -> Verdict:
    if not ours <= bound + slack:
        return Verdict.not_reproduced
    return Verdict.sharper if bound - ours > max(spread, 0.5 * abs(bound)) else Verdict.reproduced


def holds(found: bool) -> Verdict:
    return Verdict.reproduced if found else Verdict.not_reproduced
