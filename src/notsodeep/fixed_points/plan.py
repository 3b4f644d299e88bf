"""How to look for a fixed point: solver, tolerances, limits, and the precision of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import as_number, count, flag, shown
from notsodeep.errors import BadInput
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.solvers import Anderson, Solver
from notsodeep.fixed_points.splitting import Splitting
from notsodeep.tolerances import BFLOAT16_FLOOR, EQUILIBRIUM_RTOL, TF32_FLOOR

_WORTH_IT = 1 << 16  # numbers in a state, below which converting them costs more than it saves


@dataclass(frozen=True, eq=False)
class Stage:
    """A way to evaluate f, good down to a relative residual of about `floor`; 0 for full precision."""

    evaluate: Map
    floor: float = 0.0


@dataclass(frozen=True)
class FullPrecision:
    """Every step as f computes it."""

    def stages(self, f: Map, z: Tensor, tol: float) -> tuple[Stage, ...]:  # noqa: ARG002
        """One stage: f itself."""
        return (Stage(f),)


@dataclass(frozen=True)
class MixedPrecision:
    """Early steps in lower precision: for float32 states on a device that is faster at it.

    Matrix products are in bfloat16 down to a relative residual of about 6e-3, then (CUDA) in TF32 to about 5e-4, then in full
    precision, the only one in which convergence is judged. On other devices every step is in full precision.

    A `DEQ` does better: after one product in full precision it updates h = W z + u by W (z' − z), with an ever smaller error.
    """

    def stages(self, f: Map, z: Tensor, tol: float) -> tuple[Stage, ...]:
        """The ways to evaluate f at states like z, from the cheapest to full precision."""
        if z.dtype != torch.float32 or z.numel() < _WORTH_IT or not has_fast_bfloat16(z.device):
            return (Stage(f),)
        own: Callable[[float], tuple[Stage, ...]] | None = getattr(f, "stages", None)
        if own is not None:
            return own(tol)
        rough = Stage(inside(lambda: torch.autocast(z.device.type, dtype=torch.bfloat16), f), BFLOAT16_FLOOR)
        return (rough, Stage(inside(tf32, f), TF32_FLOOR), Stage(f)) if z.is_cuda else (rough, Stage(f))


Precision = FullPrecision | MixedPrecision


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the hardware of `device` computes products in bfloat16, without emulation."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    asks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return device.type == "cpu" and any(ask is not None and ask() for ask in asks)


def inside(context: Callable[[], AbstractContextManager[Any]], f: Callable[..., Any]) -> Callable[..., Any]:
    """f, evaluated inside of a context."""

    def evaluate(*args: Any) -> Any:
        with context():
            return f(*args)

    return evaluate


@contextmanager
def tf32() -> Iterator[None]:
    """A context in which float32 products on CUDA are computed in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """A context in which solvers work in the state's precision; f may choose its own."""
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()


@dataclass(frozen=True)
class Plan:
    """How to look for a fixed point, and when to stop.

    A sample has converged when ‖f(z) − z‖ ≤ tol·‖f(z)‖ + atol, or ≤ tol where not `relative`. `tol=None` takes the default of
    the dtype: 1e-10 in float64, 1e-5 in float32.
    """

    solver: Solver | Splitting = Anderson()  # noqa: RUF009 (frozen values)
    tol: float | None = None
    relative: bool = True
    max_steps: int = 200
    precision: Precision = FullPrecision()
    throw: bool = True
    atol: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.solver, Solver | Splitting):
            given = shown(self.solver)
            raise BadInput(f"solver must be Picard(), Anderson(), Broyden(), PeacemanRachford() or a Solver, got {given}.")
        for name in ("relative", "throw"):
            object.__setattr__(self, name, flag(getattr(self, name), name))
        if self.tol is not None and not 0.0 < as_number(self.tol) < float("inf"):
            raise BadInput(f"tol must be a positive number, got {shown(self.tol)}.")
        if not 0.0 <= as_number(self.atol) < float("inf"):
            raise BadInput(f"atol must be a finite number ≥ 0, got {shown(self.atol)}.")
        if self.atol and not self.relative:
            raise BadInput("With relative=False tol is the absolute tolerance already: leave atol out.")
        object.__setattr__(self, "max_steps", count(self.max_steps, "max_steps"))
        if not isinstance(self.precision, Precision):
            raise BadInput(f"precision must be FullPrecision() or MixedPrecision(), got {self.precision!r}.")

    def tolerance(self, dtype: torch.dtype) -> float:
        """The tolerance of states in this dtype; `BadInput` where it, or atol/tol, is not representable there."""
        tol = default_tolerance(dtype) if self.tol is None else float(self.tol)
        limits, name = torch.finfo(dtype), str(dtype).removeprefix("torch.")
        if not limits.tiny <= tol <= limits.max:
            raise BadInput(
                f"tol={tol:g} is outside of what {name} can tell apart, {limits.tiny:.1e} to {limits.max:.1e}: a residual "
                f"could not be compared with it. Residuals end near {limits.eps:.0e} (relative); the default is "
                f"{default_tolerance(dtype.to_real()):g}, and float64 states go further.",
                tol=tol,
                dtype=dtype,
            )
        if not self.atol / tol <= limits.max:
            raise BadInput(
                f"atol={self.atol:g} is {self.atol / tol:.1e} times tol={tol:g}, more than the largest number of {name}, "
                f"{limits.max:.1e}: every state would count as converged. Raise tol, or pass tol={self.atol:g} with "
                "relative=False.",
                tol=tol,
                atol=self.atol,
            )
        return tol


def default_tolerance(dtype: torch.dtype) -> float:
    """The relative tolerance of this dtype where none is given; `BadInput` for a dtype without arithmetic."""
    name = str(dtype).removeprefix("torch.")
    if name not in EQUILIBRIUM_RTOL:
        raise BadInput(f"Fixed points are computed in {', '.join(EQUILIBRIUM_RTOL)}, not in {name}: convert the state.")
    return EQUILIBRIUM_RTOL[name]
