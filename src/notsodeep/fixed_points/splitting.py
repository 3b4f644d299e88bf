"""Operator splitting for z = φ(W z + u) with a monotone W, where plain steps may diverge; and maps that show φ, W and u.

With z = φ(h) ⇔ h ∈ φ⁻¹(z), the equation reads 0 ∈ (I − W) z − u + (φ⁻¹ − I) z: a sum of two monotone operators, each easy by
itself. Its first part has the resolvent (I + α(I − W))⁻¹(v + α u), the second R_φ(v) = z with (1 − α) z + α φ⁻¹(z) = v, which
is φ(v) for α = 1, and for ReLU with every α.

Ref: Winston & Kolter (2020); Peaceman & Rachford (1955); Lions & Mercier (1979).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from notsodeep.arguments import as_number, instance
from notsodeep.errors import BadInput
from notsodeep.fixed_points.layout import Map, StateLayout
from notsodeep.fixed_points.linear import Linear, as_linear, bounds
from notsodeep.fixed_points.solvers import Anderson, Solver, require


@dataclass(frozen=True, eq=False)
class Activated:
    """f(z) = φ(W z + u) for `fixed_point`: any solver takes it, `PeacemanRachford` and `ForwardBackward` only such an f.

    Args:
        phi: An element-wise, non-decreasing function of slope at most 1.
        linear: W: a matrix, or `Dense`, `CircularConvolution` or `Operator`.
        u: The input of every sample, of the shape of the state.

    Raises:
        BadInput: An argument has the wrong type, or W is not square.
    """

    phi: Map
    linear: Linear | Tensor
    u: Tensor
    weight: Linear = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.phi):
            raise BadInput(f"phi must be a function, got {type(self.phi).__name__}.")
        instance(self.u, Tensor, "u", "a tensor that fits the state")
        object.__setattr__(self, "weight", as_linear(self.linear))

    def __call__(self, z: Tensor) -> Tensor:
        try:
            h = self.weight(z) + self.u
        except (RuntimeError, TypeError, AttributeError):
            if not isinstance(z, Tensor):
                raise _not_one_tensor(type(z).__name__) from None
            self.require_fit(z.shape, z.dtype)
            raise
        return self.phi(h)

    def require_fit(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Raise `BadInput`, with both shapes, unless W and u take states of this shape and dtype."""
        self.weight.require_fit(shape, dtype)
        own = tuple(self.u.shape)
        pairs = zip(reversed(own), reversed(shape), strict=False)
        if len(own) > len(shape) or any(length not in (1, wanted) for length, wanted in pairs):
            raise BadInput(
                f"u has shape {own} and the state {tuple(shape)}: u must have that shape, or broadcast to it.",
                u=own,
                shape=tuple(shape),
            )
        if self.u.is_complex() != dtype.is_complex:
            raise BadInput(f"u is {self.u.dtype} and the state {dtype}: both must be real, or both complex.")

    def rows(self, layout: StateLayout) -> ActivatedRows:
        """f as a function of the matrices that `layout` makes of states; with the splittings' error where it has no split."""
        shape, dtype = tuple(layout.shapes[0]), layout.dtypes[0]
        try:
            if not layout.spec.is_leaf():
                raise _not_one_tensor(layout.spec.type.__name__)
            if dtype.is_complex:
                raise BadInput(
                    f"The state is {str(dtype).removeprefix('torch.')}, and a splitting needs an order of numbers: it takes "
                    "real states. Use Picard(), Anderson() or Broyden()."
                )
            self.require_fit(shape, dtype)
        except BadInput as error:
            return ActivatedRows(self.phi, self.weight, self.u.detach(), shape, error)
        free = (-1, *shape[1:]) if shape and shape[0] == layout.samples else shape
        return ActivatedRows(self.phi, self.weight, layout.pack(self.u.detach().expand(shape)), free)


def _not_one_tensor(kind: str) -> BadInput:
    return BadInput(f"Activated(phi, W, u) takes a state that is one tensor, got a {kind}: write f as a function.")


@dataclass(frozen=True, eq=False)
class Slopes:
    """h ↦ D h, with a slope for every number."""

    slopes: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        return h * self.slopes

    def select(self, rows: Tensor) -> Slopes:
        return Slopes(self.slopes[rows])


