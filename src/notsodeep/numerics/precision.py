"""In which precision a step is taken: all in full, or the early ones in less where the device is faster at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from notsodeep.errors import BadInput
from notsodeep.numerics.tolerances import BFLOAT16_FLOOR, TF32_FLOOR


@dataclass(frozen=True)
class Level:
    """One precision: `context()` to evaluate f in, and the relative residual beyond which it has no more to give."""

    name: str
    floor: float

    def context(self) -> AbstractContextManager[None]:
        if self.name == "bfloat16":
            return _bfloat16()
        if self.name == "tf32":
            return _tf32()
        return nullcontext()


FULL = Level("full", 0.0)


@dataclass(frozen=True)
class FullPrecision:
    """Every step as f computes it."""

    def levels(self, device: torch.device, dtype: torch.dtype) -> tuple[Level, ...]:  # noqa: ARG002
        return (FULL,)


@dataclass(frozen=True)
class MixedPrecision:
    """Float32 states on a CUDA device: matrix products in bfloat16 down to a relative residual of about 1e-3, then in TF32 to
    about 1e-4, then in full, in which alone convergence is judged. Elsewhere every step is in full precision."""

    bfloat16: bool = True
    tf32: bool = True

    def levels(self, device: torch.device, dtype: torch.dtype) -> tuple[Level, ...]:
        if device.type != "cuda" or dtype != torch.float32:
            return (FULL,)
        capability = torch.cuda.get_device_capability(device)
        wanted = ((self.bfloat16, Level("bfloat16", BFLOAT16_FLOOR)), (self.tf32, Level("tf32", TF32_FLOOR)))
        return (*(level for asked, level in wanted if asked and capability >= (8, 0)), FULL)


Precision = FullPrecision | MixedPrecision


def require_precision(value: object) -> None:
    if not isinstance(value, FullPrecision | MixedPrecision):
        raise BadInput(f"precision must be FullPrecision() or MixedPrecision(), got {value!r}.")


@contextmanager
def _bfloat16() -> Iterator[None]:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        yield


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
