"""How to look for a fixed point, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from notsodeep.arguments import as_number, count, flag, shown
from notsodeep.errors import BadInput
from notsodeep.fixed_points.precision import FullPrecision, Precision, require_precision
from notsodeep.fixed_points.solvers import Anderson, Solver
from notsodeep.fixed_points.splitting import Splitting
from notsodeep.tolerances import EQUILIBRIUM_RTOL


@dataclass(frozen=True)
class Plan:
    """How to look for a fixed point, and when to stop.

    A sample has converged when ‖f(z) − z‖ ≤ tol·‖f(z)‖ + atol, or ≤ tol where not `relative`. `tol=None` takes the dtype's
    own: 1e-10 in float64, 1e-5 in float32.
    """

    solver: Solver | Splitting = Anderson()  # noqa: RUF009 (frozen values)
    tol: float | None = None
    relative: bool = True
    max_steps: int = 200
    precision: Precision = FullPrecision()  # noqa: RUF009
    throw: bool = True
    atol: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.solver, Solver | Splitting):
            given = shown(self.solver)
            raise BadInput(
                f"solver must be Picard(), Anderson(), Broyden(), PeacemanRachford() or another Solver, got {given}."
            )
        for name in ("relative", "throw"):
            object.__setattr__(self, name, flag(getattr(self, name), name))
        if self.tol is not None and not 0.0 < as_number(self.tol) < float("inf"):
            raise BadInput(f"tol must be a positive number, got {shown(self.tol)}.")
        if not 0.0 <= as_number(self.atol) < float("inf"):
            raise BadInput(f"atol must be a finite number ≥ 0, got {shown(self.atol)}.")
        if self.atol and not self.relative:
            raise BadInput("With relative=False tol is the absolute tolerance already: leave atol out.")
        object.__setattr__(self, "max_steps", count(self.max_steps, "max_steps"))
        require_precision(self.precision)

    def tolerance(self, dtype: torch.dtype) -> float:
        """The tolerance of states in this dtype; `BadInput` where it, or atol in units of it, is no number there."""
        tol = default_tolerance(dtype) if self.tol is None else float(self.tol)
        limits, name = torch.finfo(dtype), str(dtype).removeprefix("torch.")
        if not limits.tiny <= tol <= limits.max:
            raise BadInput(
                f"tol={tol:g} is outside of what {name} can tell apart, {limits.tiny:.1e} to {limits.max:.1e}: a residual "
                f"could not be compared with it. Residuals end near {limits.eps:.0e} (relative); {name} takes "
                f"{default_tolerance(dtype.to_real()):g} by itself, and float64 states go further.",
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
    """The relative residual that is asked for in this dtype where nobody says.

    Raises:
        BadInput: Nothing is computed in this dtype.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in EQUILIBRIUM_RTOL:
        raise BadInput(f"Fixed points are computed in {', '.join(EQUILIBRIUM_RTOL)}, not in {name}: convert the state.")
    return EQUILIBRIUM_RTOL[name]
