"""Ways to pass a gradient through a fixed point.

At z = f(z, θ), with J = ∂f/∂z: dz = (I − J)⁻¹ (∂f/∂θ) dθ, so a cotangent g becomes u = Jᵀu + g, another fixed point, and θ's
gradient is (∂f/∂θ)ᵀu. That is exact (`ImplicitAdjoint`, the default), needs no memory of the forward steps, and is itself
differentiable to any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from notsodeep.arguments import as_number, count, shown
from notsodeep.errors import BadInput
from notsodeep.fixed_points.plan import Plan
from notsodeep.fixed_points.solution import Solution
from notsodeep.fixed_points.solvers import Anderson, Solver
from notsodeep.fixed_points.splitting import Splitting


@dataclass(frozen=True)
class ImplicitAdjoint:
    """The exact gradient: u = Jᵀu + g is solved with a solver and tolerance of its own.

    Args:
        solver: The solver of u = Jᵀu + g.
        tol: Its relative tolerance; by default 1e-5 in float32 and 1e-10 in float64.
        max_steps: The most products with Jᵀ.
        throw: Whether to raise where the gradient does not converge; otherwise a warning says how far it is from exact.
        callback: Called after every such solve with its `Solution` (without the value): steps, residuals, reason.

    Raises:
        BadInput: An argument cannot be used.
    """

    solver: Solver | Splitting = Anderson()  # noqa: RUF009 (a frozen value)
    tol: float | None = None
    max_steps: int = 200
    throw: bool = True
    callback: Callable[[Solution], object] | None = None

    def __post_init__(self) -> None:
        _ = self.plan  # checks the other arguments
        if self.callback is not None and not callable(self.callback):
            raise BadInput(f"callback must be a function of a Solution, got {type(self.callback).__name__}.")

    @property
    def plan(self) -> Plan:
        """The plan of the backward solve."""
        return Plan(self.solver, self.tol, max_steps=self.max_steps, throw=self.throw)


@dataclass(frozen=True)
class PhantomAdjoint:
    """Jacobian-free: the solution is followed by `steps` damped steps z ← z + damping·(f(z) − z), and those are differentiated.

    The gradient is that of a truncated Neumann series of (I − J)⁻¹: cheap, biased. One step is "Jacobian-free backpropagation".

    Args:
        steps: How many steps are differentiated.
        damping: The share of each step that is taken, in (0, 1].

    Raises:
        BadInput: An argument is out of range.

    Ref: Fung et al. (2022); Geng et al. (2021).
    """

    steps: int = 5
    damping: float = 1.0

    def __post_init__(self) -> None:
        count(self.steps, "The steps of a phantom gradient")
        if not 0.0 < as_number(self.damping) <= 1.0:
            raise BadInput(f"The damping of a phantom gradient must be in (0, 1], got {shown(self.damping)}.")


def OneStepAdjoint() -> PhantomAdjoint:  # noqa: N802 (reads like the classes around it)
    """`PhantomAdjoint(steps=1)`: the gradient of one step at the solution.

    Returns:
        The adjoint.
    """
    return PhantomAdjoint(steps=1)


@dataclass(frozen=True)
class UnrolledAdjoint:
    """Differentiate through every step of the solver: exact in the limit, with memory for every step."""


Adjoint = ImplicitAdjoint | PhantomAdjoint | UnrolledAdjoint


def require_adjoint(value: object) -> None:
    """Raise `BadInput` unless `value` is an adjoint."""
    if not isinstance(value, Adjoint):
        raise BadInput(
            f"adjoint must be ImplicitAdjoint(), PhantomAdjoint(), OneStepAdjoint() or UnrolledAdjoint(), got {shown(value)}."
        )
