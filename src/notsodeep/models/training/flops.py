"""The cost of training: multiplications and additions of the matrix products, per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.fixed_points.solvers import Anderson, Solver


@dataclass(frozen=True)
class Flops:
    """FLOPs of a forward pass and of the backward pass after it."""

    forward: float
    backward: float

    @property
    def training(self) -> float:
        """FLOPs of both passes."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Solves:
    """Evaluations of the map for an equilibrium, and the solver's own FLOPs per sample."""

    evaluations: float = 0.0
    mixing: float = 0.0


class Counted(Solver):
    """Anderson's method, counting its operations per sample."""

    def __init__(self, solver: Anderson) -> None:
        self.solver, self.solves = solver, Solves()

    def init(self, z: Tensor) -> Any:
        return self.solver.init(z)

    def step(self, memory: Any, z: Tensor, fz: Tensor, size: Tensor) -> tuple[Tensor, Any]:
        following, memory = self.solver.step(memory, z, fz, size)
        mixed, fresh = memory.mixed, memory.fresh
        # Inner products of the residual and the new differences with all differences, the mixture, the differences.
        own = (2.0 * (fresh + 1.0) * mixed + 2.0 * mixed + 3.0 * fresh) * z.shape[1] + 2.0 / 3.0 * mixed**3
        self.solves = Solves(self.solves.evaluations + 1.0, self.solves.mixing + own)
        return following, memory


def fnn_flops(sizes: Sequence[int]) -> Flops:
    """FLOPs of layers sizes[0] → sizes[1] → …: 2ab each for the values, for the gradient of the weights and, but in the first
    layer, for the gradient of its input."""
    products = [2.0 * a * b for a, b in pairwise(sizes)]
    return Flops(sum(products), 2.0 * sum(products) - products[0])


def deq_flops(in_features: int, width: int, outputs: int, forward: Solves, backward: Solves) -> Flops:
    """FLOPs of z = relu(W z + U x + b), y = A z: U x once, W z per evaluation of the map, as much per product with its
    transposed Jacobian in the adjoint, and those of the solvers."""
    inward, step, outward = 2.0 * in_features * width, 2.0 * width * width, 2.0 * width * outputs
    ahead = inward + forward.evaluations * step + forward.mixing + outward
    # The map is evaluated once more for its Jacobian; each weight's gradient costs as much as its product.
    back = inward + (backward.evaluations + 2.0) * step + backward.mixing + 2.0 * outward
    return Flops(ahead, back)


def with_skip(flops: Flops, in_features: int, outputs: int) -> Flops:
    """FLOPs with a skip connection V x added."""
    product = 2.0 * in_features * outputs
    return replace(flops, forward=flops.forward + product, backward=flops.backward + product)


def paired_width(in_features: int, hidden: int, outputs: int, training: float) -> int:
    """The largest width of a feed-forward network of `hidden` layers whose training costs at most `training` FLOPs."""
    if hidden < 1:
        raise BadInput(f"A network has one hidden layer at least, got {hidden}.")
    width = 1
    while fnn_flops([in_features, *[width + 1] * hidden, outputs]).training <= training:
        width += 1
    return width
