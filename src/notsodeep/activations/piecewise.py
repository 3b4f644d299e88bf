"""Activations with kinks or jumps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.activations.base import Activation, Named
from notsodeep.arguments import number, positive


@dataclass(frozen=True)
class Rectifier(Activation):
    """φ(x) = positive·x for x > 0 and negative·x for x < 0: ReLU (1, 0), leaky ReLU (1, slope), |x| (1, −1), x (1, 1).

    The closed forms use α x + β |x| with α = (positive + negative)/2 and β = (positive − negative)/2.
    """

    positive: float = 1.0
    negative: float = 0.0

    grading = None

    def __post_init__(self) -> None:
        for side in ("positive", "negative"):
            object.__setattr__(self, side, number(getattr(self, side), f"The {side} slope"))

    @property
    def alpha(self) -> float:
        return 0.5 * (self.positive + self.negative)

    @property
    def beta(self) -> float:
        return 0.5 * (self.positive - self.negative)

    @property
    def kinks(self) -> tuple[float, ...]:
        return () if self.positive == self.negative else (0.0,)

    @property
    def lipschitz(self) -> float:
        return max(abs(self.positive), abs(self.negative))

    def __call__(self, x: Tensor) -> Tensor:
        # One pass over the data each: this is the inner loop of every rectifier network.
        if self.positive == self.negative:
            return x if self.positive == 1.0 else self.positive * x
        if self.positive == 0.0:
            return -self.negative * torch.relu(-x)
        slope = self.negative / self.positive
        rectified = torch.relu(x) if slope == 0.0 else functional.leaky_relu(x, slope)
        if self.positive == 1.0:
            return rectified
        return self.positive * rectified if torch.is_grad_enabled() else rectified.mul_(self.positive)

    def derivative(self, x: Tensor) -> Tensor:
        return self.negative + (self.positive - self.negative) * (x > 0).to(x.dtype)

    def __str__(self) -> str:
        match (self.positive, self.negative):
            case (1.0, 0.0):
                return "relu"
            case (1.0, -1.0):
                return "abs"
            case (1.0, 1.0):
                return "linear"
            case (1.0, slope):
                return f"leaky_relu(slope={slope:g})"
            case (slope, other) if slope == other:
                return f"{slope:.6g}·x"
        choice = "max" if self.positive >= self.negative else "min"
        return f"{choice}({self.positive:.6g}·x, {self.negative:.6g}·x)"


def Relu() -> Rectifier:  # noqa: N802 (reads like the classes next to it)
    """max(x, 0)."""
    return Rectifier(1.0, 0.0)


def LeakyRelu(slope: float = 0.01) -> Rectifier:  # noqa: N802
    """x for x > 0, slope·x below."""
    return Rectifier(1.0, slope)


def Abs() -> Rectifier:  # noqa: N802
    """|x|."""
    return Rectifier(1.0, -1.0)


def Linear() -> Rectifier:  # noqa: N802
    """x."""
    return Rectifier(1.0, 1.0)


@dataclass(frozen=True)
class HardTanh(Activation):
    """φ(x) = clip(a x, −a c, a c): slope a up to |x| = c, constant beyond."""

    a: float = 1.0
    c: float = 1.0

    grading = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", number(self.a, "The slope a of hard_tanh"))
        object.__setattr__(self, "c", positive(self.c, "The threshold c of hard_tanh"))

    @property
    def kinks(self) -> tuple[float, ...]:
        return (-self.c, self.c)

    @property
    def lipschitz(self) -> float:
        return abs(self.a)

    def __call__(self, x: Tensor) -> Tensor:
        return self.a * x.clamp(-self.c, self.c)

    def derivative(self, x: Tensor) -> Tensor:
        return self.a * (x.abs() < self.c).to(x.dtype)

    def __str__(self) -> str:
        return f"hard_tanh(a={self.a:.6g}, c={self.c:.6g})"


@dataclass(frozen=True)
class Elu(Activation):
    """x for x > 0, scale·(e^x − 1) below."""

    scale: float = 1.0

    kinks = (0.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", number(self.scale, "The scale of elu"))

    @property
    def lipschitz(self) -> float:
        return max(1.0, abs(self.scale))

    def __call__(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, self.scale * torch.expm1(x.clamp(max=0)))

    def derivative(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, 1.0, self.scale * torch.exp(x.clamp(max=0)))

    def __str__(self) -> str:
        return "elu" if self.scale == 1.0 else f"elu(scale={self.scale:g})"


@dataclass(frozen=True)
class Softsign(Named):
    """x/(1 + |x|): its second derivative jumps at 0."""

    kinks = (0.0,)
    lipschitz = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return x / (1.0 + x.abs())

    def derivative(self, x: Tensor) -> Tensor:
        return (1.0 + x.abs()) ** -2


@dataclass(frozen=True)
class Sign(Named):
    """−1, 0 or 1. It jumps at 0, so E[φ'²] and with it the tangent kernel on the diagonal are infinite."""

    kinks = (0.0,)
    jumps = ((0.0, 2.0),)
    grading = None
    lipschitz = math.inf

    def __call__(self, x: Tensor) -> Tensor:
        return torch.sign(x)

    def derivative(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)
