"""An experiment: a value that names its computations, its settings in two sizes, and its claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

import torch

from notsodeep.errors import BadInput
from notsodeep.papers.claims import Claim
from notsodeep.papers.records import Record

_LARGEST = 1_000_000

Unit = TypeVar("Unit")
Values = dict[str, Any]
Records = Mapping[str, list[Record]]
"""By the experiment's name; an experiment without records has an empty list."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment of a paper, under its `name` (L1); `shows` says in a line what it is about.

    Settings that a config and its units share are fields of a common base class, and `from_config` copies them.
    """

    name: str
    title: str
    shows: str
    units: Callable[[Any], Sequence[Any]]
    """The computations of a config: frozen values whose fields become the configs of their records, each with its `cost`,
    rough seconds on two cores, from which estimates of the remaining time start."""
    quick: Any
    """The settings of the small size, a frozen `Config`."""
    full: Any
    """The settings of the paper's size."""
    run: Callable[[Any, torch.device], Values]
    """The numbers of a unit."""
    judge: Callable[[Records], list[Claim]]
    """The claims that follow from the records of all experiments; its own are not empty."""
    remark: Callable[[Records], list[str]]
    """Sentences of the report that no number says."""
    revision: int = 1
    """Raised by one whenever `run` gives other numbers or other names: older records are then computed again."""
    command: str = "reproduce"
    """The command of `notsodeep` that runs it."""

    def claims(self, records: Records, command: str) -> list[Claim]:
        """The claims, each with the command line that computes it again; none without records."""
        return [replace(claim, command=command) for claim in self.judge(records)] if records[self.name] else []

    def notes(self, records: Records) -> list[str]:
        """The report's sentences; none without records."""
        return self.remark(records) if records[self.name] else []

    def config(self, full: bool, changes: dict[str, str] | None = None) -> Any:
        """The settings of a size, some of them changed by text: {"seeds": "3", "activations": "relu/tanh"}."""
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
        """The config of a record of this unit."""
        return settings(unit) | ({"revision": self.revision} if self.revision > 1 else {})


def from_config(kind: type[Unit], config: Any, /, **own: Any) -> Unit:
    """A unit with its `own` settings, and those of the config that have the same names."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    shared = {field.name: getattr(config, field.name) for field in fields(config) if field.name in names}
    return kind(**shared | own)


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
    """A number that can be a size, a variance or a count."""
    try:
        value = kind(text)
    except ValueError:
        raise BadInput(f"{what} must be a {'whole ' * (kind is int)}number, got {text!r}.") from None
    if not (0 if zero else math.ulp(0.0)) <= value <= _LARGEST:
        raise BadInput(f"{what} must be {'at least 0' if zero else 'above 0'} and at most {_LARGEST:,}, got {text!r}.")
    return value
