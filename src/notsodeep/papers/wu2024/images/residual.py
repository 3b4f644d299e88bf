"""A small residual network for images, and the pieces that it shares with the multiscale DEQ: stem, block and head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.arguments import count
from notsodeep.errors import BadInput

_GROUP = 16


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """Without a bias, as a norm follows it; the resolution is kept, or divided by the stride."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


def norm(channels: int) -> nn.GroupNorm:
    """Of groups of sixteen channels, or one of all: it treats every sample alone, as a fixed point has to, where batch norm
    would couple them. Groups of few channels are no choice: a channel normalised alone has a mean that tells nothing."""
    return nn.GroupNorm(channels // _GROUP if channels % _GROUP == 0 else 1, channels)


def stem(channels: int) -> nn.Sequential:
    """(n, 3, 2s, 2s) → (n, channels, s, s)."""
    return nn.Sequential(conv(3, channels, stride=2), norm(channels), nn.ReLU())


class Branch(nn.Module):
    """W₂ relu(norm(W₁ z)): what a residual block adds."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first, self.norm, self.second = conv(inputs, outputs, stride=stride), norm(outputs), conv(outputs, outputs)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.second(functional.relu(self.norm(self.first(z))))
        return out


class Head(nn.Module):
    """Both resolutions as one map, features = [pool(high), low], (n, c₁ + c₂, s/2, s/2), and W mean(features) + b.

    `features` is a module that changes nothing: whatever looks at a layer's output (Grad-CAM) finds the map there, in every
    network that has this head.
    """

    def __init__(self, channels: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.features = nn.Identity()
        self.linear = nn.Linear(sum(channels), classes)

    def forward(self, high: Tensor, low: Tensor) -> Tensor:
        features = self.features(torch.cat([functional.avg_pool2d(high, 2), low], dim=1))
        out: Tensor = self.linear(features.mean((2, 3)))
        return out


class Block(nn.Module):
    """relu(norm(S z + branch(z))), S the identity, or a 1 × 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.branch, self.norm = Branch(inputs, outputs, stride), norm(outputs)
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, z: Tensor) -> Tensor:
        return functional.relu(self.norm(self.short(z) + self.branch(z)))


class ResidualNetwork(nn.Module):
    """stem → blocks[0] blocks of c₁ channels → blocks[1] blocks of c₂ at half the resolution → `Head` of both stages.

    With blocks = (1, 2) and c₂ = 2 c₁ it has 7 % more weights than the `MultiscaleDEQ` of the same channels. Images are
    (n, 3, H, W), H and W multiples of four. The weights are drawn from `generator`.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: Sequence[int] = (32, 64),
        blocks: Sequence[int] = (1, 2),
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        c1, c2 = two(channels, "channels")
        many, more = two(blocks, "blocks")
        with torch.random.fork_rng(devices=[]):  # torch's layers draw weights of their own, which are not used
            self.stem = stem(c1)
            self.high = nn.Sequential(*(Block(c1, c1) for _ in range(many)))
            self.low = nn.Sequential(Block(c1, c2, 2), *(Block(c2, c2) for _ in range(more - 1)))
            self.head = Head((c1, c2), count(classes, "classes"))
        draw_weights(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        high = self.high(self.stem(require_images(x)))
        out: Tensor = self.head(high, self.low(high))
        return out


@torch.no_grad()
def draw_weights(module: nn.Module, generator: torch.Generator | None) -> None:
    """Convolutions of N(0, 2/fan-in), a readout of a tenth of N(0, 1/fan-in), sure of nothing; norms begin as they are."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.normal_(0.0, math.sqrt(2.0 / layer.weight[0].numel()), generator=generator)
        elif isinstance(layer, nn.Linear):
            layer.weight.normal_(0.0, 0.1 / math.sqrt(layer.in_features), generator=generator)
            layer.bias.zero_()


def require_images(x: Tensor) -> Tensor:
    if x.ndim != 4 or x.shape[1] != 3 or x.shape[2] % 4 or x.shape[3] % 4 or x.numel() == 0:
        raise BadInput(
            f"Images are (n, 3, H, W), H and W multiples of 4; got {tuple(x.shape)}: reshape, crop or pad them."
        )
    return x


def two(values: Sequence[int], what: str) -> tuple[int, int]:
    """One count for each resolution."""
    if isinstance(values, int) or len(values) != 2:
        raise BadInput(f"{what} must be two counts, one for each resolution, such as (32, 64); got {values!r}.")
    return count(values[0], what), count(values[1], what)
