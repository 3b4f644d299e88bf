"""Solvers for z = f(z): each chooses the next z, the loop (`iterate`) does the rest.

A solver is a frozen value with two methods: `init` gives its memory, `step` the next z and the memory. z and f(z) are (n, d),
and every sample (row) is a problem of its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import as_number, count, shown
from notsodeep.errors import BadInput
from notsodeep.fixed_points.layout import HALF
from notsodeep.fixed_points.window import Differences, Window, differences, window

# The relative error of products of differences, in units of the dtype's rounding: a smaller ridge would have no effect.
_ROUNDING = 10.0
_SELDOM = 4  # steps per mixed one while plain steps are fast: mixing then saves a quarter of a step, and costs a tenth


class Solver(ABC):
    """A rule for the next z. `rowwise` means that it takes any number of samples at every step."""

    rowwise = True

    @abstractmethod
    def init(self, z: Tensor) -> Any:
        """The memory before the first step."""

    @abstractmethod
    def step(self, memory: Any, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, Any]:
        """The next z and the memory, given f at the present z and size = ‖f(z) − z‖ of each sample."""


def require(owner: object, name: str, wanted: str, valid: bool) -> None:
    """Raise `BadInput` unless the attribute `name` of `owner` is valid."""
    if not valid:
        raise BadInput(f"The {name} of {type(owner).__name__} must be {wanted}, got {shown(getattr(owner, name))}.")


def _check_damping(solver: Picard | Anderson) -> None:
    require(solver, "damping", "in (0, 1]", 0.0 < as_number(solver.damping) <= 1.0)


def _check_mixing(solver: Anderson | Broyden) -> None:
    count(solver.memory, f"`memory` of {type(solver).__name__}")
    wanted = "in [0, 1], the factor by which plain steps must shrink residuals to be kept"
    require(solver, "engage", wanted, 0.0 <= as_number(solver.engage) <= 1.0)


@dataclass(frozen=True)
class Picard(Solver):
    """z ← z + damping·(f(z) − z). Close to the best solver for a wide random network, whose spectrum is a disc.

    Args:
        damping: The share of each step that is taken, in (0, 1].

    Raises:
        BadInput: An argument is out of range.
    """

    damping: float = 1.0

    def __post_init__(self) -> None:
        _check_damping(self)

    def init(self, z: Tensor) -> None:  # noqa: ARG002
        return None

    def step(self, memory: None, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, None]:  # noqa: ARG002
        return (fz if self.damping == 1.0 else torch.lerp(z, fz, self.damping)), None


@dataclass
class _Pace:
    """The batch's largest residual at the last step, and whether plain steps were too slow once."""

    worst: float | None = None
    engaged: bool = False

    def next(self, size: Tensor, engage: float) -> _Pace:
        """The pace after one more step, engaged once the largest residual shrinks by less than the factor `engage`."""
        if self.engaged:
            return self
        worst = size.item() if len(size) == 1 else float(size.detach().max())
        return _Pace(worst, self.worst is not None and not worst <= engage * self.worst)


@dataclass
class _Mixture:
    """Anderson's memory: differences of residuals and of images, and the iterates with their images since the last mixing.

    Until it is engaged, `since` holds the last iterate alone, and `plain` counts the plain steps since the last mixed one.
    """

    pace: _Pace = field(default_factory=_Pace)
    since: tuple[tuple[Tensor, Tensor], ...] = ()
    plain: int = 0
    residuals: Differences | None = None
    images: Differences | None = None
    mixed: int = 0  # differences that the last step mixed
    fresh: int = 0  # how many of them were new


