"""The step s ↦ φ(W s + u) of a single-layer network, in full or lower precision, forwards and backwards."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.fixed_points.capture import transforms_active
from notsodeep.fixed_points.layout import Map
from notsodeep.fixed_points.linear import Dense
from notsodeep.fixed_points.plan import Stage, tf32
from notsodeep.fixed_points.splitting import ActivatedRows, Slopes, slopes_at
from notsodeep.tolerances import BFLOAT16_FLOOR, BFLOAT16_ROUNDING, REFINEMENT_SHARE, TF32_ROUNDING


@dataclass(frozen=True, eq=False)
class AffineStep:
    """step(s, W, u) = φ(s Wᵀ + u), one sample per row of s and u; `bind` gives the map for one W and u."""

    phi: Map

    def __call__(self, s: Tensor, weight: Tensor, u: Tensor) -> Tensor:
        # A product and a sum: on a CPU faster than one addmm, which first copies u.
        return self.phi(functional.linear(s, weight) + u)

    def bind(self, weight: Tensor, u: Tensor) -> AffineMap:
        return AffineMap(self.phi, weight, u)

    def adjoint(self, h: Tensor, weight: Tensor, g: Tensor) -> AffineMap:
        """t ↦ D (Wᵀ t + g), D = φ'(h), at h = W s + u for the cotangent g of s.

        At its fixed point t, u's gradient is t and W's is t sᵀ, summed over samples.
        """
        return AffineMap(Slopes(slopes_at(self.phi, h)), weight.mT, g)


class AffineMap:
    """s ↦ φ(W s + u), which can also be updated from its last value.

    After one product in full precision, h' = h + W (s' − s) needs W times a difference that shrinks as the iteration
    converges: in TF32 or bfloat16 its error is ε ‖s' − s‖, soon far below any tolerance. These errors are added up; past a
    tenth of the tolerance the next product is in full precision again.
    """

    selectable = True

    def __init__(self, phi: Map, weight: Tensor, u: Tensor) -> None:
        self.phi, self.weight, self.u = phi, weight, u
        self.latest: tuple[Tensor, Tensor] | None = None
        self.remember = True
        self._drift = 0.0

    @property
    def structure(self) -> ActivatedRows:
        return ActivatedRows(self.phi, Dense(self.weight), self.u, (-1, self.u.shape[1]))

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
        """Products in bfloat16 first, then updates of the last full product."""
        self.remember, low = True, self.weight.bfloat16()
        budget = REFINEMENT_SHARE * tol

        def product(s: Tensor) -> Tensor:
            return functional.linear(s.bfloat16(), low)

        def refined(s: Tensor) -> Tensor:
            h = self._updated(s, product, budget)
            if h is None:
                return self(s)
            self.latest = (s, h)
            return self.phi(h)

        return (Stage(lambda s: self.phi(product(s) + self.u), BFLOAT16_FLOOR), Stage(refined))

    def _updated(self, s: Tensor, product: Map, budget: float) -> Tensor | None:
        """W s + u from its last value; None where the error would exceed the budget."""
        if self.latest is None:
            return None
        before, h = self.latest
        change = s - before
        length, moved = (torch.linalg.vector_norm(v, dim=1) for v in (s, change))
        size = float((moved / length.clamp(min=torch.finfo(s.dtype).tiny)).max())
        self._drift += (TF32_ROUNDING if s.is_cuda else BFLOAT16_ROUNDING) * size
        if not self._drift <= budget:
            self._drift = 0.0
            return None
        if not s.is_cuda:
            return h + product(change)
        with tf32():
            return torch.addmm(h, change, self.weight.mT)
