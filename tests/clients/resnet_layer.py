"""The residual layer of the tutorial on deep implicit layers, at its start, after its published equation.

f(z) = norm₃(relu(z + norm₂(x + conv₂(norm₁(relu(conv₁(z))))))), 3×3 convolutions without bias, weights N(0, 0.01²), group
norms. Ref: Kolter, Duvenaud & Johnson (2020), Deep Implicit Layers, chapter 4.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

import notsodeep as nsd

from .client import Client, Problem, draw


class ResNetLayer(nn.Module):
    """(z, x) ↦ f(z), both (n, channels, side, side)."""

    def __init__(self, channels: int, inner: int, groups: int, generator: torch.Generator) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, inner, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(inner, channels, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, inner)
        self.norm2 = nn.GroupNorm(groups, channels)
        self.norm3 = nn.GroupNorm(groups, channels)
        with torch.no_grad():
            for convolution in (self.conv1, self.conv2):
                convolution.weight.copy_(draw(tuple(convolution.weight.shape), 0.01, generator))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        y = self.norm1(torch.relu(self.conv1(z)))
        return self.norm3(torch.relu(z + self.norm2(x + self.conv2(y))))


def build(
    dtype: torch.dtype, seed: int, batch: int = 3, channels: int = 8, inner: int = 12, side: int = 6, groups: int = 4
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    layer = ResNetLayer(channels, inner, groups, generator).to(dtype)
    x = draw((batch, channels, side, side), 1.0, generator).to(dtype).requires_grad_()
    return Problem(lambda z: layer(z, x), torch.zeros_like(x), (*layer.parameters(), x))


RESNET_LAYER = Client(
    "tutorial ResNet layer",
    build,
    partial(build, batch=8, channels=48, inner=64, side=16, groups=8),
    solver=nsd.Anderson(every=3),
)
