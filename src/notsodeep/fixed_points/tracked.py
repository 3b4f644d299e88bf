"""f evaluated with a graph, so that the last evaluation of a solve serves its backward pass too."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.fixed_points.activated import ActivatedRows
from notsodeep.fixed_points.capture import mark_state
from notsodeep.fixed_points.precision import Map


@dataclass(frozen=True, eq=False)
class Graph:
    """A state z, a leaf, and its image f(z) with the graph between them; the parts of f, where it shows them."""

    z: Tensor
    image: Tensor
    structure: ActivatedRows | None = None

    @staticmethod
    def of(f: Map, z: Tensor) -> Graph:
        """The graph of f at z."""
        with torch.enable_grad():
            leaf = mark_state(z.detach().requires_grad_())
            return Graph(leaf, f(leaf), getattr(f, "structure", None))

    def pull(self, u: Tensor) -> Tensor | None:
        """Jᵀu, in the shape of u; None where the image does not depend on the state."""
        if not self.image.requires_grad:
            return None
        (found,) = torch.autograd.grad(
            self.image, self.z, u.reshape(self.image.shape), retain_graph=True, allow_unused=True
        )
        return None if found is None else found.reshape(u.shape)


class Tracked:
    """Evaluates f with a graph and holds the last one.

    The loop asks for it where it expects to be done with this evaluation, and at the first one: what f caches then keeps its
    graph.
    """

    def __init__(self, f: Map) -> None:
        self.f = f
        self.graph: Graph | None = None

    def __call__(self, z: Tensor) -> Tensor:
        self.graph = None  # that of an earlier guess is given back first
        self.graph = Graph.of(self.f, z)
        return self.graph.image.detach()

    def at(self, z: Tensor) -> tuple[Graph, bool]:
        """The graph at z, and whether f had to be evaluated for it: not where this was the last evaluation."""
        held = self.graph
        if held is not None and held.z.data_ptr() == z.data_ptr() and held.z.numel() == z.numel():
            return held, False
        held = self.graph = None
        return Graph.of(self.f, z), True
