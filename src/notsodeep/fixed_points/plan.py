"""How to look for a fixed point, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from notsodeep.errors import BadInput
from notsodeep.fixed_points.precision import FullPrecision, Precision, require_precision
from notsodeep.fixed_points.solvers import Anderson, Solver
from notsodeep.fixed_points.splitting import Splitting
from notsodeep.numerics.tolerances import EQUILIBRIUM_RTOL


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
            raise BadInput(
                f"solver must be Picard(), Anderson(), Broyden(), PeacemanRachford() or another Solver, got {self.solver!r}."
            )
        if self.tol is not None and not 0.0 < self.tol < float("inf"):
            raise BadInput(f"tol must be a positive number, got {self.tol!r}.")
        if not 0.0 <= self.atol < float("inf"):
            raise BadInput(f"atol must be a finite number ≥ 0, got {self.atol!r}.")
        if self.atol and not self.relative:
            raise BadInput("With relative=False tol is the absolute tolerance already: leave atol out.")
        if isinstance(self.max_steps, bool) or not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise BadInput(f"max_steps must be a whole number ≥ 1, got {self.max_steps!r}.")
        require_precision(self.precision)

    def tolerance(self, dtype: torch.dtype) -> float:
        return default_tolerance(dtype) if self.tol is None else self.tol


def default_tolerance(dtype: torch.dtype) -> float:
    """The relative residual that is asked for in this dtype where nobody says."""
    return EQUILIBRIUM_RTOL[str(dtype).removeprefix("torch.")]
