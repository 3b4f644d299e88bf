"""One equilibrium layer of a transformer, after the published equations of Bai, Kolter & Koltun (2019).

h = norm(z + attention(z Q + x P)), f(z) = norm(h + feedforward(h)): causal self-attention over the length, with the input
injected into queries, keys and values, and layer norms after each residual sum. Sequences are samples, their places are not.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from .client import Client, Problem, draw


class TransformerLayer(nn.Module):
    """(z, x) ↦ f(z), both (n, length, width)."""

    def __init__(self, width: int, heads: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.injection = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        with torch.no_grad():
            for linear in (self.qkv, self.injection, self.out, self.up, self.down):
                scale = 1.0 / math.sqrt(linear.in_features)
                linear.weight.copy_(draw(tuple(linear.weight.shape), scale, generator))
                if linear.bias is not None:
                    linear.bias.zero_()
            self.qkv.weight.mul_(0.3)  # the state says less than the input at the start, or there is no equilibrium yet
            self.up.weight.mul_(0.5)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        q, k, v = (self.qkv(z) + self.injection(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        h = self.norm1(z + self.out(attended))
        return self.norm2(h + self.down(torch.relu(self.up(h))))


def build(
    dtype: torch.dtype, seed: int, batch: int = 2, length: int = 8, width: int = 16, heads: int = 2, hidden: int = 32
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    layer = TransformerLayer(width, heads, hidden, generator).to(dtype)
    x = draw((batch, length, width), 1.0, generator).to(dtype).requires_grad_()
    return Problem(lambda z: layer(z, x), torch.zeros_like(x), (*layer.parameters(), x))


TRANSFORMER_LAYER = Client("transformer layer", build, partial(build, batch=4, length=48, width=128, heads=4, hidden=256))