def slopes_at(phi: Map, h: Tensor) -> Tensor:
    """φ'(h) of an element-wise φ."""
    with torch.enable_grad():
        inner = h.detach().requires_grad_()
        return torch.autograd.grad(phi(inner).sum(), inner)[0]


@dataclass(frozen=True, eq=False)
class ActivatedRows:
    """φ(W z + u) of (n, d) matrices.

    `shape` is that of the states, with −1 for the number of samples where it may vary. `refusal` is the error of a splitting
    where it cannot split this map; other solvers may still take it.
    """

    phi: Map
    linear: Linear
    u: Tensor
    shape: tuple[int, ...]
    refusal: BadInput | None = None

    def __call__(self, z: Tensor) -> Tensor:
        return self.phi(self.product(z) + self.u)

    def as_states(self, z: Tensor) -> Tensor:
        """(n, d) in the shape that W takes."""
        return z.reshape(self.shape)

    def product(self, z: Tensor) -> Tensor:
        """W z."""
        return self.linear(self.as_states(z)).reshape(z.shape)

    def adjoint(self, z: Tensor, g: Tensor) -> ActivatedRows:
        """t = D (Wᵀ t + g), D = φ'(W z + u): with u = Wᵀ t + g, u = Jᵀ u + g for J = D W."""
        self.require_splittable()
        with torch.no_grad():
            h = self.product(z) + self.u
        return ActivatedRows(Slopes(slopes_at(self.phi, h)), self.linear.transposed(), g, self.shape)

    @torch.no_grad()
    def require_splittable(self) -> None:
        """Raise `BadInput` where the map cannot be split, or φ is not element-wise: moving half of h changes the other half.

        A splitting takes one slope per number for the Jacobian of φ: with another φ gradients would be wrong.
        """
        if self.refusal is not None:
            raise self.refusal
        if isinstance(self.phi, Slopes):
            return
        index = torch.arange(self.u.numel(), device=self.u.device)
        moved = (index * 2654435761 // 32768 % 2 == 0).reshape(self.u.shape)  # a pattern without a period
        h = self.u.detach() + torch.sin(index.reshape(self.u.shape).to(self.u.dtype))
        try:
            before, after = (self.phi(v) for v in (h, torch.where(moved, h + 1.0, h)))
        except (RuntimeError, IndexError) as error:
            raise BadInput(
                f"phi must be an element-wise function of a tensor of any shape: a splitting calls it with one row for each "
                f"sample, {tuple(h.shape)}, and there it fails: {error}. For a phi that takes axes apart use Anderson()."
            ) from error
        if before.shape != h.shape:
            raise BadInput(f"phi must be element-wise: it made shape {tuple(before.shape)} of {tuple(h.shape)}.")
        rounding = 8.0 * torch.finfo(before.dtype).eps
        scale = float(torch.nan_to_num(before, posinf=0.0, neginf=0.0).abs().max())
        kept = before[~moved], after[~moved]
        count = int((~torch.isclose(*kept, rtol=rounding, atol=rounding * scale, equal_nan=True)).sum())
        if count:
            raise BadInput(
                f"phi must be element-wise: {count} of {len(kept[0])} numbers of its image changed when other numbers did, as "
                "with softmax or a norm, and a splitting's gradient would be wrong. Use an activation such as torch.relu, or "
                "solve with Anderson() or Broyden().",
                changed=count,
            )


@dataclass(frozen=True)
class Splitting(ABC):
    """A way to split z = φ(W z + u): another map T of the same shape, and z as a function of its fixed point.

    Args:
        alpha: The size of its steps; None derives it from W.
        solver: The solver that iterates T.

    Raises:
        BadInput: An argument cannot be used.
    """

    alpha: float | None = 1.0
    solver: Solver = Anderson()  # noqa: RUF009 (a frozen value)

    def __post_init__(self) -> None:
        require(self, "alpha", "a positive number", self.alpha is None or 0.0 < as_number(self.alpha) < math.inf)
        instance(self.solver, Solver, f"The solver of {type(self).__name__}", "a Solver")

    @abstractmethod
    def split(self, f: ActivatedRows, like: Tensor) -> tuple[Map, Map]:
        """v ↦ T(v) of `f`, for states like `like`, (n, d); and z as a function of v."""


@dataclass(frozen=True)
class PeacemanRachford(Splitting):
    """Peaceman–Rachford: T(v) = (2 R_W − I)(2 R_φ − I) v, z = R_φ(v). One product with (I + α(I − W))⁻¹ per step.

    It contracts for every α > 0 where I − W is strongly monotone.

    Args:
        alpha: α. None takes 1/‖I − W‖₂, the best α for the worst W of that norm; 1 was quicker wherever we tried. With another
            α than 1, φ must be positively homogeneous, such as ReLU.
        solver: The solver that iterates T.

    Raises:
        BadInput: An argument cannot be used.
    """

    def split(self, f: ActivatedRows, like: Tensor) -> tuple[Map, Map]:
        alpha, prox = _alpha_and_prox(self, f, like, lambda norm, _: 1.0 / norm)
        resolvent = f.linear.resolvent(alpha, f.as_states(like))
        shift = alpha * f.u

        def step(v: Tensor) -> Tensor:
            reflected = 2.0 * prox(v) - v
            half = resolvent(f.as_states(reflected + shift)).reshape(v.shape)
            return 2.0 * half - reflected

        return step, prox


@dataclass(frozen=True)
class ForwardBackward(Splitting):
    """Forward–backward: T(z) = R_φ((1 − α) z + α(W z + u)). One product with W per step, and no inverse.

    Its plain steps converge for α below 2 m/‖I − W‖², m the strong monotonicity. For a W far from the identity,
    `PeacemanRachford` takes far fewer steps.

    Args:
        alpha: α. None takes half of that bound (1 at most), and `solver` makes up for the smaller steps. With another α than
            1, φ must be positively homogeneous, such as ReLU.
        solver: The solver that iterates T.

    Raises:
        BadInput: An argument cannot be used.
    """

    alpha: float | None = None

    def split(self, f: ActivatedRows, like: Tensor) -> tuple[Map, Map]:
        alpha, prox = _alpha_and_prox(self, f, like, lambda norm, least: min(max(least, 0.05) / norm**2, 1.0))
        return lambda z: prox(torch.lerp(z, f.product(z) + f.u, alpha)), lambda z: z


def _alpha_and_prox(
    splitting: Splitting, f: ActivatedRows, like: Tensor, default: Callable[[float, float], float]
) -> tuple[float, Map]:
    """α, and R_φ for it; `default` gives α from (‖I − W‖₂, m)."""
    f.require_splittable()
    alpha, name = splitting.alpha, type(splitting).__name__
    slopes = None if alpha == 1.0 else slopes_of(f.phi, like)
    if slopes is None:
        if alpha not in (None, 1.0):
            raise BadInput(f"With a φ that is not positively homogeneous {name} takes alpha=1, not {alpha}.")
        return 1.0, f.phi
    if alpha is None:
        sample = like[:1] if -1 in f.shape else like  # W takes one sample wherever it takes any number of them
        norm, least = bounds(f.linear, f.as_states(sample))
        if norm <= torch.finfo(like.dtype).eps:
            raise BadInput(
                f"alpha=None of {name} takes alpha from the norm of I − W, which is {norm:.1e}: W is the identity, to "
                f"rounding. Pass a number, {name}(alpha=1.0), or a smaller W.",
                norm=norm,
            )
        alpha = default(norm, least)
    positive, negative = (s / ((1.0 - alpha) * s + alpha) for s in slopes)
    return alpha, lambda v: torch.where(v > 0, positive, negative) * v


def slopes_of(phi: Map, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """(φ(1), −φ(−1)), the slopes of a positively homogeneous φ right and left of 0; None for another φ.

    The slopes of `Slopes` are the same on both sides.
    """
    own = getattr(phi, "slopes", None)
    if isinstance(own, Tensor):
        return own, own
    points = torch.tensor([-3.0, -1.0, -0.1, 0.1, 1.0, 3.0], dtype=like.dtype, device=like.device)
    with torch.no_grad():
        try:
            right, left, image = phi(points[4:5]), -phi(points[1:2]), phi(points)
        except (RuntimeError, IndexError):  # a φ with parameters for each number has no two slopes for all of them
            return None
        wanted = torch.where(points > 0, right, left) * points
        same = torch.allclose(image, wanted, rtol=1e-4, atol=1e-6)
    return (right, left) if same and min(float(right), float(left)) >= 0.0 else None
