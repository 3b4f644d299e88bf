"""A general implicit layer: z = f(z) for any f, with gradients for whatever f closes over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from notsodeep.errors import BadInput
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, UnrolledAdjoint, require_adjoint
from notsodeep.fixed_points.capture import capture, transforms_active
from notsodeep.fixed_points.eager import eager
from notsodeep.fixed_points.implicit import equilibrium
from notsodeep.fixed_points.layout import Layout
from notsodeep.fixed_points.loop import Plan, default_tolerance
from notsodeep.fixed_points.precision import FullPrecision, Precision
from notsodeep.fixed_points.solution import Solution
from notsodeep.fixed_points.solvers import Anderson, Solver


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
    _require_callable(f, args)
    layout = Layout.of(z0)
    start = layout.pack(z0).clone()
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
    elif (torch.is_grad_enabled() or transforms_active()) and not isinstance(adjoint, UnrolledAdjoint):
        closed, tensors = capture(f, layout.unpack(start.detach().clone()))
    else:
        closed, tensors = f, ()

    def step(z: Tensor, *others: Tensor) -> Tensor:
        version = None if z.is_inference() else z._version
        image = closed(layout.unpack(z), *others)
        layout.require_same(image)
        if version is not None and z._version != version:
            raise BadInput(
                "f changes its state in place, so there is nothing left to compare with: let it work on z.clone()."
            )
        return layout.pack(image).to(z.dtype)

    solution = equilibrium(step, start, tensors, plan, adjoint)
    value = layout.unpack(solution.value)
    if args is None and torch.is_grad_enabled() and not (transforms_active() or solution.value.requires_grad):
        _require_no_gradient(f, value)
    return replace(solution, value=value)


def _require_callable(f: object, args: object) -> None:
    if not callable(f):
        raise BadInput(f"f must be a function of the state, got {type(f).__name__}.")
    if args is not None and not (isinstance(args, list | tuple) and all(isinstance(a, Tensor) for a in args)):
        raise BadInput(f"args must be a tuple of tensors, args=(a, b) for f(z, a, b); got {type(args).__name__}.")


def _require_no_gradient(f: Callable[..., Any], z: Any) -> None:
    """Where no tensor that needs a gradient was seen, there must be none."""
    if any(leaf.requires_grad for leaf in pytree.tree_leaves(f(z))):
        raise BadInput(
            "f uses a tensor that needs a gradient where it was not seen: in a scripted function, or in a branch that the "
            "first evaluation did not take. Pass it as an argument: fixed_point(f, z0, …, args=(tensor,)) with f(z, tensor)."
        )


def _autocast(f: Callable[..., Any], device_type: str, dtype: torch.dtype) -> Callable[..., Any]:
    """f in the autocast state of now, so that a backward pass outside of it sees the same function."""

    def inside(*args: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype):
            return f(*args)

    return inside
