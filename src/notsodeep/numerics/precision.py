"""In which precision a step is taken: all in full, or the early ones in less where the device is faster at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.numerics.tolerances import BFLOAT16_FLOOR, TF32_FLOOR

Map = Callable[[Tensor], Tensor]


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
    """Float32 on a CUDA device: matrix products in bfloat16 down to a relative residual of about 4e-3, then in TF32 to about
    5e-4, then in full, in which alone convergence is judged. Elsewhere every step is in full precision.

    A `DEQ` does better: after one product in full precision, h = W z + u is carried on by h + W (z' − z), whose error is
    that of TF32 times the ever smaller difference.
    """

    def stages(self, f: Map, z: Tensor, tol: float) -> tuple[Stage, ...]:
        if z.device.type != "cuda" or z.dtype != torch.float32 or torch.cuda.get_device_capability(z.device) < (8, 0):
            return (Stage(f),)
        if isinstance(f, Refinable):
            return f.stages(tol)
        return (Stage(_inside(bfloat16, f), BFLOAT16_FLOOR), Stage(_inside(tf32, f), TF32_FLOOR), Stage(f))


Precision = FullPrecision | MixedPrecision


def require_precision(value: object) -> None:
    if not isinstance(value, FullPrecision | MixedPrecision):
        raise BadInput(f"precision must be FullPrecision() or MixedPrecision(), got {value!r}.")


def _inside(context: Callable[[], object], f: Map) -> Map:
    def evaluate(z: Tensor) -> Tensor:
        with context():  # type: ignore[attr-defined]
            return f(z)

    return evaluate


@contextmanager
def bfloat16() -> Iterator[None]:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        yield


@contextmanager
def tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
