"""A monotone operator network with dense weights, after the published equations of Winston & Kolter (2020).

z = relu(W z + U x + b) with W = (1 − m) I − AᵀA + B − Bᵀ: I − W has the symmetric part m I + AᵀA, so there is one solution
however large W is, and yet the plain iteration need not find it.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch.nn import functional

from notsodeep.fixed_points import Activated, Dense, PeacemanRachford

from .client import Client, Problem, draw


def build(
    dtype: torch.dtype,
    seed: int,
    m: float = 0.5,
    symmetric: float = 0.5,
    skew: float = 0.3,
    batch: int = 8,
    inputs: int = 20,
    width: int = 64,
) -> Problem:
    """`symmetric` and `skew` are about the spectral norms of A and of B − Bᵀ, each over 2."""
    generator = torch.Generator().manual_seed(seed)
    a = draw((width, width), symmetric / math.sqrt(width), generator).to(dtype).requires_grad_()
    b = draw((width, width), skew / math.sqrt(2.0 * width), generator).to(dtype).requires_grad_()
    into = draw((width, inputs), 1.0 / math.sqrt(inputs), generator).to(dtype).requires_grad_()
    bias = draw((width,), 0.1, generator).to(dtype).requires_grad_()
    x = draw((batch, inputs), 1.0, generator).to(dtype)
    weight = (1.0 - m) * torch.eye(width, dtype=dtype) - a.mT @ a + b - b.mT
    f = Activated(torch.relu, Dense(weight), functional.linear(x, into, bias))
    return Problem(f, torch.zeros(batch, width, dtype=dtype), (a, b, into, bias))


EASY = partial(build, m=0.5, symmetric=0.3, skew=0.2)
HARD = partial(build, m=0.05, symmetric=0.5, skew=2.0)

MONOTONE_DENSE = Client("monotone dense, easy", EASY, partial(EASY, batch=128, inputs=784, width=600), tol=1e-5, damping=0.5)
MONOTONE_DENSE_HARD = Client(
    "monotone dense, hard",
    HARD,
    partial(HARD, batch=32, inputs=64, width=150),
    tol=1e-5,
    solver=PeacemanRachford(),
    adjoint_solver=PeacemanRachford(),
    max_steps=2000,
    damping=0.02,
)
