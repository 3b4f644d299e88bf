"""A general implicit layer: z = f(z) for any f, with gradients for whatever f closes over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from notsodeep.numerics.adjoint import Adjoint, ImplicitAdjoint, UnrolledAdjoint, require_adjoint
from notsodeep.numerics.capture import capture
from notsodeep.numerics.eager import eager
from notsodeep.numerics.equilibrium import equilibrium
from notsodeep.numerics.iteration import Plan, default_tolerance
from notsodeep.numerics.precision import FullPrecision, Precision
from notsodeep.numerics.solution import Solution
from notsodeep.numerics.solvers import Anderson, Solver
from notsodeep.numerics.trees import Layout


@eager
def fixed_point(
    f: Callable[..., Any],
    z0: Any,
    solver: Solver = Anderson(),  # noqa: B008 (a frozen value)
    adjoint: Adjoint = ImplicitAdjoint(),  # noqa: B008
    *,
    args: Sequence[Tensor] | None = None,
    tol: float | None = None,
    relative: bool = True,
    max_steps: int = 200,
    precision: Precision = FullPrecision(),  # noqa: B008
    throw: bool = True,
) -> Solution:
    """The `Solution` of z = f(z), from z0: a tensor, or a nested tuple, list or dict of tensors.

    The first axis counts samples (see `Layout`); each converges when ‖f(z) − z‖ ≤ tol·‖f(z)‖, or ≤ tol where not `relative`.
    ``.value`` carries a gradient for every tensor that f uses, by `adjoint`: exact unless you choose otherwise. f is evaluated
    once more to find those tensors; name them instead with ``args=(a, b)`` and ``f(z, a, b)``.

    Raises `NotConverged`, with residuals and a remedy, unless throw=False, where ``.reason`` and ``.converged`` tell.
    """
    require_adjoint(adjoint)
    layout = Layout.of(z0)
    start = layout.pack(z0)
    kind = start.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        f = _autocast(f, kind, dtype)
        # Residuals end at the rounding of what f computes in, whatever the state is kept in.
        tol = default_tolerance(dtype) if tol is None else tol
        if isinstance(adjoint, ImplicitAdjoint) and adjoint.tol is None:
            adjoint = replace(adjoint, tol=default_tolerance(dtype))
    plan = Plan(solver, tol, relative, max_steps, precision, throw)
    closed: Callable[..., Any]
    if args is not None:
        closed, tensors = f, tuple(args)
    elif torch.is_grad_enabled() and not isinstance(adjoint, UnrolledAdjoint):
        closed, tensors = capture(f, pytree.tree_map(torch.detach, z0))
    else:
        closed, tensors = f, ()

    def step(z: Tensor, *others: Tensor) -> Tensor:
        image = closed(layout.unpack(z), *others)
        layout.require_same(image)
        return layout.pack(image).to(z.dtype)

    solution = equilibrium(step, start, tensors, plan, adjoint)
    return replace(solution, value=layout.unpack(solution.value))


def _autocast(f: Callable[..., Any], device_type: str, dtype: torch.dtype) -> Callable[..., Any]:
    """f in the autocast state of now, so that a backward pass outside of it sees the same function."""

    def inside(*args: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype):
            return f(*args)

    return inside
