"""What a module asks of its input and of its arguments."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

import torch
from torch import Tensor

from notsodeep.errors import BadInput


def count(value: object, name: str) -> int:
    """`value` as a whole number ≥ 1, or `BadInput`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise BadInput(f"{name} must be a whole number ≥ 1, got {value!r}.")
    return int(value)


def batch(x: object, in_features: int, weight: Tensor, module: str) -> Tensor:
    """`x`, (…, p), if this module can take it; otherwise `BadInput` with both shapes, or both dtypes."""
    if not isinstance(x, Tensor):
        raise BadInput(
            f"{module} takes a torch tensor, got {type(x).__name__}; torch.from_numpy(x) makes one of an array."
        )
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise BadInput(
            f"x has shape {tuple(x.shape)}; this {module} was built for in_features = {in_features}, so it takes shape "
            f"(n, {in_features}).",
            given=tuple(x.shape),
            in_features=in_features,
        )
    if not x.is_floating_point():
        raise BadInput(f"x is {_name(x)}; {module} takes real numbers: x.to({weight.dtype}).")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise BadInput(
            f"x is {_name(x)} and the weights of this {module} are {_name(weight)}; convert one: x.to({weight.dtype}), or "
            f"module.to({x.dtype})."
        )
    return x if x.dtype == weight.dtype else x.to(weight.dtype)


def names(given: Iterable[str], allowed: tuple[str, ...], option: str) -> frozenset[str]:
    """`given` as a set of allowed names, or `BadInput`."""
    if not isinstance(given, Iterable):
        raise BadInput(f"{option} takes names, {option}=({allowed[0]!r},); got {given!r}.")
    chosen = frozenset([given] if isinstance(given, str) else given)
    unknown = sorted(map(str, chosen - set(allowed)))
    if unknown:
        raise BadInput(f"{option} knows {', '.join(allowed)}; got {', '.join(map(repr, unknown))}.")
    return chosen


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