@dataclass(frozen=True)
class Anderson(Solver):
    """Anderson mixing, periodic: z ← Σ α_j (z_j + damping·r_j), with r = f(z) − z and α, Σ α_j = 1, minimising ‖Σ α_j r_j‖.

    Written in differences ΔF, ΔR of the last `memory` + 1 images and residuals, with c = 1 − damping:
    z ← f − c·r − (ΔF − c·ΔR) γ, where γ minimises ‖r − ΔR γ‖² + ridge·mean(‖Δr_j‖²)·‖γ‖². The ridge is relative, so it
    means the same far from and close to the solution.

    Args:
        memory: How many differences are mixed.
        ridge: The relative ridge of the least squares.
        damping: The share of each step that is taken, in (0, 1].
        engage: While plain steps shrink the batch's largest residual by this factor, one step in four is mixed, and with one
            difference: there mixing gains little.
        every: One step in so many is mixed: about as few are needed, and mixing costs as much as a small layer.

    Raises:
        BadInput: An argument is out of range.

    Ref: Anderson (1965); Walker & Ni (2011); Banerjee, Suryanarayana & Pask (2016).
    """

    memory: int = 5
    ridge: float = 1e-8
    damping: float = 1.0
    engage: float = 0.4
    every: int = 2

    def __post_init__(self) -> None:
        _check_mixing(self)
        _check_damping(self)
        count(self.every, "`every` of Anderson")
        require(self, "ridge", "a finite number ≥ 0", 0.0 <= as_number(self.ridge) < math.inf)

    def init(self, z: Tensor) -> _Mixture:  # noqa: ARG002
        return _Mixture()

    def step(self, memory: _Mixture, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, _Mixture]:
        pace = memory.pace.next(size, self.engage)
        plain = fz if self.damping == 1.0 else torch.lerp(z, fz, self.damping)
        if not pace.engaged:
            if memory.plain + 1 < _SELDOM or z.dtype in HALF:  # whose squares overflow
                return plain, _Mixture(pace, ((z, fz),), memory.plain + 1)
            return self._secant(*memory.since[-1], z, fz), _Mixture(pace, ((z, fz),), mixed=1, fresh=1)
        since = (*memory.since, (z, fz))
        residuals, images = memory.residuals, memory.images
        if len(since) < (self.every if residuals is not None else max(self.every, 2)):
            return plain, _Mixture(pace, since, 0, residuals, images)
        if residuals is None or images is None:
            (before, image), since = since[0], since[1:]
            residuals, images = differences(image - before, self.memory), differences(image, self.memory)
        residuals = residuals.push([image - before for before, image in since])
        images = images.push([image for _, image in since])
        gamma = self._coefficients(*residuals.products(), z.dtype)
        mixed = torch.baddbmm(plain[:, None], gamma, images.stacked(), alpha=-1.0)
        if self.damping < 1.0:
            mixed = torch.baddbmm(mixed, gamma, residuals.stacked(), alpha=1.0 - self.damping)
        return mixed[:, 0], _Mixture(pace, (), 0, residuals, images, gamma.shape[-1], len(since))

    def _secant(self, before: Tensor, image: Tensor, z: Tensor, fz: Tensor) -> Tensor:
        """The mixture of two iterates with their images: γ = ⟨Δr, r⟩/⟨Δr, Δr⟩ from two products, without a window."""
        r = fz - z
        change = r - (image - before)
        along, square = torch.linalg.vecdot(change, r)[:, None], torch.linalg.vecdot(change, change)[:, None]
        moves = square > 0.0  # a sample that stands still takes a plain step; 0/0 would have no gradient
        gamma = torch.where(moves, along / torch.where(moves, square, 1.0), 0.0)
        if self.damping < 1.0:
            fz, image = torch.lerp(z, fz, self.damping), torch.lerp(before, image, self.damping)
        return torch.lerp(fz, image, gamma)

    def _coefficients(self, along: Tensor, gram: Tensor, dtype: torch.dtype) -> Tensor:
        """γ, (n, 1, k), from the products of the differences with the residual and with each other."""
        if dtype in HALF:  # no linear solver works in these
            along, gram = along.float(), gram.float()
        least = max(self.ridge, _ROUNDING * torch.finfo(dtype).eps)
        ridge = least * gram.diagonal(dim1=1, dim2=2).mean(1, keepdim=True)
        gamma = torch.linalg.solve_ex(gram + torch.diag_embed(ridge.expand(along.shape)), along[..., None])[0]
        # A sample that stands still, or moves by rounding only, has no history to mix (0/0): it takes a plain step.
        gamma = torch.nan_to_num(gamma, nan=0.0, posinf=0.0, neginf=0.0)
        return gamma.to(dtype).reshape(len(gamma), 1, -1)


