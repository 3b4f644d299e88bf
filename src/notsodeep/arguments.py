"""Checks of arguments other than arrays: numbers, choices, functions, devices and paths.

Each function returns the argument in the type that it is used in, or raises `BadInput` with the argument's name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from inspect import signature
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep.errors import BadInput

SMALLEST_NORM, LARGEST_NORM = 1e-60, 1e60
"""Bounds of norms and variances that kernels are computed from: their fourth powers stay within float64."""

_MOST = 2**63 - 1
_SHOWN = 60  # characters
_PRINTED_BITS = 200  # Python raises on printing numbers of some thousands of digits
_LONGEST_NAME = 255  # bytes, of a file or a folder


def shown(value: Any) -> str:
    """`value` in at most a line, for a message; an array by its shape."""
    if isinstance(value, Tensor):
        return f"a tensor of {'nested' if value.is_nested else f'shape {tuple(value.shape)}'}"
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape}"
    long = isinstance(value, int) and value.bit_length() > _PRINTED_BITS
    text = f"a whole number of {value.bit_length()} bits" if long else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({type(value).__name__})"


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number of Python or NumPy; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def count(value: Any, name: str, least: int = 1, most: int = _MOST) -> int:
    """`value` as a whole number from `least` to `most`."""
    if not is_whole(value) or value < least:
        raise BadInput(f"{name} must be a whole number ≥ {least}, got {shown(value)}.")
    if value > most:
        limit = "2⁶³ − 1, the most that a size can be" if most == _MOST else f"{most}, the most that there can be"
        raise BadInput(f"{name} = {shown(int(value))} is more than {limit}; choose it smaller.")
    return int(value)


def counts(values: Any, name: str, least: int = 1) -> tuple[int, ...]:
    """`values`, a list, tuple or range, as whole numbers ≥ `least`."""
    if not isinstance(values, list | tuple | range):
        raise BadInput(f"{name} must be a list of whole numbers ≥ {least}, got {shown(values)}.")
    return tuple(count(value, name.removesuffix("s"), least) for value in values)


def number(value: Any, name: str, hint: str = "") -> float:
    """`value` as a finite float; `hint` ends the message with what else is allowed."""
    found = _float(value)
    if found is None:
        raise BadInput(f"{name} = {shown(value)} is not a number; expected one{hint}.")
    if not math.isfinite(found):
        raise BadInput(f"{name} = {shown(value)} is not a finite number of float64; expected one{hint}.")
    return found


def numbers(values: Any, name: str, least: float = -math.inf) -> tuple[float, ...]:
    """`values` as finite floats ≥ `least`; there must be at least one."""
    opaque = not _is_dense(values) if isinstance(values, Tensor) else isinstance(values, str | bytes | dict)
    if opaque or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise BadInput(f"{name} = {shown(values)} must be several numbers, as in {name}=(0.1, 1.0).")
    listed = values.detach() if isinstance(values, Tensor) else values
    found = tuple(number(value, f"An entry of {name}") for value in listed)
    if not found or min(found) < least:
        wanted = "number" if least == -math.inf else f"number ≥ {least:g}"
        raise BadInput(f"{name} = {shown(values)} must hold at least one {wanted}, and no other.")
    return found


def positive(value: Any, name: str, hint: str = "") -> float:
    """`value` as a finite float > 0."""
    found = _float(value)
    if found is None:
        raise BadInput(f"{name} = {shown(value)} is not a number; expected a positive number{hint}.")
    if not 0.0 < found < math.inf:
        raise BadInput(f"{name} = {found:g} must be a positive, finite number{hint}.")
    return found


def not_negative(value: Any, name: str, hint: str = "") -> float:
    """`value` as a finite float ≥ 0."""
    found = _float(value)
    if found is None or not 0.0 <= found < math.inf:
        raise BadInput(f"{name} must be a number ≥ 0{hint}, got {shown(value)}.")
    return found


def norm(value: Any, name: str = "tau0") -> float:
    """`value` as the norm of a sample, between SMALLEST_NORM and LARGEST_NORM."""
    return _with_powers(positive(value, name), name, "; rescale the data")


def variance(value: Any, name: str, hint: str = "") -> float:
    """`value` as a variance, between SMALLEST_NORM and LARGEST_NORM; `hint` ends the message."""
    return _with_powers(positive(value, name, hint), name, hint)


def _with_powers(found: float, name: str, hint: str) -> float:
    if not SMALLEST_NORM <= found <= LARGEST_NORM:
        raise BadInput(
            f"{name} = {found:.3g} has powers that leave the range of float64: it must lie between "
            f"{SMALLEST_NORM:.0e} and {LARGEST_NORM:.0e}{hint}."
        )
    return found


def share(value: Any, name: str) -> float:
    """`value` as a float strictly between 0 and 1."""
    found = _float(value)
    if found is None or not 0.0 < found < 1.0:
        raise BadInput(f"{name} = {shown(value)} must lie between 0 and 1, e.g. 0.2 for a fifth.")
    return found


def flag(value: Any, name: str) -> bool:
    """`value` as True or False; a text such as "no" is neither."""
    if isinstance(value, bool | np.bool_) or (is_whole(value) and value in (0, 1)):
        return bool(value)
    raise BadInput(f"{name} must be True or False, got {shown(value)}.")


def choice(value: Any, name: str, allowed: Iterable[str]) -> str:
    """`value` as one of the allowed words, which the message lists."""
    known = tuple(allowed)
    if not isinstance(value, str) or value not in known:
        raise BadInput(f"There is no {name} {shown(value)}; choose from {', '.join(known)}.")
    return value


def choices(given: Any, name: str, allowed: tuple[str, ...]) -> frozenset[str]:
    """One allowed word, or several, as a set."""
    if not isinstance(given, str | list | tuple | set | frozenset):
        raise BadInput(f"{name} takes names, {name}=({allowed[0]!r},); got {shown(given)}.")
    chosen = [given] if isinstance(given, str) else list(given)
    unknown = [shown(word) for word in chosen if not isinstance(word, str) or word not in allowed]
    if unknown:
        raise BadInput(f"{name} knows {', '.join(allowed)}; got {', '.join(unknown)}.")
    return frozenset(chosen)


def instance(value: Any, kind: type | tuple[type, ...], name: str, wanted: str) -> Any:
    """`value`, of that kind; `wanted` describes it in the message."""
    if not isinstance(value, kind):
        raise BadInput(f"{name} must be {wanted}, got {_kind(value)}.")
    return value


def function(value: Any, name: str, wanted: str, arity: int) -> Callable[..., Any]:
    """`value`, a function of `arity` positional arguments; `wanted` describes it in the message."""
    if not callable(value) or isinstance(value, type):
        raise BadInput(f"{name} must be {wanted}, got {_kind(value)}.")
    called: Callable[..., Any] = value
    if not takes(called, arity):
        raise BadInput(f"{name} must be {wanted}; this one does not take {arity} argument{'s' * (arity > 1)} by position.")
    return called


def takes(f: Callable[..., Any], count: int) -> bool:
    """Whether f takes so many arguments by position; True if its signature is unknown."""
    if isinstance(f, nn.Module):
        if f._forward_pre_hooks:  # which may change them
            return True
        f = f.forward
    try:
        own = signature(f, follow_wrapped=False)
    except (TypeError, ValueError):  # builtins have none
        return True
    try:
        own.bind(*range(count))
    except TypeError:
        return False
    return True


def seed(value: Any, name: str = "seed") -> int:
    """`value` as a seed of torch's generators."""
    if not is_whole(value) or not -(2**63) <= value < 2**64:
        raise BadInput(f"{name} must be a whole number of at most 64 bits, got {shown(value)}.")
    return int(value)


