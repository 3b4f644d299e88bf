"""Operator splitting for z = φ(W z + u) with a monotone W, where plain steps may run away.

With z = φ(h) ⇔ h ∈ φ⁻¹(z), the equation reads 0 ∈ (I − W) z − u + (φ⁻¹ − I) z: a sum of two monotone operators, each easy by
itself. Its first part has the resolvent (I + α(I − W))⁻¹(v + α u), the second R_φ(v) = z with (1 − α) z + α φ⁻¹(z) = v, which
is φ(v) for α = 1 and for ReLU whatever α is.

Ref: Winston & Kolter (2020); Peaceman & Rachford (1955); Lions & Mercier (1979).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.arguments import as_number
from notsodeep.errors import BadInput
from notsodeep.fixed_points.activated import ActivatedRows
from notsodeep.fixed_points.linear import Apply, bounds
from notsodeep.fixed_points.solvers import Anderson, Solver


@dataclass(frozen=True)
class Splitting(ABC):
    """A way to split z = φ(W z + u): another map T of the same shape, and what its fixed point says of z.

    `alpha` is the size of its steps; None lets W choose. `solver` iterates T.
    """

    alpha: float | None = 1.0
    solver: Solver = Anderson()  # noqa: RUF009 (a frozen value)

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0.0 < as_number(self.alpha) < float("inf"):
            raise BadInput(f"The alpha of {type(self).__name__} must be a positive number, got {self.alpha!r}.")
        if not isinstance(self.solver, Solver):
            raise BadInput(f"The solver of {type(self).__name__} must be a Solver, got {self.solver!r}.")

    @abstractmethod
    def split(self, f: ActivatedRows, like: Tensor) -> Split:
        """T for f and states like `like`, (n, d)."""


@dataclass(frozen=True, eq=False)
class Split:
    """v ↦ T(v) on (n, d), and z of v."""

    step: Apply
    state: Apply


@dataclass(frozen=True)
class PeacemanRachford(Splitting):
    """Peaceman–Rachford: T(v) = (2 R_W − I)(2 R_φ − I) v, z = R_φ(v). One product with (I + α(I − W))⁻¹ a step.

    It contracts for every α > 0 where I − W is strongly monotone. None takes 1/‖I − W‖₂, the best α for the worst W of that
    norm; 1 was quicker wherever we tried. With another α than 1, φ must be positively homogeneous, such as ReLU.
    """

    def split(self, f: ActivatedRows, like: Tensor) -> Split:
        alpha, prox = _alpha_and_prox(self, f, like, lambda norm, _: 1.0 / norm)
        resolvent = f.linear.resolvent(alpha, f.as_states(like))
        shift = alpha * f.u

        def step(v: Tensor) -> Tensor:
            reflected = 2.0 * prox(v) - v
            half = resolvent(f.as_states(reflected + shift)).reshape(v.shape)
            return 2.0 * half - reflected

        return Split(step, prox)


@dataclass(frozen=True)
class ForwardBackward(Splitting):
    """Forward–backward: T(z) = R_φ((1 − α) z + α(W z + u)). One product with W a step, and nothing to invert.

    Plain steps of it converge for α below 2 m/‖I − W‖², m the strong monotonicity; None takes half of that (1 at most), and
    `solver` makes up for what is lost. With another α than 1, φ must be positively homogeneous, such as ReLU. For a W that is
    far from the identity, `PeacemanRachford` takes far fewer steps.
    """

    alpha: float | None = None

    def split(self, f: ActivatedRows, like: Tensor) -> Split:
        alpha, prox = _alpha_and_prox(self, f, like, lambda norm, least: min(max(least, 0.05) / norm**2, 1.0))

        def step(z: Tensor) -> Tensor:
            image = f.product(z) + f.u
            return prox(torch.lerp(z, image, alpha))

        return Split(step, lambda z: z)


def _alpha_and_prox(
    splitting: Splitting, f: ActivatedRows, like: Tensor, default: Callable[[float, float], float]
) -> tuple[float, Apply]:
    f.require_splittable()
    if splitting.alpha == 1.0:
        return 1.0, f.phi
    slopes = slopes_of(f.phi, like)
    if slopes is None:
        if splitting.alpha is not None:
            raise BadInput(
                f"With a φ that is not positively homogeneous {type(splitting).__name__} takes alpha=1, not {splitting.alpha}."
            )
        return 1.0, f.phi
    alpha = splitting.alpha
    if alpha is None:
        sample = like[:1] if -1 in f.shape else like  # W takes one sample wherever it takes any number of them
        norm, least = bounds(f.linear, f.as_states(sample))
        if norm <= torch.finfo(like.dtype).eps:
            raise BadInput(
                f"alpha=None of {type(splitting).__name__} takes alpha from the norm of I − W, which is {norm:.1e}: W is the "
                f"identity, to rounding. Pass a number, {type(splitting).__name__}(alpha=1.0), or a smaller W.",
                norm=norm,
            )
        alpha = default(norm, least)
    positive, negative = (s / ((1.0 - alpha) * s + alpha) for s in slopes)

    def prox(v: Tensor) -> Tensor:
        return torch.where(v > 0, positive, negative) * v

    return alpha, prox


def slopes_of(phi: Callable[[Tensor], Tensor], like: Tensor) -> tuple[Tensor, Tensor] | None:
    """(φ(1), −φ(−1)), the slopes of a positively homogeneous φ right and left of 0; None for another φ.

    Slopes that a φ carries for every number by itself (`Slopes`) are those on both sides.
    """
    own = getattr(phi, "slopes", None)
    if isinstance(own, Tensor):
        return own, own
    points = torch.tensor([-3.0, -1.0, -0.1, 0.1, 1.0, 3.0], dtype=like.dtype, device=like.device)
    with torch.no_grad():
        try:
            right, left, image = phi(points[4:5]), -phi(points[1:2]), phi(points)
        except (RuntimeError, IndexError):  # one with parameters for each number has no two slopes for all of them
            return None
        wanted = torch.where(points > 0, right, left) * points
        same = torch.allclose(image, wanted, rtol=1e-4, atol=1e-6)
    return (right, left) if same and min(float(right), float(left)) >= 0.0 else None
