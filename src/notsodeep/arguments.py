"""Checks at the door: numbers, choices, and whatever else is passed by value. Arrays are in `safe`."""

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
"""Of norms, and variances, that kernels are computed from: their fourth powers are still numbers of float64."""

_MOST = 2**63 - 1
_SHOWN = 60
_LONGEST_NAME = 255  # bytes, of a file or a folder


def shown(value: Any) -> str:
    """`value` for a message: never longer than a line, an array by its shape."""
    if isinstance(value, Tensor):
        return f"a tensor of {'nested' if value.is_nested else f'shape {tuple(value.shape)}'}"
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape}"
    text = f"a whole number of {value.bit_length()} bits" if _is_long(value) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({type(value).__name__})"


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > 200  # Python refuses to print some thousands of digits


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number of Python or NumPy; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def count(value: Any, name: str, least: int = 1, most: int = _MOST) -> int:
    """`value` as a whole number from `least` to `most`, or `BadInput`."""
    if not is_whole(value) or value < least:
        raise BadInput(f"{name} must be a whole number ≥ {least}, got {shown(value)}.")
    if value > most:
        limit = "2⁶³ − 1, the most that a size can be" if most == _MOST else f"{most}, the most that there can be"
        raise BadInput(f"{name} = {shown(int(value))} is more than {limit}; choose it smaller.")
    return int(value)


def counts(values: Any, name: str, least: int = 1) -> tuple[int, ...]:
    """`values`, a list or a tuple, as whole numbers ≥ `least`, or `BadInput`."""
    if not isinstance(values, list | tuple | range):
        raise BadInput(f"{name} must be a list of whole numbers ≥ {least}, got {shown(values)}.")
    return tuple(count(value, name.removesuffix("s"), least) for value in values)


def number(value: Any, name: str, hint: str = "") -> float:
    """`value` as a finite float, or `BadInput`."""
    found = _float(value)
    if found is None:
        raise BadInput(f"{name} = {shown(value)} is not a number; expected one{hint}.")
    if not math.isfinite(found):
        raise BadInput(f"{name} = {shown(value)} is not a finite number of float64; expected one{hint}.")
    return found


def numbers(values: Any, name: str, least: float = -math.inf) -> tuple[float, ...]:
    """`values` as finite floats ≥ `least`, one at least, or `BadInput`."""
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable) or _is_scalar(values):
        raise BadInput(f"{name} = {shown(values)} must be several numbers, as in {name}=(0.1, 1.0).")
    found = tuple(number(value, f"An entry of {name}") for value in _listed(values))
    if not found or min(found) < least:
        wanted = "number" if least == -math.inf else f"number ≥ {least:g}"
        raise BadInput(f"{name} = {shown(values)} must hold at least one {wanted}, and no other.")
    return found


def positive(value: Any, name: str, hint: str = "") -> float:
    """`value` as a finite float > 0, or `BadInput`."""
    found = _float(value)
    if found is None:
        raise BadInput(f"{name} = {shown(value)} is not a number; expected a positive number{hint}.")
    if not 0.0 < found < math.inf:
        raise BadInput(f"{name} = {found:g} must be a positive, finite number{hint}.")
    return found


def not_negative(value: Any, name: str, hint: str = "") -> float:
    """`value` as a finite float ≥ 0, or `BadInput`."""
    found = _float(value)
    if found is None or not 0.0 <= found < math.inf:
        raise BadInput(f"{name} must be a number ≥ 0{hint}, got {shown(value)}.")
    return found


def norm(value: Any, name: str = "tau0") -> float:
    """`value` as the norm of a sample that kernels can be computed from, or `BadInput`."""
    found = positive(value, name)
    if not SMALLEST_NORM <= found <= LARGEST_NORM:
        raise BadInput(
            f"{name} = {found:.3g} is a norm whose powers leave the range of float64 (beyond {LARGEST_NORM:.0e}, or below "
            f"{SMALLEST_NORM:.0e}). Rescale the data."
        )
    return found


def variance(value: Any, name: str, hint: str = "") -> float:
    """`value` as a variance that kernels can be computed from, or `BadInput`."""
    found = positive(value, name, hint)
    if not SMALLEST_NORM <= found <= LARGEST_NORM:
        raise BadInput(
            f"{name} = {found:.3g} is a variance whose powers leave the range of float64: it must lie between "
            f"{SMALLEST_NORM:.0e} and {LARGEST_NORM:.0e}{hint}."
        )
    return found


def share(value: Any, name: str) -> float:
    """`value` as a float strictly between 0 and 1, or `BadInput`."""
    found = _float(value)
    if found is None or not 0.0 < found < 1.0:
        raise BadInput(f"{name} = {shown(value)} must lie between 0 and 1, e.g. 0.2 for a fifth.")
    return found


