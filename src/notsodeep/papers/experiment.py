"""What an experiment is: a value that names its settings, its computations and its claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from notsodeep.errors import BadInput
from notsodeep.papers.claims import Claim
from notsodeep.papers.records import Record

_LARGEST = 1_000_000

Values = dict[str, Any]
Records = Mapping[str, list[Record]]
"""By the experiment's name; an experiment without records has an empty list."""


@dataclass(frozen=True)
class Experiment:
    """`name` L1, what it shows in a line, and the settings of its two sizes, each a frozen `Config`.

    `units(config)` are the computations, each a frozen value whose fields are a record's config; `run(unit, device)` gives its
    numbers; `cost(unit)` roughly its seconds on two cores, which remaining times start from; `claims(records, command)` what
    follows from them (and from other experiments' records). `notes` are the sentences of the report that no number says.
    """

    name: str
    title: str
    shows: str
    quick: Any
    full: Any
    units: Callable[[Any], Sequence[Any]]
    run: Callable[[Any, torch.device], Values]
    cost: Callable[[Any], float]
    claims: Callable[[Records, str], list[Claim]]
    notes: Callable[[Records], list[str]]
    revision: int = 1
    """One more whenever `run` gives other numbers, or other names: records of before are then computed anew."""
    command: str = "reproduce"
    """Of `notsodeep`: the one that runs it."""

    def config(self, full: bool, changes: dict[str, str] | None = None) -> Any:
        """The settings of a size, with some of them changed by text: {"seeds": "3", "activations": "relu/tanh"}."""
        base = self.full if full else self.quick
        known = {field.name: getattr(base, field.name) for field in fields(base)}
        parsed = {}
        for name, text in (changes or {}).items():
            if name not in known:
                raise BadInput(f"{self.name} has no setting {name!r}; it has {', '.join(known)}.")
            zero_means_something = 0 in (getattr(self.quick, name), getattr(self.full, name))
            parsed[name] = _parsed(f"{self.name}'s {name}", text, known[name], zero_means_something)
        return replace(base, **parsed)

    def record_config(self, unit: Any) -> dict[str, Any]:
        """What a record of this unit has as its config."""
        return settings(unit) | ({"revision": self.revision} if self.revision > 1 else {})


def settings(unit: Any) -> dict[str, Any]:
    """A unit's fields, as a record's config holds them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(unit).items()}


def _parsed(what: str, text: str, like: Any, zero: bool) -> Any:
    """`text` as a value of the kind of `like`; a tuple's items, each once, stand between slashes."""
    if isinstance(like, tuple):
        return tuple(dict.fromkeys(_parsed(what, item, like[0], zero) for item in text.split("/")))
    if isinstance(like, int | float) and not isinstance(like, bool):
        return _number(what, text, type(like), zero)
    if not text:
        raise BadInput(f"{what} is empty.")
    return text


def _number(what: str, text: str, kind: type[int] | type[float], zero: bool) -> int | float:
    """A number that a size, a variance or a count can be."""
    try:
        value = kind(text)
    except ValueError:
        raise BadInput(f"{what} must be a {'whole ' * (kind is int)}number, got {text!r}.") from None
    if not (0 if zero else math.ulp(0.0)) <= value <= _LARGEST:
        raise BadInput(f"{what} must be {'at least 0' if zero else 'above 0'} and at most {_LARGEST:,}, got {text!r}.")
    return value
