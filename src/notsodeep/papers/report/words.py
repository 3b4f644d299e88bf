"""Text of a report: strings of records as one clean line (they may hold anything), numbers as words, and the papers."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_LONGEST = 2000
_FEW, _SOME = 3, 8
# They reverse the direction of the text that follows, and so can make it read as another.
_TURNING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C])
_SPELT = {None: "none", True: "yes", False: "no"}


def plain(text: Any, longest: int = _LONGEST) -> str:
    """The text on one line of at most `longest` characters, without control characters, surrogates and changes of direction."""
    kept = (_seen(letter) for letter in str(text)[: 4 * longest].translate(_TURNING))
    line = " ".join("".join(kept).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _seen(letter: str) -> str:
    kind = unicodedata.category(letter)
    return " " if kind in ("Cc", "Zl", "Zp") else "\N{REPLACEMENT CHARACTER}" if kind == "Cs" else letter


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; bool does not count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def spelt(value: Any) -> str:
    """A setting as a reader writes it; a list's items between slashes, as on the command line."""
    if isinstance(value, list | tuple):
        return plain("/".join(map(spelt, value)), 80)
    if value is None or isinstance(value, bool):
        return _SPELT[value]
    return f"{value:g}" if isinstance(value, float) else plain(value, 80)


def collapsed(values: Sequence[Any]) -> str:
    """Few values one by one, many numbers as "200 … 3200 (5 values)", many words as "a, b, c … (12 values)"."""
    if values and all(map(is_number, values)):
        numbers = [spelt(value) for value in sorted(set(values))]
        if len(numbers) <= _FEW:
            return ", ".join(numbers)
        return f"{numbers[0]} … {numbers[-1]} ({len(numbers)} values)"
    return listed(map(spelt, values))


def listed(words: Iterable[str]) -> str:
    """The distinct words in the order of their first appearance, cut after a few."""
    distinct = list(dict.fromkeys(words))
    if len(distinct) <= _SOME:
        return ", ".join(distinct)
    return f"{', '.join(distinct[:_FEW])} … ({len(distinct)} values)"


def counted(count: int, noun: str) -> str:
    """ "1 seed", "3 seeds"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 20 s, 2 h 5 min, with no-break spaces."""
    if seconds < 59.5:
        return f"{seconds:.1f}\N{NO-BREAK SPACE}s" if seconds < 9.95 else f"{seconds:.0f}\N{NO-BREAK SPACE}s"
    # Past ten minutes in whole minutes.
    whole = round(seconds) if seconds < 599.5 else 60 * round(seconds / 60)
    parts = zip((whole // 3600, whole // 60 % 60, whole % 60), ("h", "min", "s"), strict=True)
    return "\N{NO-BREAK SPACE}".join(f"{count}\N{NO-BREAK SPACE}{unit}" for count, unit in parts if count)


@dataclass(frozen=True)
class Paper:
    """A paper as a part of the report; {deq} in `shows` is spelt out where it comes first."""

    command: str
    anchor: str
    heading: str
    shows: str


PAPERS = (
    Paper(
        "reproduce",
        "equivalence",
        "Equivalence (Ling et al. 2024)",
        "Ling et al. (ICML 2024) show that a wide {deq} has nearly the same kernels as an explicit network of one or two "
        "hidden layers with a designed activation.",
    ),
    Paper(
        "separate",
        "separation",
        "Separation (Wu et al. 2024)",
        "Wu et al. (NeurIPS 2024) show where a {deq} is worth its cost: functions that it expresses with fewer units or "
        "smaller weights than a feed-forward network, and unseen inputs on which it errs less.",
    ),
)


def title(papers: Sequence[Paper]) -> str:
    return f"Implicit against explicit networks: the {'papers’' if len(papers) > 1 else 'paper’s'} claims, computed anew"


def about(papers: Sequence[Paper]) -> str:
    """The first paragraph: the papers' results, and how to read the report."""
    names = ("deep equilibrium model (DEQ)", *("DEQ",) * len(papers))
    shown = " ".join(paper.shows.format(deq=name) for paper, name in zip(papers, names, strict=False))
    return (
        f"{shown} Here each number of theirs stands beside the same number computed by notsodeep, with its spread, and a "
        "verdict. “Sharper” means: found, and better than they say by more than the spread. Where the paper has no number "
        "(“—”), the claim is ours, and the verdict says whether it holds."
    )


def commands() -> str:
    """ "`notsodeep reproduce` or `notsodeep separate`"."""
    return " or ".join(f"`notsodeep {paper.command}`" for paper in PAPERS)
