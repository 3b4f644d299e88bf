"""Frozen values as plain JSON records, and back. Only what the caller names is ever made: a file can ask for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from notsodeep.errors import BadInput

_DEEPEST = 12  # a value inside a value …; ours go three deep, a hostile file would go on


def to_record(value: Any, kinds: Mapping[str, Callable[..., Any]]) -> Any:
    """`value` with each dataclass of `kinds` as {"kind": name, field: …}; fields that are bare functions are left out."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_record(item, kinds) for item in value]
    name = type(value).__name__
    if not is_dataclass(value) or name not in kinds:
        raise BadInput(
            f"{value!r} is a {name}, which cannot be written to a file; these can: {', '.join(sorted(kinds))}."
        )
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    return {"kind": name} | {
        key: to_record(part, kinds) for key, part in parts.items() if is_dataclass(part) or not callable(part)
    }


def from_record(record: Any, kinds: Mapping[str, Callable[..., Any]], depth: int = 0) -> Any:
    """The value that `to_record` wrote: numbers and text as they are, lists as tuples, records by kinds[kind](**fields)."""
    if depth > _DEEPEST:
        raise BadInput(f"A record is nested more than {_DEEPEST} deep; no network is.")
    if isinstance(record, list):
        return tuple(from_record(item, kinds, depth + 1) for item in record)
    if not isinstance(record, dict):
        return record
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise BadInput(f"There is no kind {kind!r}; known are {', '.join(sorted(kinds))}.")
    parts = {key: from_record(part, kinds, depth + 1) for key, part in record.items() if key != "kind"}
    try:
        return kinds[kind](**parts)
    except (TypeError, AttributeError, OverflowError) as error:
        raise BadInput(f"{kind} cannot be made from {', '.join(parts) or 'nothing'}: {error}.") from error