def flag(value: Any, name: str) -> bool:
    """`value` as True or False, or `BadInput`: a text is neither, whatever it says."""
    if isinstance(value, bool | np.bool_) or (is_whole(value) and value in (0, 1)):
        return bool(value)
    raise BadInput(f"{name} must be True or False, got {shown(value)}.")


def choice(value: Any, name: str, allowed: Iterable[str]) -> str:
    """`value` as one of the allowed words, or `BadInput` that lists them."""
    known = tuple(allowed)
    if not isinstance(value, str) or value not in known:
        raise BadInput(f"There is no {name} {shown(value)}; choose from {', '.join(known)}.")
    return value


def instance(value: Any, kind: type | tuple[type, ...], name: str, wanted: str) -> Any:
    """`value` if it is of that kind, or `BadInput` that says what is `wanted`."""
    if not isinstance(value, kind):
        raise BadInput(f"{name} must be {wanted}, got {_kind(value)}.")
    return value


def function(value: Any, name: str, wanted: str, arity: int) -> Callable[..., Any]:
    """`value` if it can be called with so many arguments, or `BadInput` that says what is `wanted`."""
    if not callable(value) or isinstance(value, type):
        raise BadInput(f"{name} must be {wanted}, got {_kind(value)}.")
    called: Callable[..., Any] = value
    if not takes(called, arity):
        raise BadInput(
            f"{name} must be {wanted}; this one does not take {arity} argument{'s' * (arity > 1)} by position."
        )
    return called


def takes(f: Callable[..., Any], count: int) -> bool:
    """Whether f takes so many arguments by position; True where its signature does not tell."""
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
    """`value` as what a generator of torch can be seeded with, or `BadInput`."""
    if not is_whole(value) or not -(2**63) <= value < 2**64:
        raise BadInput(f"{name} must be a whole number of at most 64 bits, got {shown(value)}.")
    return int(value)


def generator(value: Any, name: str = "generator") -> torch.Generator | None:
    """`value` if it is a generator of torch or None, or `BadInput`."""
    if value is not None and not isinstance(value, torch.Generator):
        raise BadInput(f"{name} must be a torch.Generator, torch.Generator().manual_seed(0), got {_kind(value)}.")
    found: torch.Generator | None = value
    return found


def device(value: Any, name: str = "device") -> torch.device | None:
    """`value` as a device that is there, or None; `BadInput` for any other."""
    if value is None:
        return None
    try:
        found = torch.device(value) if isinstance(value, str | torch.device) else None
    except RuntimeError:
        found = None
    if found is None:
        raise BadInput(f"{name} = {shown(value)} is no device; choose 'cpu', 'cuda' or 'cuda:0'.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"There is no device {found}: this machine has {torch.cuda.device_count()} of CUDA's.")
    return found


def dtype(value: Any, name: str = "dtype") -> torch.dtype | None:
    """`value` as a type of real numbers that torch computes in, or None; `BadInput` for any other."""
    known = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    if value is not None and not (isinstance(value, torch.dtype) and value in known):
        raise BadInput(f"{name} = {shown(value)} is no type of real numbers; choose {', '.join(map(str, known))}.")
    found: torch.dtype | None = value
    return found


def path(value: Any, name: str = "path") -> Path:
    """`value` as a path that a file can have, or `BadInput`."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise BadInput(f"{name} must be the path of a file, a str or a pathlib.Path, got {_kind(value)}.")
    if not text or "\0" in text or max(len(os.fsencode(part)) for part in Path(text).parts or ("",)) > _LONGEST_NAME:
        raise BadInput(
            f"{name} = {shown(text)} is no path of a file: it is empty, holds a NUL, or a name of over {_LONGEST_NAME} bytes."
        )
    return Path(text)


def as_number(value: Any) -> float:
    """`value` as a float; NaN, which is within no bounds, where it is no real number that torch takes."""
    found = _float(value) if isinstance(value, int | float | np.integer | np.floating | Tensor) else None
    return math.nan if found is None else found


def _float(value: Any) -> float | None:
    """A number, or a text that is one, as a float, infinite where it is too large for one; None for what is no real number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, Tensor):
        plain = value.layout == torch.strided and not (value.is_nested or value.is_meta or value.is_quantized)
        if not plain or value.numel() != 1 or value.is_complex():
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


def _is_scalar(values: Any) -> bool:
    return isinstance(values, Tensor | np.ndarray) and (
        (isinstance(values, Tensor) and (values.is_nested or values.is_meta or values.layout != torch.strided))
        or values.ndim == 0
    )


def _listed(values: Any) -> Iterable[Any]:
    return values.detach() if isinstance(values, Tensor) else values


def _kind(value: Any) -> str:
    """What `value` is, in a word or two."""
    if value is None or isinstance(value, str | int | float):
        return shown(value)
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
