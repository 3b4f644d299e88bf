"""The step s ↦ φ(W s + u) of a single-layer network, in full precision or cheaply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.numerics.precision import Stage, tf32
from notsodeep.numerics.tolerances import BFLOAT16_FLOOR

_TF32_ROUNDING = 2.0**-11
_SHARE_OF_TOLERANCE = 0.1


@dataclass(frozen=True, eq=False)
class AffineStep:
    """step(s, W, u) = φ(s Wᵀ + u), rows of s and u samples; `bind` gives the map for one W and u."""

    phi: Callable[[Tensor], Tensor]

    def __call__(self, s: Tensor, weight: Tensor, u: Tensor) -> Tensor:
        # A product and a sum: on a CPU faster than one addmm, which first copies u.
        return self.phi(functional.linear(s, weight) + u)

    def bind(self, weight: Tensor, u: Tensor) -> AffineMap:
        return AffineMap(self.phi, weight, u)


class AffineMap:
    """s ↦ φ(W s + u), which can also be carried on from its last value.

    After one product in full precision, h' = h + W (s' − s) needs W times a difference that shrinks as the iteration
    converges: in TF32 its error is 2⁻¹¹ ‖s' − s‖, soon far below any tolerance. `drift` adds these errors up; past a tenth of
    the tolerance the next product is in full precision again.
    """

    def __init__(self, phi: Callable[[Tensor], Tensor], weight: Tensor, u: Tensor) -> None:
        self.phi, self.weight, self.u = phi, weight, u
        self._anchor: tuple[Tensor, Tensor] | None = None
        self._drift = 0.0

    def __call__(self, s: Tensor) -> Tensor:
        return self.phi(functional.linear(s, self.weight) + self.u)

    def stages(self, tol: float) -> tuple[Stage, ...]:
        """bfloat16 products at first, then refinement."""
        low = self.weight.bfloat16()
        budget = _SHARE_OF_TOLERANCE * tol

        def rough(s: Tensor) -> Tensor:
            return self.phi(functional.linear(s.bfloat16(), low) + self.u)

        return (Stage(rough, BFLOAT16_FLOOR), Stage(lambda s: self._refined(s, budget)))

    def _refined(self, s: Tensor, budget: float) -> Tensor:
        h = None
        if self._anchor is not None:
            before, h_before = self._anchor
            change = s - before
            self._drift += _TF32_ROUNDING * float((_norms(change) / _norms(s).clamp(min=1e-30)).max())
            if self._drift <= budget:
                with tf32():
                    h = torch.addmm(h_before, change, self.weight.mT)
        if h is None:
            h, self._drift = functional.linear(s, self.weight) + self.u, 0.0
        self._anchor = (s, h)
        return self.phi(h)


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms
