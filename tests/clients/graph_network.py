"""An implicit graph network, after the published equations of Gu et al. (2020).

X = relu(W X A + B) with X (features, nodes), A the normalised adjacency of the graph, B = Ω U A from the nodes' features U.
W is projected so that ‖W‖_∞ ≤ κ/λ, λ the largest eigenvalue of |A|: then there is one X, and the plain iteration finds it.
Nodes are coupled by A and features by W: all of X is one sample.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from .client import Client, Problem, draw


def adjacency(nodes: int, degree: int, generator: torch.Generator) -> Tensor:
    """D^(−1/2) (E + I) D^(−1/2) of a ring whose nodes have random links besides, (nodes, nodes)."""
    edges = torch.eye(nodes) + torch.eye(nodes).roll(1, 0)
    for _ in range(degree - 1):
        edges[torch.arange(nodes), torch.randint(nodes, (nodes,), generator=generator)] = 1.0
    edges = torch.maximum(edges, edges.mT)
    roots = edges.sum(1).rsqrt()
    return roots[:, None] * edges * roots


def projected(weight: Tensor, radius: float) -> Tensor:
    """The nearest matrix with ‖W‖_∞ ≤ radius: each row onto an ℓ1 ball, by sorting. Ref: Duchi et al. (2008)."""
    sizes = weight.abs().sort(dim=1, descending=True).values
    excess = (sizes.cumsum(1) - radius) / torch.arange(1, weight.shape[1] + 1)
    kept = (sizes > excess).sum(1, keepdim=True)
    shift = excess.gather(1, kept - 1).clamp(min=0.0)
    return weight.sign() * (weight.abs() - shift).clamp(min=0.0)


def build(
    dtype: torch.dtype, seed: int, features: int = 12, nodes: int = 40, degree: int = 3, inputs: int = 6, kappa: float = 0.95
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    links = adjacency(nodes, degree, generator)
    largest = float(torch.linalg.eigvalsh(links.double().abs())[-1])
    weight = draw((features, features), 1.0, generator)
    weight = projected(weight, kappa / largest).to(dtype).requires_grad_()
    omega = draw((features, inputs), 1.0 / math.sqrt(inputs), generator).to(dtype).requires_grad_()
    node_features = draw((inputs, nodes), 1.0, generator).to(dtype)
    links = links.to(dtype)
    injected = omega @ node_features @ links
    return Problem(lambda state: torch.relu(weight @ state @ links + injected), torch.zeros_like(injected), (weight, omega))


GRAPH_NETWORK = Client(
    "implicit graph network", build, partial(build, features=64, nodes=600, degree=4, inputs=32), samples=0, tol=1e-5
)
