"""What torchdeq attaches to a state that a solver found: phantom steps, the exact gradient, the spectral radius."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.fixed_points.precision import Map
from notsodeep.fixed_points.torchdeq_options import Method
from notsodeep.fixed_points.torchdeq_solve import solve
from notsodeep.numerics.arnoldi import spectral_radii

Writer = Callable[[dict[str, Tensor]], object]


@dataclass(frozen=True)
class Phantom:
    """`steps` damped steps z ← z + tau·(f(z) − z) that are differentiated, and which of them to return.

    Every `gap`-th where that is positive; otherwise those at `places`, if any, and the last.
    """

    steps: int
    tau: float = 1.0
    gap: int = -1
    places: Sequence[int] = ()

    def __call__(self, step: Map, z: Tensor) -> list[Tensor]:
        states = []
        for k in range(1, self.steps + 1):
            image = step(z)
            z = image if self.tau == 1.0 else torch.lerp(z, image, self.tau)
            if k % self.gap == 0 if self.gap > 0 else k in self.places:
                states.append(z)
        return states if self.gap > 0 else [*states, z]


@dataclass(frozen=True, eq=False)
class Implicit:
    """f(z), whose gradient is the exact one at a fixed point z: a cotangent g becomes u = Jᵀu + g on its way to f's tensors."""

    method: Method
    writer: Writer | None = None

    def __call__(self, step: Map, z: Tensor) -> list[Tensor]:
        if not torch.is_grad_enabled():
            return [step(z)]
        here = z.detach().requires_grad_()
        image = step(here)
        if not image.requires_grad:
            return [image]
        # A copy, so that the hook is not called by the products with J, which begin at the image itself.
        out = image.clone()
        out.register_hook(lambda g: self._solve(here, image, g))
        return [out]

    def _solve(self, here: Tensor, image: Tensor, g: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise BadInput(
                "A gradient of this gradient (create_graph=True) would be wrong here, as it is in torchdeq. "
                "notsodeep.fixed_point(f, z0) has exact gradients of any order."
            )
        start = torch.zeros_like(g)

        def pull(u: Tensor) -> Tensor:
            if u is start:  # Jᵀ0 + g needs no product
                return g
            product = torch.autograd.grad(image, here, u, retain_graph=True, allow_unused=True)[0]
            return g if product is None else product + g

        found = solve(pull, start, self.method)
        if self.writer is not None:
            self.writer(found.info)
        return found.value


def spectral_radius(step: Map, z: Tensor) -> Tensor:
    """(n,): the largest |eigenvalue| of ∂f/∂z at each sample's z."""
    with torch.enable_grad():
        here = z.detach().requires_grad_()
        image = step(here)

    def transposed(v: Tensor) -> Tensor:  # Jᵀ has the eigenvalues of J
        product: Tensor = torch.autograd.grad(image, here, v, retain_graph=True)[0]
        return product

    # A start of its own generator: the program's random numbers stay as they are.
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(z.shape, generator=draw, dtype=z.dtype).to(z.device)
    return spectral_radii(transposed, start)
