"""Operator splitting for z = φ(W z + u) with a monotone W, where plain steps may run away.

With z = φ(h) ⇔ h ∈ φ⁻¹(z), the equation reads 0 ∈ (I − W) z − u + (φ⁻¹ − I) z: a sum of two monotone operators, each easy by
itself. Its first part has the resolvent (I + α(I − W))⁻¹(v + α u), the second R_φ(v) = z with (1 − α) z + α φ⁻¹(z) = v, which
is φ(v) for α = 1 and for ReLU whatever α is.

Ref: Winston & Kolter (2020); Peaceman & Rachford (1955); Lions & Mercier (1979).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from notsodeep.arguments import as_number
from notsodeep.errors import BadInput
from notsodeep.fixed_points.layout import Layout, Map
from notsodeep.fixed_points.linear import Dense, Linear, as_linear, bounds
from notsodeep.fixed_points.solvers import Anderson, Solver


@dataclass(frozen=True, eq=False)
class Activated:
    """f(z) = φ(W z + u), to be given to `fixed_point`: as any f, and also solvable by `PeacemanRachford` and `ForwardBackward`.

    Args:
        phi: An element-wise, non-decreasing function of slope at most 1.
        linear: W: a matrix, or `Dense`, `CircularConvolution` or `Operator`.
        u: The input of every sample, of the shape of the state.
    """

    phi: Map
    linear: Linear | Tensor
    u: Tensor
    weight: Linear = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.phi):
            raise BadInput(f"phi must be a function, got {type(self.phi).__name__}.")
        if not isinstance(self.u, Tensor):
            raise BadInput(f"u must be a tensor that fits the state, got {type(self.u).__name__}.")
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
        """`BadInput` where W and u do not take a state of this shape and dtype."""
        self.weight.require_fit(shape, dtype)
        own = tuple(self.u.shape)
        pairs = zip(reversed(own), reversed(shape), strict=False)
        if len(own) > len(shape) or any(length not in (1, wanted) for length, wanted in pairs):
            raise BadInput(
                f"u has shape {own} and the state {tuple(shape)}: u must have the state's shape, or a shape that torch "
                "broadcasts to it.",
                u=own,
                shape=tuple(shape),
            )
        if self.u.is_complex() != dtype.is_complex:
            raise BadInput(f"u is {self.u.dtype} and the state {dtype}: both must be real, or both complex.")

    def rows(self, layout: Layout) -> ActivatedRows:
        """f as a function of the matrices that `layout` makes of states; where there is none, what says so to a splitting."""
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
    return BadInput(
        f"Activated(phi, W, u) takes a state that is one tensor, got a {kind}: write f as a function instead."
    )


@dataclass(frozen=True, eq=False)
class Slopes:
    """h ↦ D h, with slopes of its own for every number."""

    slopes: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        return h * self.slopes

    def select(self, rows: Tensor) -> Slopes:
        return Slopes(self.slopes[rows])


@dataclass(frozen=True, eq=False)
class ActivatedRows:
    """φ(W z + u) of (n, d) matrices; `shape` is that of the states, with −1 for the number of samples where it may vary.
    `refusal` says why it cannot be split, where other solvers may still do."""

    phi: Map
    linear: Linear
    u: Tensor
    shape: tuple[int, ...]
    refusal: BadInput | None = None

    @staticmethod
    def dense(phi: Map, weight: Tensor, u: Tensor) -> ActivatedRows:
        return ActivatedRows(phi, Dense(weight), u, (-1, u.shape[1]))

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
        with torch.enable_grad():
            inner = h.requires_grad_()
            slopes = torch.autograd.grad(self.phi(inner).sum(), inner)[0]
        return ActivatedRows(Slopes(slopes), self.linear.transposed(), g, self.shape)

    @torch.no_grad()
    def require_splittable(self) -> None:
        """`BadInput` where there is a refusal, or numbers of φ(h) change when others of h do: half of them are moved.

        A splitting takes one slope for each number for the Jacobian of φ: of another φ gradients would be wrong.
        """
        if self.refusal is not None:
            raise self.refusal
        if isinstance(self.phi, Slopes):
            return
        index = torch.arange(self.u.numel(), device=self.u.device)
        moved = (index * 2654435761 // 32768 % 2 == 0).reshape(self.u.shape)  # a pattern without one
        h = self.u.detach() + torch.sin(index.reshape(self.u.shape).to(self.u.dtype))
        try:
            before, after = (self.phi(v) for v in (h, torch.where(moved, h + 1.0, h)))
        except (RuntimeError, IndexError) as error:
            raise BadInput(
                f"phi must be an element-wise function of a tensor of any shape: a splitting calls it with one row for each "
                f"sample, {tuple(h.shape)}, and there it fails: {error}. For a phi that takes axes apart use Anderson()."
            ) from error
        if before.shape != h.shape:
            raise BadInput(
                f"phi must be element-wise: it made {tuple(before.shape)} of numbers of shape {tuple(h.shape)}."
            )
        rounding = 8.0 * torch.finfo(before.dtype).eps
        scale = float(torch.nan_to_num(before, posinf=0.0, neginf=0.0).abs().max())
        kept = before[~moved], after[~moved]
        if not torch.allclose(*kept, rtol=rounding, atol=rounding * scale, equal_nan=True):
            count = int((~torch.isclose(*kept, rtol=rounding, atol=rounding * scale, equal_nan=True)).sum())
            raise BadInput(
                f"phi must be element-wise: {count} of {len(kept[0])} numbers of its image changed when other numbers did, as "
                "with softmax or a norm, and a splitting's gradient would be wrong. Use an activation such as torch.relu, or "
                "solve with Anderson() or Broyden().",
                changed=count,
            )

    def __call__(self, z: Tensor) -> Tensor:
        return self.phi(self.product(z) + self.u)

    @property
    def structure(self) -> ActivatedRows:
        return self


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

    step: Map
    state: Map


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
) -> tuple[float, Map]:
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
