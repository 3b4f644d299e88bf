"""Claims of the papers, and the verdict whether ours agree."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

_SLACK = 0.1  # of a bound's size: within it, ours may lie above where its spread reaches back


class Verdict(StrEnum):
    """`sharper`: found, and better than the paper says by more than the spread."""

    reproduced = "reproduced"
    not_reproduced = "not reproduced"
    sharper = "sharper"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim: the paper's number and ours, each as text; `paper` is "—" where the claim is ours."""

    id: str
    claim: str
    paper: str = "—"
    ours: str
    spread: str
    verdict: Verdict
    command: str = ""
    """The command that computes it again; `Experiment.claims` sets it."""

    @property
    def experiment(self) -> str:
        return self.id.partition(".")[0]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def at_most(ours: float, bound: float, spread: float) -> Verdict:
    """Verdict on "it is at most `bound`".

    Found where ours lies below, or above by no more than its spread and a tenth of the bound; sharper where ours lies below
    by more than its spread and half of the bound.
    """
    return _judged(ours, bound, spread, min(spread, _SLACK * abs(bound)))


def about(ours: float, theirs: float, spread: float) -> Verdict:
    """Verdict on a distance "≈ theirs", a Monte Carlo average in two digits: up to a quarter more counts as found."""
    return _judged(ours, theirs, spread, 0.25 * theirs)


def _judged(ours: float, bound: float, spread: float, slack: float) -> Verdict:
    if not ours <= bound + slack:
        return Verdict.not_reproduced
    return Verdict.sharper if bound - ours > max(spread, 0.5 * abs(bound)) else Verdict.reproduced


def holds(found: bool) -> Verdict:
    return Verdict.reproduced if found else Verdict.not_reproduced
