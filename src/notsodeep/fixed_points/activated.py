"""Maps z ↦ φ(W z + u) that show their parts, as splittings need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.fixed_points.layout import Layout
from notsodeep.fixed_points.linear import Dense, Linear, as_linear

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Activated:
    """f(z) = φ(W z + u), to be given to `fixed_point`: as any f, and also solvable by `PeacemanRachford` and `ForwardBackward`.

    Args:
        phi: An element-wise, non-decreasing function of slope at most 1.
        linear: W: a matrix, or `Dense`, `CircularConvolution` or `Operator`.
        u: The input of every sample, of the shape of the state.
    """

    phi: Function
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

    phi: Function
    linear: Linear
    u: Tensor
    shape: tuple[int, ...]
    refusal: BadInput | None = None

    @staticmethod
    def dense(phi: Function, weight: Tensor, u: Tensor) -> ActivatedRows:
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
