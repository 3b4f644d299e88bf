"""Frozen dataclasses as plain JSON records, and back; a file can only ask for classes that the caller names."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints

from notsodeep.errors import BadInput

Kinds = Mapping[str, Callable[..., Any]]

# Of nested values and of lists. Ours are three deep and some sixty long; a hostile file has no such bounds.
_DEEPEST, _LONGEST = 12, 256


def to_record(value: Any, kinds: Kinds) -> Any:
    """`value` with each dataclass of `kinds` as {"kind": name, field: …}; fields that hold functions are left out."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Real):  # numpy's
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, tuple | list):
        _check_length(value)
        return [to_record(item, kinds) for item in value]
    name = type(value).__name__
    if not is_dataclass(value) or kinds.get(name) is not type(value):
        raise BadInput(f"{name} is a class of your own, which cannot be written; known are {', '.join(sorted(kinds))}.")
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    return {"kind": name} | {
        key: to_record(part, kinds) for key, part in parts.items() if is_dataclass(part) or not callable(part)
    }


def from_record(record: Any, kinds: Kinds, depth: int = 0) -> Any:
    """The value of a record of `to_record`: numbers and text as they are, lists as tuples, records by kinds[kind](**fields)."""
    if depth > _DEEPEST:
        raise BadInput(f"A record is nested more than {_DEEPEST} deep; networks are not.")
    if isinstance(record, list):
        _check_length(record)
        return tuple(from_record(item, kinds, depth + 1) for item in record)
    if not isinstance(record, dict):
        return record
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise BadInput(f"There is no kind {kind!r}; known are {', '.join(sorted(kinds))}.")
    parts = {key: from_record(part, kinds, depth + 1) for key, part in record.items() if key != "kind"}
    return made(kinds[kind], kind, parts)


def made(make: Callable[..., Any], name: str, parts: dict[str, Any]) -> Any:
    """make(**parts); raises BadInput if a part does not have its declared type."""
    hints = get_type_hints(make if is_dataclass(make) else getattr(make, "__init__", make))
    for key, part in parts.items():
        if key in hints and not _fits(part, hints[key]):
            raise BadInput(f"{name} cannot be made with {key} = {part!r:.60}.")
    try:
        return make(**parts)
    except BadInput:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise BadInput(f"{name} cannot be made from {', '.join(parts) or 'nothing'}: {error}.") from error


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` has the declared type, for types that a record can hold."""
    origin = get_origin(hint)
    if hint is Any or hint is None or origin is Callable or isinstance(hint, str):
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if hint is float:
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53
        return whole or (isinstance(value, float) and math.isfinite(value))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62
    wanted = origin or hint
    return isinstance(value, wanted) if isinstance(wanted, type) else True


def _check_length(values: Any) -> None:
    if len(values) > _LONGEST:
        raise BadInput(f"A record holds {len(values)} values in a row; files hold up to {_LONGEST} coefficients or layers.")
