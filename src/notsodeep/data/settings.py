"""Settings in one line of text: n=800,p=640."""

from __future__ import annotations

from collections.abc import Mapping

from notsodeep.errors import BadInput


def settings(name: str, arguments: str, defaults: Mapping[str, str]) -> dict[str, str]:
    """`defaults` with what `arguments` says; `BadInput` for a setting that `name` does not have."""
    found = dict(defaults)
    for item in filter(None, arguments.split(",")):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in defaults:
            raise BadInput(f"{name} has no setting {key!r}; it has {', '.join(defaults)}.")
        if not value:
            raise BadInput(f"{name}'s setting {key} has no value; write for example {key}={defaults[key] or 1}.")
        found[key] = value
    return found


def number(name: str, key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{name}'s {key} = {text!r} is not a number.") from None


def whole(name: str, key: str, text: str) -> int:
    value = number(name, key, text)
    if not value.is_integer() or not 0 <= value < 2**53:
        raise BadInput(f"{name}'s {key} = {value:g} must be a whole number, not negative.")
    return int(value)


def wholes(name: str, key: str, text: str) -> list[int] | None:
    """6/8 → [6, 8]; nothing for nothing."""
    return [whole(name, key, part) for part in text.split("/")] if text else None
