"""What a module asks of its input and of its arguments."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.numerics import arguments
from notsodeep.numerics.arguments import shown
from notsodeep.numerics.safe import refuse_unreadable


def batch(x: object, in_features: int, weight: Tensor, module: str) -> Tensor:
    """`x`, (…, p), if this module can take it; otherwise `BadInput` with both shapes, or both dtypes."""
    if not isinstance(x, Tensor):
        raise BadInput(
            f"{module} takes a torch tensor, got {type(x).__name__}; torch.from_numpy(x) makes one of an array."
        )
    if x.layout != torch.strided or x.is_nested or x.is_quantized:
        refuse_unreadable(x, "x")
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise BadInput(
            f"x has shape {tuple(x.shape)}; this {module} was built for in_features = {in_features}, so it takes shape "
            f"(n, {in_features}).",
            given=tuple(x.shape),
            in_features=in_features,
        )
    if x.device != weight.device:
        raise BadInput(f"x is on {x.device} and the weights of this {module} are on {weight.device}; move one of them.")
    if not x.is_floating_point():
        raise BadInput(f"x is {_name(x)}; {module} takes real numbers: x.to({weight.dtype}).")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise BadInput(
            f"x is {_name(x)} and the weights of this {module} are {_name(weight)}; convert one: x.to({weight.dtype}), or "
            f"module.to({x.dtype})."
        )
    return x if x.dtype == weight.dtype else x.to(weight.dtype)


def drawing(
    generator: object, device: object, dtype: object
) -> tuple[torch.Generator | None, torch.device | None, torch.dtype | None]:
    """What weights are drawn with, where and as what, or `BadInput`."""
    return arguments.generator(generator), arguments.device(device), arguments.dtype(dtype)


def names(given: Iterable[str], allowed: tuple[str, ...], option: str) -> frozenset[str]:
    """`given` as a set of allowed names, or `BadInput`."""
    if not isinstance(given, str | list | tuple | set | frozenset):
        raise BadInput(f"{option} takes names, {option}=({allowed[0]!r},); got {shown(given)}.")
    chosen = [given] if isinstance(given, str) else list(given)
    unknown = [shown(name) for name in chosen if not isinstance(name, str) or name not in allowed]
    if unknown:
        raise BadInput(f"{option} knows {', '.join(allowed)}; got {', '.join(unknown)}.")
    return frozenset(chosen)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
