"""Networks of finite width with Gaussian weights, and their kernels measured: features by iteration, gradients by autograd.

    DEQ:       z = φ(h)/√m,  h = σ_a A z + σ_b B x,  f = aᵀz          (THEORY section 1)
    explicit:  x^(l) = σ_l(W_l x^(l−1))/√m,          f = aᵀx^(L)      (THEORY section 5)

Shares no code with the package.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
ITERATIONS = 40  # each shrinks the distance to the equilibrium by about σ_a √E[φ'²] < 0.5


def gaussian(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64, generator=generator)


class FiniteDeq:
    """One draw of a, A and B."""

    def __init__(self, phi: Function, var_a: float, var_b: float, p: int, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.phi, self.sigma_a, self.sigma_b = phi, math.sqrt(var_a), math.sqrt(var_b)
        self.a = gaussian(width, 1, generator)
        self.A = gaussian(width, width, generator)
        self.B = gaussian(width, p, generator)
        self.parameters = (self.a, self.A, self.B)

    def features(self, x: Tensor) -> Tensor:
        """z* of each row of x, by plain iteration from 0."""
        root = math.sqrt(len(self.a))
        drive = self.sigma_b * (x @ self.B.T)
        z = torch.zeros(len(x), len(self.a), dtype=torch.float64)
        for _ in range(ITERATIONS):
            z = self.phi(self.sigma_a * (z @ self.A.T) + drive) / root
        return z


class FiniteExplicit:
    """One draw of W_1 … W_L and a."""

    def __init__(self, layers: Sequence[Function], p: int, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.layers = layers
        self.weights = [gaussian(width, p if depth == 0 else width, generator) for depth in range(len(layers))]
        self.a = gaussian(width, 1, generator)
        self.parameters = (*self.weights, self.a)

    def features(self, x: Tensor) -> Tensor:
        for layer, weight in zip(self.layers, self.weights, strict=True):
            x = layer(x @ weight.T) / math.sqrt(len(weight))
        return x


def conjugate(network: FiniteDeq | FiniteExplicit, x: Tensor) -> Tensor:
    """z_i·z_j."""
    features = network.features(x)
    return features @ features.T


def tangent(network: FiniteDeq | FiniteExplicit, x: Tensor) -> Tensor:
    """⟨∂f(x_i), ∂f(x_j)⟩ over all weights: one backward pass a sample through the whole iteration."""
    for parameter in network.parameters:
        parameter.requires_grad_()
    outputs = (network.features(x) @ network.a)[:, 0]
    kernel = torch.zeros(len(x), len(x), dtype=torch.float64)
    gradients = [torch.autograd.grad(output, network.parameters, retain_graph=True) for output in outputs]
    for parameter in range(len(network.parameters)):
        flat = torch.stack([gradient[parameter].flatten() for gradient in gradients])
        kernel += flat @ flat.T
    return kernel


def root_mean_square_gap(measured: Sequence[Tensor], exact: Tensor) -> float:
    """√(mean over draws of ‖measured − exact‖_F²)/‖exact‖_F.

    The mean square, not the square of a mean: one draw's deviation is of order m^(−1/2) and random, so averaging kernels
    first would leave the bias, which is of order 1/m, while the mean square itself is a smooth function of m whose estimate
    from some tens of draws (each of many entries) is good to a few per cent.
    """
    squares = torch.stack([(kernel - exact).square().sum() for kernel in measured])
    return math.sqrt(float(squares.mean() / exact.square().sum()))


def log_log_slope(widths: Sequence[int], gaps: Sequence[float]) -> float:
    """The least-squares slope of log gap against log width."""
    logs = torch.tensor([[math.log(w), math.log(g)] for w, g in zip(widths, gaps, strict=True)], dtype=torch.float64)
    width, gap = (logs - logs.mean(0)).T
    return float((width @ gap) / (width @ width))