def generator(value: Any, name: str = "generator") -> torch.Generator | None:
    """`value`, a torch.Generator or None."""
    if value is not None and not isinstance(value, torch.Generator):
        raise BadInput(f"{name} must be a torch.Generator, torch.Generator().manual_seed(0), got {_kind(value)}.")
    return value


def device(value: Any, name: str = "device") -> torch.device | None:
    """`value` as a device of this machine, or None."""
    if value is None:
        return None
    try:
        found = torch.device(value) if isinstance(value, str | torch.device) else None
    except RuntimeError:
        found = None
    if found is None:
        raise BadInput(f"{name} = {shown(value)} is not a device; choose 'cpu', 'cuda' or 'cuda:0'.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"There is no device {found}: this machine has {torch.cuda.device_count()} of CUDA's.")
    return found


def dtype(value: Any, name: str = "dtype") -> torch.dtype | None:
    """`value`, a dtype of real numbers, or None."""
    known = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    if value is not None and not (isinstance(value, torch.dtype) and value in known):
        raise BadInput(f"{name} = {shown(value)} is not a type of real numbers; choose {', '.join(map(str, known))}.")
    return value


def weight_options(
    draw: object, place: object, kind: object
) -> tuple[torch.Generator | None, torch.device | None, torch.dtype | None]:
    """The generator, device and dtype that weights are drawn with."""
    return generator(draw), device(place), dtype(kind)


def path(value: Any, name: str = "path") -> Path:
    """`value` as the path of a file, whether or not it exists."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise BadInput(f"{name} must be the path of a file, a str or a pathlib.Path, got {_kind(value)}.")
    if not text or "\0" in text or max(len(os.fsencode(part)) for part in Path(text).parts or ("",)) > _LONGEST_NAME:
        raise BadInput(
            f"{name} = {shown(text)} is not the path of a file: it is empty, holds a NUL, or a name over {_LONGEST_NAME} bytes."
        )
    return Path(text)


def as_number(value: Any) -> float:
    """`value` as a float; NaN, which is within no bounds, if it is not a real number."""
    found = _float(value) if isinstance(value, int | float | np.integer | np.floating | Tensor) else None
    return math.nan if found is None else found


def _float(value: Any) -> float | None:
    """A number, or a text of one, as a float, infinite if it overflows; None for anything else."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, Tensor):
        if not _is_dense(value) or value.numel() != 1 or value.is_complex():
            return None
        return float(value.detach())
    if isinstance(value, np.ndarray):
        return float(value) if value.ndim == 0 and value.dtype.kind in "fiu" else None
    if not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number or a fraction
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def _is_dense(value: Tensor) -> bool:
    return value.layout == torch.strided and not (value.is_nested or value.is_meta or value.is_quantized)


def _kind(value: Any) -> str:
    """`value`, or its class, in a word or two."""
    if value is None or isinstance(value, str | int | float):
        return shown(value)
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
