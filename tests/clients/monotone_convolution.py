"""A monotone operator network of circular convolutions, after the published equations of Winston & Kolter (2020).

z = relu(W z + u) with W z = (1 − m) z − Aᵀ(A z) + B z − Bᵀ z, where A and B are circular 3×3 convolutions; W is then one
circular 5×5 convolution.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.fixed_points import Activated, CircularConvolution, PeacemanRachford

from .client import Client, Problem, draw


def convolved(z: Tensor, kernel: Tensor) -> Tensor:
    """The circular convolution of z, (n, in, h, w), with kernel, (out, in, k, k), k odd."""
    margin = kernel.shape[-1] // 2
    return functional.conv2d(functional.pad(z, (margin,) * 4, mode="circular"), kernel)


def transposed(kernel: Tensor) -> Tensor:
    """The kernel of the transposed circular convolution."""
    return kernel.transpose(0, 1).flip(2, 3)


def composed(z: Tensor, a: Tensor, b: Tensor, m: float) -> Tensor:
    """W z, as it is defined."""
    squared = convolved(convolved(z, a), transposed(a))
    return (1.0 - m) * z - squared + convolved(z, b) - convolved(z, transposed(b))


def composite_kernel(a: Tensor, b: Tensor, m: float) -> Tensor:
    """The 5×5 kernel of W: AᵀA has the kernel Σ_o Σ_d a[o, i, d] a[o, j, d + s] at the offset s."""
    channels = a.transpose(0, 1)
    squared = functional.conv2d(channels, channels, padding=2).transpose(0, 1)
    centre = torch.zeros_like(squared)
    centre[:, :, 2, 2] = torch.eye(len(squared)).to(squared)
    return (1.0 - m) * centre - squared + functional.pad(b - transposed(b), (1, 1, 1, 1))


def build(
    dtype: torch.dtype,
    seed: int,
    m: float = 0.5,
    symmetric: float = 0.3,
    skew: float = 0.2,
    batch: int = 2,
    inputs: int = 3,
    channels: int = 6,
    side: int = 6,
) -> Problem:
    """`symmetric` and `skew` are about the spectral norms of A and of B − Bᵀ, each over 2."""
    generator = torch.Generator().manual_seed(seed)
    fan = 9 * channels
    a = draw((channels, channels, 3, 3), symmetric / math.sqrt(fan), generator).to(dtype).requires_grad_()
    b = draw((channels, channels, 3, 3), skew / math.sqrt(2.0 * fan), generator).to(dtype).requires_grad_()
    into = draw((channels, inputs, 3, 3), 1.0 / math.sqrt(9 * inputs), generator).to(dtype).requires_grad_()
    x = draw((batch, inputs, side, side), 1.0, generator).to(dtype)
    f = Activated(torch.relu, CircularConvolution(composite_kernel(a, b, m)), convolved(x, into))
    return Problem(f, torch.zeros_like(f.u), (a, b, into))


EASY = partial(build, m=0.5, symmetric=0.3, skew=0.2)
HARD = partial(build, m=0.05, symmetric=0.5, skew=1.5)

MONOTONE_CONVOLUTION = Client(
    "monotone convolution, easy", EASY, partial(EASY, batch=8, channels=32, side=16), tol=1e-5, damping=0.5
)
MONOTONE_CONVOLUTION_HARD = Client(
    "monotone convolution, hard",
    HARD,
    partial(HARD, batch=4, channels=16, side=8),
    tol=1e-5,
    solver=PeacemanRachford(),
    adjoint_solver=PeacemanRachford(),
    max_steps=2000,
    damping=0.02,
)
