"""Solvers for z = f(z): each says where to look next, the driver (`fixed_point`) does the rest.

A solver is a frozen value with two methods: `init` gives its memory, `step` the next z and the memory. z and f(z) are (n, d),
and every sample (row) is a problem of its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from notsodeep.errors import BadInput


class Solver(ABC):
    """Where to look for a fixed point next."""

    @abstractmethod
    def init(self, z: Tensor) -> Any:
        """The memory before the first step."""

    @abstractmethod
    def step(self, memory: Any, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, Any]:
        """The next z and the memory, given f at the present z and size = ‖f(z) − z‖ of each sample."""


@dataclass(frozen=True)
class Picard(Solver):
    """z ← z + damping·(f(z) − z). For a wide random network it is close to the best there is: the spectrum is a disc."""

    damping: float = 1.0

    def __post_init__(self) -> None:
        _check_damping(self)

    def init(self, z: Tensor) -> None:  # noqa: ARG002
        return None

    def step(self, memory: None, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, None]:  # noqa: ARG002
        return (fz if self.damping == 1.0 else torch.lerp(z, fz, self.damping)), None


@dataclass
class _History:
    """The last iterates and their images, newest last, and whether acceleration has begun; until then, only the last one."""

    z: tuple[Tensor, ...] = ()
    fz: tuple[Tensor, ...] = ()
    size: Tensor | None = None
    engaged: bool = False

    def next(self, z: Tensor, fz: Tensor, size: Tensor, memory: int, engage: float) -> _History:
        """With (z, f(z)) added; engaged once the largest residual shrinks by less than the factor `engage`."""
        engaged = self.engaged or (self.size is not None and not bool(size.max() <= engage * self.size.max()))
        if not engaged:  # nothing to mix yet, and memory that is given back at once is quicker to get again
            return _History((z,), (fz,), size)
        keep = memory + 1
        return _History((*self.z, z)[-keep:], (*self.fz, fz)[-keep:], size, engaged)


@dataclass(frozen=True)
class Anderson(Solver):
    """Anderson mixing: z ← Σ α_j (z_j + damping·r_j), with r = f(z) − z and α, Σ α_j = 1, minimising ‖Σ α_j r_j‖.

    Written in differences ΔZ, ΔR of the last `memory` + 1 iterates and residuals: z ← z + damping·r − (ΔZ + damping·ΔR) γ,
    where γ minimises ‖r − ΔR γ‖² + ridge·mean(‖Δr_j‖²)·‖γ‖². The ridge is relative, so it means the same far from and close
    to the solution. As long as plain steps shrink the batch's largest residual by the factor `engage`, they are taken as they
    are: where Picard is good nothing is better, and mixing would only cost time.

    Ref: Anderson (1965); Walker & Ni (2011).
    """

    memory: int = 5
    ridge: float = 1e-8
    damping: float = 1.0
    engage: float = 0.6

    def __post_init__(self) -> None:
        _check_memory(self)
        _check_damping(self)
        _check_engage(self)
        if not 0.0 <= self.ridge < math.inf:
            raise BadInput(f"The ridge of Anderson must be a finite number ≥ 0, got {self.ridge!r}.")

    def init(self, z: Tensor) -> _History:  # noqa: ARG002
        return _History()

    def step(self, memory: _History, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, _History]:
        now = memory.next(z, fz, size, self.memory, self.engage)
        plain = fz if self.damping == 1.0 else torch.lerp(z, fz, self.damping)
        if not now.engaged or len(now.z) < 2:
            return plain, now
        iterates = torch.stack(now.z, dim=1)  # (n, k + 1, d)
        residuals = torch.stack(now.fz, dim=1) - iterates
        dz, dr = iterates.diff(dim=1), residuals.diff(dim=1)  # (n, k, d)
        gram, along = dr @ dr.mT, dr @ residuals[:, -1, :, None]
        if z.dtype in (torch.float16, torch.bfloat16):  # no linear solver works in these
            gram, along = gram.float(), along.float()
        mean = gram.diagonal(dim1=1, dim2=2).mean(1)
        ridge = max(self.ridge, torch.finfo(z.dtype).eps) * mean
        gram = gram + torch.diag_embed(ridge[:, None].expand(-1, dr.shape[1]))
        gamma = torch.linalg.solve_ex(gram, along)[0].to(z.dtype)  # (n, k, 1)
        mixed = plain - (gamma.mT @ (dz + self.damping * dr))[:, 0]
        # A sample that stands still, or moves by rounding only, has no history to mix (0/0): it takes a plain step.
        usable = (mean > 0) & torch.isfinite(gamma).all(1)[:, 0]
        return torch.where(usable[:, None], mixed, plain), now


@dataclass(frozen=True)
class Broyden(Solver):
    """Broyden's good method on g(z) = f(z) − z: z ← z − H g, with H ≈ (∂g/∂z)⁻¹ = −I + Σ_j u_j v_jᵀ, one more term a step.

    After `memory` terms it begins anew: without its oldest ones H would be the inverse of nothing. `engage` as for
    `Anderson`: while plain steps shrink residuals fast, they are taken.

    Ref: Broyden (1965).
    """

    memory: int = 20
    engage: float = 0.6

    def __post_init__(self) -> None:
        _check_memory(self)
        _check_engage(self)

    def init(self, z: Tensor) -> _Inverse:  # noqa: ARG002
        return _Inverse()

    def step(self, memory: _Inverse, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, _Inverse]:
        now = memory.history.next(z, fz, size, 1, self.engage)
        if not now.engaged or len(now.z) < 2 or len(memory.left) == self.memory:
            return fz, _Inverse(now)
        g = fz - z
        dz, dg = z - now.z[0], g - (now.fz[0] - now.z[0])
        back = memory.apply_transposed(dz)  # Hᵀ Δz
        denominator = (back * dg).sum(1, keepdim=True)  # Δzᵀ H Δg
        noise = torch.finfo(z.dtype).eps * _length(back) * _length(dg)
        usable = denominator.abs() > noise
        change = (dz - memory.apply(dg)) / torch.where(usable, denominator, 1.0)
        inverse = _Inverse(
            now,
            (*memory.left, torch.where(usable, change, 0.0)),
            (*memory.right, back),
        )
        return z - inverse.apply(g), inverse


@dataclass
class _Inverse:
    """H = −I + Σ left_j right_jᵀ, and the iterate that it was last updated at."""

    history: _History = field(default_factory=_History)
    left: tuple[Tensor, ...] = ()
    right: tuple[Tensor, ...] = ()

    def apply(self, v: Tensor) -> Tensor:
        return _rank_one_sum(-v, self.left, self.right, v)

    def apply_transposed(self, v: Tensor) -> Tensor:
        return _rank_one_sum(-v, self.right, self.left, v)


def _rank_one_sum(total: Tensor, left: tuple[Tensor, ...], right: tuple[Tensor, ...], v: Tensor) -> Tensor:
    for a, b in zip(left, right, strict=True):
        total = total + a * (b * v).sum(1, keepdim=True)
    return total


def _length(v: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    return length


def _check_engage(solver: Any) -> None:
    if not 0.0 <= solver.engage <= 1.0:
        raise BadInput(
            f"{type(solver).__name__} begins where residuals shrink by less than the factor engage, in [0, 1]; got "
            f"{solver.engage!r}."
        )


def _check_damping(solver: Any) -> None:
    if not 0.0 < solver.damping <= 1.0:
        raise BadInput(f"The damping of {type(solver).__name__} must be in (0, 1], got {solver.damping!r}.")


def _check_memory(solver: Any) -> None:
    if isinstance(solver.memory, bool) or not isinstance(solver.memory, int) or solver.memory < 1:
        raise BadInput(f"The memory of {type(solver).__name__} must be a whole number ≥ 1, got {solver.memory!r}.")
