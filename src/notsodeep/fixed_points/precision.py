"""In which precision a step is taken: all in full, or the early ones in less where the device is faster at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.tolerances import BFLOAT16_FLOOR, TF32_FLOOR

Map = Callable[[Tensor], Tensor]
HALF = (torch.float16, torch.bfloat16)
_WORTH_IT = 1 << 16  # numbers in a state, below which converting them costs more than it saves


@dataclass(frozen=True, eq=False)
class Stage:
    """A way to evaluate f, good down to a relative residual of about `floor`; 0 for full precision."""

    evaluate: Map
    floor: float = 0.0


@runtime_checkable
class Refinable(Protocol):
    """A map that knows how to be cheap: it gives its own stages, the last of them as good as full precision for `tol`."""

    def stages(self, tol: float) -> tuple[Stage, ...]: ...


@dataclass(frozen=True)
class FullPrecision:
    """Every step as f computes it."""

    def stages(self, f: Map, z: Tensor, tol: float) -> tuple[Stage, ...]:  # noqa: ARG002
        return (Stage(f),)


@dataclass(frozen=True)
class MixedPrecision:
    """Float32 states on a device that is faster at less: matrix products in bfloat16 down to a relative residual of about 6e-3,
    then (CUDA) in TF32 to about 5e-4, then in full, in which alone convergence is judged. Elsewhere every step is in full.

    A `DEQ` does better: after one product in full precision, h = W z + u is carried on by h + W (z' − z), whose error is
    that of the format times an ever smaller difference.
    """

    def stages(self, f: Map, z: Tensor, tol: float) -> tuple[Stage, ...]:
        if z.dtype != torch.float32 or z.numel() < _WORTH_IT or not has_fast_bfloat16(z.device):
            return (Stage(f),)
        if isinstance(f, Refinable):
            return f.stages(tol)
        rough = Stage(_inside(lambda: torch.autocast(z.device.type, dtype=torch.bfloat16), f), BFLOAT16_FLOOR)
        return (rough, Stage(_inside(tf32, f), TF32_FLOOR), Stage(f)) if z.is_cuda else (rough, Stage(f))


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether products in bfloat16 are done by the hardware of `device`, not by software."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    asks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return device.type == "cpu" and any(ask is not None and ask() for ask in asks)


Precision = FullPrecision | MixedPrecision


def require_precision(value: object) -> None:
    if not isinstance(value, FullPrecision | MixedPrecision):
        raise BadInput(f"precision must be FullPrecision() or MixedPrecision(), got {value!r}.")


def _inside(context: Callable[[], AbstractContextManager[object]], f: Map) -> Map:
    def evaluate(z: Tensor) -> Tensor:
        with context():
            return f(z)

    return evaluate


@contextmanager
def tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """A context in which solvers work in the state's precision; f may choose its own."""
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()
