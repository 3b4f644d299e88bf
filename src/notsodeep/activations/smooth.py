"""Activations analytic on the whole real line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.activations.base import Named
from notsodeep.activations.slopes import of_sigmoid, of_tanh


def _normal_cdf(x: Tensor) -> Tensor:
    # torch's own normal distribution function is 0 below −8.3, where this is 5e-17 and falls to 1e-308 at −37.
    probability: Tensor = torch.special.erfc(-math.sqrt(0.5) * x)
    return 0.5 * probability


@dataclass(frozen=True)
class Tanh(Named):
    """tanh(x)."""

    lipschitz = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def derivative(self, x: Tensor) -> Tensor:
        return of_tanh(x)


@dataclass(frozen=True)
class Erf(Named):
    """erf(x) = 2/√π ∫_0^x e^(−t²) dt."""

    lipschitz = 2.0 / math.sqrt(math.pi)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.erf(x)

    def derivative(self, x: Tensor) -> Tensor:
        return 2.0 / math.sqrt(math.pi) * torch.exp(-x.square())


@dataclass(frozen=True)
class Sigmoid(Named):
    """1/(1 + e^(−x))."""

    lipschitz = 0.25

    def __call__(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def derivative(self, x: Tensor) -> Tensor:
        return of_sigmoid(x)


@dataclass(frozen=True)
class Softplus(Named):
    """log(1 + e^x)."""

    lipschitz = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return torch.logaddexp(x, torch.zeros_like(x))

    def derivative(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


@dataclass(frozen=True)
class Arctan(Named):
    """arctan(x)."""

    lipschitz = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return torch.atan(x)

    def derivative(self, x: Tensor) -> Tensor:
        return 1.0 / (1.0 + x.square())


@dataclass(frozen=True)
class Sin(Named):
    """sin(x)."""

    lipschitz = 1.0
    half_wave = math.pi

    def __call__(self, x: Tensor) -> Tensor:
        return torch.sin(x)

    def derivative(self, x: Tensor) -> Tensor:
        return torch.cos(x)


@dataclass(frozen=True)
class Cos(Named):
    """cos(x)."""

    lipschitz = 1.0
    half_wave = math.pi

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cos(x)

    def derivative(self, x: Tensor) -> Tensor:
        return -torch.sin(x)


@dataclass(frozen=True)
class Gelu(Named):
    """x Φ(x), Φ the normal distribution function."""

    lipschitz = 0.5 * (1.0 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi)  # Φ(x) + x N(x) at x = √2

    def __call__(self, x: Tensor) -> Tensor:
        return x * _normal_cdf(x)

    def derivative(self, x: Tensor) -> Tensor:
        return _normal_cdf(x) + x * (torch.exp(-0.5 * x.square()) / math.sqrt(2.0 * math.pi))


@dataclass(frozen=True)
class Silu(Named):
    """x/(1 + e^(−x)), also called swish."""

    lipschitz = 1.099839320128867  # at x = 2.3994, where φ'' = 0; a test looks for a larger slope

    def __call__(self, x: Tensor) -> Tensor:
        return functional.silu(x)

    def derivative(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s + x * s * torch.sigmoid(-x)


@dataclass(frozen=True)
class Gaussian(Named):
    """e^(−x²/2)."""

    lipschitz = math.exp(-0.5)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.exp(-0.5 * x.square())

    def derivative(self, x: Tensor) -> Tensor:
        return -x * torch.exp(-0.5 * x.square())
