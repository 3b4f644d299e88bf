"""Linear systems with a positive definite matrix known by its products, for many right-hand sides at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.arguments import positive
from notsodeep.errors import BadInput, NotConverged
from notsodeep.linalg.eigen import BlockProduct
from notsodeep.linalg.preconditioners import Preconditioner

SOLVE_RTOL = {torch.float64: 1e-8, torch.float32: 1e-5}
"""‖b − A x‖/‖b‖ at which a system counts as solved, by the dtype of the products."""

DRIFT = 2.0
"""How many times the tolerance the true residual may be, where that of the recursion is below it."""

_MOST, _ROUNDS = 1000, 4


@dataclass(frozen=True, eq=False)
class LinearSolution:
    """The solution of A X = B and how it was reached."""

    solution: Tensor
    """(n,) or (n, b)"""
    iterations: int
    residuals: Tensor
    """‖r‖/‖b‖ of the recursion, (iterations + 1, b)"""
    residual: Tensor
    """‖b − A x‖/‖b‖, computed from the solution, (b,)"""
    converged: bool


@torch.no_grad()
def conjugate_gradients(
    product: BlockProduct,
    right: Tensor,
    preconditioner: Preconditioner | None = None,
    *,
    tolerance: float | None = None,
    most: int = _MOST,
    strict: bool = False,
) -> LinearSolution:
    """Solve A X = B for B (n,) or (n, b) by preconditioned conjugate gradients, each column with its own scalars.

    Columns that are solved leave the products. The residual of the recursion drifts from b − A x by round-off, so the latter is
    computed once at the end; where it is above DRIFT × tolerance, the system of that residual is solved in turn. With `strict`
    it raises NotConverged where `most` iterations are not enough.

    Ref: Hestenes and Stiefel (1952); Saad, Iterative Methods for Sparse Linear Systems, algorithm 9.1.
    """
    if right.ndim not in (1, 2):
        raise BadInput(f"The right-hand side has shape {tuple(right.shape)}; expected (n,) or (n, b).")
    _check_right(right)
    tolerance = SOLVE_RTOL[right.dtype] if tolerance is None else positive(tolerance, "tolerance")
    columns = right[:, None] if right.ndim == 1 else right
    scale = torch.linalg.vector_norm(columns, dim=0)
    scale = torch.where(scale > 0, scale, 1.0)
    solution, residual = torch.zeros_like(columns), columns
    history = [torch.linalg.vector_norm(columns, dim=0) / scale]
    reached = history[0]
    for _ in range(_ROUNDS):
        before = reached
        step, trace = _recursion(product, residual, preconditioner, tolerance * scale, most - len(history) + 1)
        solution = solution + step
        residual = columns - product(solution)
        reached = torch.linalg.vector_norm(residual, dim=0) / scale
        history += [norms / scale for norms in trace]
        stuck = not float(reached.max()) < 0.5 * float(before.max())
        if float(reached.max()) <= DRIFT * tolerance or len(history) > most or stuck:
            break
    converged = bool((reached <= DRIFT * tolerance).all())
    if strict and not converged:
        raise _not_converged(reached, tolerance, len(history) - 1, right.dtype)
    shaped = solution[:, 0] if right.ndim == 1 else solution
    return LinearSolution(shaped, len(history) - 1, torch.stack(history), reached, converged)


def _check_right(right: Tensor) -> None:
    if right.numel() == 0:
        raise BadInput(f"The right-hand side is empty: shape {tuple(right.shape)}; at least one vector is needed.")
    finite = torch.isfinite(right)
    if not bool(finite.all()):
        row = int(torch.nonzero(~finite)[0, 0])
        raise BadInput(
            f"The right-hand side holds NaN or infinity in {int((~finite).sum())} of {right.numel()} entries (first in row "
            f"{row}); drop or fill them first.",
            row=row,
        )


def _recursion(
    product: BlockProduct, right: Tensor, preconditioner: Preconditioner | None, goal: Tensor, most: int
) -> tuple[Tensor, list[Tensor]]:
    """The solution, and ‖r‖ of the recursion after each iteration."""
    solution, residual = torch.zeros_like(right), right.clone()
    norms = torch.linalg.vector_norm(residual, dim=0)
    trace: list[Tensor] = []
    active = torch.nonzero(norms > goal).flatten()
    z = residual if preconditioner is None else preconditioner.solve(residual)
    direction, inner = z.clone(), (residual * z).sum(0)
    while len(active) and len(trace) < most:
        p, r = direction[:, active], residual[:, active]
        image = product(p)
        curvature = (p * image).sum(0)
        _check_definite(curvature, inner[active], p, len(trace))
        step = inner[active] / curvature
        solution[:, active] += step * p
        residual[:, active] = r = r - step * image
        norms[active] = torch.linalg.vector_norm(r, dim=0)
        trace.append(norms.clone())
        z = r if preconditioner is None else preconditioner.solve(r)
        found = (r * z).sum(0)
        direction[:, active] = z + (found / inner[active]) * p
        inner[active] = found
        active = torch.nonzero(norms > goal).flatten()
    return solution, trace


def _check_definite(curvature: Tensor, inner: Tensor, p: Tensor, done: int) -> None:
    if not bool(torch.isfinite(curvature).all() and torch.isfinite(inner).all()):
        raise BadInput(f"A product holds NaN or infinity after {done} iterations, so there is no solution.")
    if bool((inner <= 0).any()):
        worst = float(inner.min())
        raise BadInput(
            f"The preconditioner is not positive definite: r·P⁻¹r = {worst:.3g} after {done} iterations. Take another one, a "
            "lower rank, or a larger ridge.",
            value=worst,
        )
    rayleigh = curvature / p.square().sum(0)
    if bool((curvature <= 0).any()):
        worst = float(rayleigh.min())
        raise BadInput(
            f"The matrix is not positive definite: p·Ap/p·p = {worst:.3g} after {done} iterations. Add a ridge above "
            f"{abs(worst):.1g}.",
            value=worst,
        )


def _not_converged(reached: Tensor, tolerance: float, steps: int, dtype: torch.dtype) -> NotConverged:
    left, worst = int((reached > DRIFT * tolerance).sum()), float(reached.max())
    wider = "float64, " if dtype == torch.float32 else ""
    return NotConverged(
        f"{left} of {len(reached)} systems have a relative residual above {tolerance:.1e} after {steps} iterations (the "
        f"largest is {worst:.1e}). Take {wider}a larger ridge, a preconditioner of higher rank, or more iterations (most=…).",
        residual=worst,
        steps=steps,
    )
