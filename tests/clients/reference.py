"""A client's fixed point and gradient in float64 with nothing of the library: Newton's method on a dense Jacobian.

With J = ∂f/∂z at z = f(z) and g the loss's gradient, u = (I − J)⁻ᵀ g, and the parameters' gradient is (∂f/∂θ)ᵀ u.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .client import Client, loss

_PLAIN_STEPS, _NEWTON_STEPS, _CLOSE = 400, 30, 1e-13


class Flat:
    """f as a map of one vector."""

    def __init__(self, problem) -> None:
        self.f = problem.f
        leaves, self.spec = pytree.tree_flatten(problem.z0)
        self.shapes = [leaf.shape for leaf in leaves]
        self.start = self.pack(problem.z0)

    def pack(self, state) -> Tensor:
        return torch.cat([leaf.flatten() for leaf in pytree.tree_leaves(state)])

    def unpack(self, vector: Tensor):
        parts = vector.split([shape.numel() for shape in self.shapes])
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return pytree.tree_unflatten(leaves, self.spec)

    def __call__(self, vector: Tensor) -> Tensor:
        return self.pack(self.f(self.unpack(vector)))

    def minus_jacobian(self, vector: Tensor) -> Tensor:
        """I − J."""
        jacobian = torch.func.jacrev(self, chunk_size=128)(vector).detach()
        return torch.eye(len(vector), dtype=vector.dtype) - jacobian


@cache
def reference(client: Client, seed: int = 0) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(z as one vector, the gradients of `loss` with respect to the parameters), in float64."""
    problem = client.build(torch.float64, seed)
    flat = Flat(problem)
    z = _solved(flat, client.damping)
    leaf = z.requires_grad_()
    g = torch.autograd.grad(loss(flat.unpack(leaf)), leaf)[0]
    z = z.detach()
    u = torch.linalg.solve(flat.minus_jacobian(z).mT, g)
    return z, torch.autograd.grad(flat(z), problem.parameters, u, allow_unused=False)


def _solved(flat: Flat, damping: float) -> Tensor:
    """Plain damped steps, then Newton's."""
    with torch.no_grad():
        z = flat.start
        for _ in range(_PLAIN_STEPS):
            z = torch.lerp(z, flat(z), damping)
    for _ in range(_NEWTON_STEPS):
        with torch.no_grad():
            miss = flat(z) - z
        if float(miss.norm()) <= _CLOSE * float(z.norm()):
            return z
        z = z + torch.linalg.solve(flat.minus_jacobian(z), miss)
    raise AssertionError(f"No reference: the residual is still {float(miss.norm() / z.norm()):.1e}.")
