"""Words of records as one clean line. Records come from disks: their strings may hold anything."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

_LONGEST = 2000
_FEW, _SOME = 3, 8
# They turn the direction of what follows, and so can make a text read as another.
_TURNING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C])
_SPELT = {None: "none", True: "yes", False: "no"}


def plain(text: Any, longest: int = _LONGEST) -> str:
    """On one line, without control characters, halves of characters and turns of direction; cut where it never ends."""
    kept = (_seen(letter) for letter in str(text)[: 4 * longest].translate(_TURNING))
    line = " ".join("".join(kept).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _seen(letter: str) -> str:
    kind = unicodedata.category(letter)
    return " " if kind in ("Cc", "Zl", "Zp") else "\N{REPLACEMENT CHARACTER}" if kind == "Cs" else letter


def is_number(value: Any) -> bool:
    """A finite one; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def spelt(value: Any) -> str:
    """A setting as a reader writes it; a list's items stand between slashes, as on the command line."""
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
    """Each once, in the order of their first appearance."""
    distinct = list(dict.fromkeys(words))
    if len(distinct) <= _SOME:
        return ", ".join(distinct)
    return f"{', '.join(distinct[:_FEW])} … ({len(distinct)} values)"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 20 s, 2 h 5 min, with spaces at which no line breaks."""
    if seconds < 59.5:
        return f"{seconds:.1f}\N{NO-BREAK SPACE}s" if seconds < 9.95 else f"{seconds:.0f}\N{NO-BREAK SPACE}s"
    # Past ten minutes nobody counts seconds.
    whole = round(seconds) if seconds < 599.5 else 60 * round(seconds / 60)
    parts = zip((whole // 3600, whole // 60 % 60, whole % 60), ("h", "min", "s"), strict=True)
    return "\N{NO-BREAK SPACE}".join(f"{count}\N{NO-BREAK SPACE}{unit}" for count, unit in parts if count)