@dataclass
class _Inverse:
    """H = −I + Σ left_j right_jᵀ, and (z, g) where it was last updated."""

    pace: _Pace = field(default_factory=_Pace)
    last: tuple[Tensor, Tensor] | None = None
    left: Window | None = None
    right: Window | None = None
    terms: int = 0

    def apply(self, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """H v and H w, in one pass over the terms."""
        if self.left is None or self.right is None:
            return -v, -w
        both = torch.stack([v, w], dim=1)
        image = torch.bmm(torch.bmm(both, self.right.stacked().mT), self.left.stacked()) - both
        return image[:, 0], image[:, 1]

    def apply_transposed(self, v: Tensor) -> Tensor:
        if self.left is None or self.right is None:
            return -v
        return torch.bmm(torch.bmm(v[:, None], self.left.stacked().mT), self.right.stacked())[:, 0] - v


@dataclass(frozen=True)
class Broyden(Solver):
    """Broyden's good method on g(z) = f(z) − z: z ← z − H g, with H ≈ (∂g/∂z)⁻¹ = −I + Σ_j u_j v_jᵀ, one more term per step.

    Args:
        memory: The most terms; then it begins anew, as H without its oldest terms would approximate no inverse.
        engage: While plain steps shrink the batch's largest residual by this factor, all steps are plain.

    Raises:
        BadInput: An argument is out of range.

    Ref: Broyden (1965).
    """

    memory: int = 20
    engage: float = 0.6

    def __post_init__(self) -> None:
        _check_mixing(self)

    def init(self, z: Tensor) -> _Inverse:  # noqa: ARG002
        return _Inverse()

    def step(self, memory: _Inverse, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, _Inverse]:
        pace = memory.pace.next(size, self.engage)
        g = fz - z
        if not pace.engaged or memory.last is None or memory.terms == self.memory:
            return fz, _Inverse(pace, (z, g))
        before, g_before = memory.last
        dz, dg = z - before, g - g_before
        back = memory.apply_transposed(dz)  # Hᵀ Δz
        forward, ahead = memory.apply(g, dg)
        denominator = (back * dg).sum(1, keepdim=True)  # Δzᵀ H Δg
        lengths = [torch.linalg.vector_norm(v, dim=1, keepdim=True) for v in (back, dg)]
        usable = denominator.abs() > torch.finfo(z.dtype).eps * lengths[0] * lengths[1]  # otherwise it is rounding
        change = torch.where(usable, (dz - ahead) / torch.where(usable, denominator, 1.0), 0.0)
        following = z - forward - change * (back * g).sum(1, keepdim=True)
        left = window(z, self.memory) if memory.left is None else memory.left
        right = window(z, self.memory) if memory.right is None else memory.right
        return following, _Inverse(pace, (z, g), left.push(change), right.push(back), memory.terms + 1)


@dataclass(frozen=True)
class Preconditioned(Solver):
    """`solver` on the map z ↦ z + P(f(z) − z), whose fixed points are f's: with P ≈ (I − J)⁻¹ it takes few steps.

    For the gradient, use `ImplicitAdjoint(Preconditioned(…))` with the transpose of P.

    Args:
        apply: P, a function of a residual laid out like the state.
        solver: The solver of the preconditioned map.

    Raises:
        BadInput: An argument has the wrong type.
    """

    apply: Callable[[Any], Any]
    solver: Solver = Anderson()
    rowwise = False

    def __post_init__(self) -> None:
        if not callable(self.apply) or not isinstance(self.solver, Solver):
            raise BadInput(f"Preconditioned takes a function and a solver, got {shown(self.apply)} and {shown(self.solver)}.")

    def init(self, z: Tensor) -> Any:
        return self.solver.init(z)

    def step(self, memory: Any, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, Any]:  # noqa: ARG002
        r: Tensor = self.apply(fz - z)
        return self.solver.step(memory, z, z + r, torch.linalg.vector_norm(r, dim=1))


def selected(memory: Any, rows: Tensor) -> Any:
    """A solver's memory of some of the samples.

    It may hold tensors, windows, and tuples, lists, dicts or dataclasses of them; anything else stays as it is.
    """
    if isinstance(memory, Tensor):
        return memory[rows] if memory.ndim else memory
    if isinstance(memory, tuple | list):
        parts = [selected(part, rows) for part in memory]
        kind: Any = type(memory)
        return kind(*parts) if hasattr(kind, "_fields") else parts if isinstance(memory, list) else tuple(parts)
    if isinstance(memory, dict):
        return {key: selected(part, rows) for key, part in memory.items()}
    select = getattr(memory, "select", None)
    if select is not None:
        return select(rows)
    if is_dataclass(memory) and not isinstance(memory, type):
        return replace(memory, **{part.name: selected(getattr(memory, part.name), rows) for part in fields(memory)})
    return memory
