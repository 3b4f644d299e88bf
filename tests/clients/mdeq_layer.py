"""A small multiscale equilibrium layer, after the published description of Bai, Koltun & Kolter (2020).

The state is a tuple of images, each of half the side of the one before. One step: in each resolution a residual block (the
input is injected in the highest), then every resolution becomes the normed sum of all, brought to its size by strided
3×3 convolutions or by a 1×1 convolution and upsampling.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from .client import Client, Problem, draw

State = tuple[Tensor, ...]


class Block(nn.Module):
    """z ↦ norm(relu(z + norm(x + conv(relu(norm(conv(z)))))))."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(groups, channels) for _ in range(3))

    def forward(self, z: Tensor, x: Tensor | float) -> Tensor:
        y = self.conv2(torch.relu(self.norm1(self.conv1(z))))
        return self.norm3(torch.relu(z + self.norm2(y) + x))


class Path(nn.Module):
    """From one resolution to another, norm included: strided convolutions downwards, 1×1 and upsampling upwards."""

    def __init__(self, source: int, target: int, channels: tuple[int, ...], groups: int) -> None:
        super().__init__()
        self.factor = 2 ** max(source - target, 0)
        if source > target:
            steps = [nn.Conv2d(channels[source], channels[target], 1, bias=False)]
        else:
            widths = [channels[source]] * (target - source) + [channels[target]]
            steps = [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False) for before, after in itertools.pairwise(widths)
            ]
        self.steps, self.norm = nn.Sequential(*steps), nn.GroupNorm(groups, channels[target])

    def forward(self, z: Tensor) -> Tensor:
        y = self.norm(self.steps(z))
        return functional.interpolate(y, scale_factor=self.factor, mode="nearest") if self.factor > 1 else y


class MultiscaleLayer(nn.Module):
    """(state, x) ↦ f(state), x like the state's first image."""

    def __init__(self, channels: tuple[int, ...], groups: int, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        scales = range(len(channels))
        self.blocks = nn.ModuleList(Block(width, groups) for width in channels)
        self.paths = nn.ModuleDict({f"{j} to {i}": Path(j, i, channels, groups) for i in scales for j in scales if i != j})
        self.norms = nn.ModuleList(nn.GroupNorm(groups, width) for width in channels)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    module.weight.copy_(draw(tuple(module.weight.shape), 0.01, generator))
            for block in self.blocks:
                block.norm2.weight.fill_(gain)  # small, as a block's own say must be for an equilibrium before training

    def forward(self, state: State, x: Tensor) -> State:
        inner = [block(z, x if k == 0 else 0.0) for k, (block, z) in enumerate(zip(self.blocks, state, strict=True))]
        fused = []
        for i, own in enumerate(inner):
            others = [self.paths[f"{j} to {i}"](z) for j, z in enumerate(inner) if j != i]
            fused.append(self.norms[i](torch.relu(own + sum(others))))
        return tuple(fused)


def build(
    dtype: torch.dtype,
    seed: int,
    batch: int = 2,
    channels: tuple[int, ...] = (8, 16),
    side: int = 8,
    groups: int = 2,
    gain: float = 0.2,
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    layer = MultiscaleLayer(channels, groups, gain, generator).to(dtype)
    x = draw((batch, channels[0], side, side), 3.0, generator).to(dtype).requires_grad_()
    z0 = tuple(torch.zeros(batch, c, side >> k, side >> k, dtype=dtype) for k, c in enumerate(channels))
    return Problem(lambda state: layer(state, x), z0, (*layer.parameters(), x))


MDEQ_LAYER = Client("multiscale DEQ", build, partial(build, batch=4, channels=(24, 48), side=16, groups=8))
