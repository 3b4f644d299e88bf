"""The step s ↦ φ(W s + u) of a single-layer network, in full precision or cheaply, forwards and backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.fixed_points.capture import transforms_active
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.plan import Stage, tf32
from notsodeep.fixed_points.splitting import ActivatedRows, Slopes
from notsodeep.tolerances import BFLOAT16_FLOOR, BFLOAT16_ROUNDING, REFINEMENT_SHARE, TF32_ROUNDING


@dataclass(frozen=True, eq=False)
class AffineStep:
    """step(s, W, u) = φ(s Wᵀ + u), rows of s and u samples; `bind` gives the map for one W and u."""

    phi: Map

    def __call__(self, s: Tensor, weight: Tensor, u: Tensor) -> Tensor:
        # A product and a sum: on a CPU faster than one addmm, which first copies u.
        return self.phi(functional.linear(s, weight) + u)

    def bind(self, weight: Tensor, u: Tensor) -> AffineMap:
        return AffineMap(self.phi, weight, u)

    def adjoint(self, h: Tensor, s: Tensor, weight: Tensor, g: Tensor) -> AffineAdjoint:
        """The adjoint equation at the solution s, given h = W s + u and the cotangent g of s."""
        with torch.enable_grad():
            inner = h.detach().requires_grad_()
            slopes = torch.autograd.grad(self.phi(inner).sum(), inner)[0]
        return AffineAdjoint(slopes, s, weight, g)


@dataclass(frozen=True, eq=False)
class AffineAdjoint:
    """t = D (Wᵀ t + g), D = φ'(h): an affine map too. With t, u's gradient is t and W's is t sᵀ, summed over samples."""

    slopes: Tensor
    s: Tensor
    weight: Tensor
    g: Tensor

    @property
    def start(self) -> Tensor:
        return self.slopes * self.g

    def map(self) -> AffineMap:
        return AffineMap(Slopes(self.slopes), self.weight.mT, self.g)

    def gradients(self, t: Tensor, needed: Sequence[bool]) -> tuple[Tensor | None, Tensor]:
        """Of W, where it is needed, and of u."""
        return (t.mT @ self.s if needed[0] else None), t


class AffineMap:
    """s ↦ φ(W s + u), which can also be carried on from its last value.

    After one product in full precision, h' = h + W (s' − s) needs W times a difference that shrinks as the iteration
    converges: in TF32 or bfloat16 its error is ε ‖s' − s‖, soon far below any tolerance. These errors are added up; past a
    tenth of the tolerance the next product is in full precision again.
    """

    def __init__(self, phi: Map, weight: Tensor, u: Tensor) -> None:
        self.phi, self.weight, self.u = phi, weight, u
        self.latest: tuple[Tensor, Tensor] | None = None
        self.remember = True
        self._drift = 0.0

    selectable = True

    @property
    def structure(self) -> ActivatedRows:
        return ActivatedRows.dense(self.phi, self.weight, self.u)

    def select(self, rows: Tensor) -> AffineMap:
        """The map of some of the samples."""
        phi = self.phi.select(rows) if isinstance(self.phi, Slopes) else self.phi
        some = AffineMap(phi, self.weight, self.u[rows])
        some.remember = False
        return some

    def __call__(self, s: Tensor) -> Tensor:
        h = functional.linear(s, self.weight)
        h = h + self.u if transforms_active() else h.add_(self.u)
        if self.remember:
            self.latest = (s, h)
        return self.phi(h)

    def stages(self, tol: float) -> tuple[Stage, ...]:
        """bfloat16 products at first, then refinement."""
        self.remember, low = True, self.weight.bfloat16()
        budget = REFINEMENT_SHARE * tol

        def product(s: Tensor) -> Tensor:
            return functional.linear(s.bfloat16(), low)

        def rough(s: Tensor) -> Tensor:
            return self.phi(product(s) + self.u)

        def refined(s: Tensor) -> Tensor:
            h = self._carried_on(s, product, budget)
            if h is None:
                return self(s)
            self.latest = (s, h)
            return self.phi(h)

        return (Stage(rough, BFLOAT16_FLOOR), Stage(refined))

    def _carried_on(self, s: Tensor, product: Map, budget: float) -> Tensor | None:
        """W s + u from its last value, or None where that would not be exact enough."""
        if self.latest is None:
            return None
        before, h = self.latest
        change = s - before
        size = float((_norms(change) / _norms(s).clamp(min=torch.finfo(s.dtype).tiny)).max())
        rounding = TF32_ROUNDING if s.is_cuda else BFLOAT16_ROUNDING
        self._drift += rounding * size
        if not self._drift <= budget:
            self._drift = 0.0
            return None
        if not s.is_cuda:
            return h + product(change)
        with tf32():
            return torch.addmm(h, change, self.weight.mT)


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms
