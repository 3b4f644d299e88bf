"""The steep function as a feed-forward network that nobody trained, with weights as small as can be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from notsodeep.arguments import counts, not_negative
from notsodeep.arrays import refuse_if_too_large
from notsodeep.errors import BadInput
from notsodeep.separation.targets import Steep

# What is tried: so many ramps, the first of which ends at `_FIRST`, and each at `_RATIOS` times the end of the one before.
_MOST_RAMPS = 4
_FIRST = tuple(0.05 * k for k in range(8, 61))
_RATIOS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_NODES = 1000  # of the loss, in each half


@dataclass(frozen=True)
class _Ramps:
    """p(s) = level + Σ_i slopes_i relu(ends_i − s), where x_1 = 1 − δs, and its loss; the i-th ramp is `copies_i` units."""

    ends: Tensor
    slopes: Tensor
    level: float
    loss: float
    copies: Tensor

    def size(self, delta: float, widths: Sequence[int]) -> float:
        """B with B^(H + 1) δ ∏_{l<H} width_l = max_i |slopes_i|/copies_i: the weights that are all alike."""
        each = float((self.slopes.abs() / self.copies).max())
        return float((each / (delta * math.prod(widths[:-1]))) ** (1.0 / (len(widths) + 1)))

    def largest_weight(self, delta: float, widths: Sequence[int]) -> float:
        """Of the network, its biases G(δ s_i) among them; where the only layer reads x_1 itself, they are G(δ s_i − 1)."""
        size = self.size(delta, widths)
        biases = _gain(size, widths) * (delta * self.ends - float(len(widths) == 1))
        return max(size, float(biases.abs().max()), abs(self.level))


def steep_fnn(d: int, widths: Sequence[int] = (50, 50), loss: float = 1e-4) -> nn.Sequential:
    """The steep function of dimension d by a ReLU network of these hidden widths, without training, to a mean squared error
    of at most `loss` over the law of `Steep.sample`. Its weights are small: at 1e-4, widths of 50 and d = 8 … 20 the largest
    is within a tenth of `min_weight_steep_fnn`, below which none can be.

    With u = 1 − x_1 = δs, all units of a layer k < H are B^k ∏_{l<k} width_l u, by weights B alone; the last has copies of
    relu(G(δ s_i − u)), G = B^H ∏_{l<H} width_l, and the read-out adds them up to p(s) = p_∞ + Σ_i e_i relu(s_i − s). Of p's
    with few ramps, each a least-squares fit, the one is taken that needs the smallest weights, biases among them.
    """
    shape, loss = counts(widths, "widths"), not_negative(loss, "loss")
    if not shape:
        raise BadInput("A feed-forward network has one hidden layer at least, got no width.")
    delta = Steep(d).delta
    for inputs, outputs in zip((d, *shape), shape, strict=False):
        what = f"A weight of {outputs} × {inputs}"
        refuse_if_too_large(outputs, inputs, torch.float64, torch.device("cpu"), "smaller widths", what)
    tried = list(_fits(d, shape[-1]))
    enough = [ramps for ramps in tried if ramps.loss <= loss]
    if not enough:
        least = min(ramps.loss for ramps in tried)
        raise BadInput(
            f"No sum of {min(_MOST_RAMPS, shape[-1])} ramps or fewer has a loss of {loss:g} for d = {d}: the least is "
            f"{least:.2g}. Allow a loss of as much{', or take a wider last layer' * (shape[-1] < _MOST_RAMPS)}."
        )
    return _network(d, shape, min(enough, key=lambda ramps: ramps.largest_weight(delta, shape)))


def _fits(d: int, units: int) -> Iterator[_Ramps]:
    """Least-squares fits of g(s) = (1 − δs)/(2(1 + s)) by ramps, over all that is tried."""
    s, weights = _law(d)
    wanted = (1.0 - Steep(d).delta * s) / (2.0 * (1.0 + s))
    root = weights.sqrt()
    for ramps in range(1, min(_MOST_RAMPS, units) + 1):
        for first in _FIRST:
            for ratio in _RATIOS if ramps > 1 else (1.0,):
                ends = first * ratio ** torch.arange(ramps, dtype=torch.float64)
                design = torch.cat([torch.ones_like(s)[:, None], torch.relu(ends - s[:, None])], 1)
                found = torch.linalg.lstsq(root[:, None] * design, (root * wanted)[:, None]).solution[:, 0]
                loss = float((weights * (design @ found - wanted).square()).sum())
                yield _Ramps(ends, found[1:], float(found[0]), loss, _shared(found[1:].abs(), units))


def _law(d: int) -> tuple[Tensor, Tensor]:
    """Nodes s and weights of the law of `Steep.sample`: half of it s ~ U(0, 1), half δs ~ U(δ, 1), by midpoints in log s."""
    middle = (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES
    octaves = d * math.log(2.0)
    far = torch.exp(octaves * middle)
    weights = torch.cat([torch.ones_like(middle), far * (_NODES / far.sum())])
    return torch.cat([middle, far]), weights / (2 * _NODES)


def _shared(sizes: Tensor, units: int) -> Tensor:
    """How many of the units each has, one at least, so that the largest size a unit is as small as can be."""
    copies = torch.ones_like(sizes)
    for _ in range(units - len(sizes)):
        copies[(sizes / copies).argmax()] += 1.0
    return copies


def _gain(size: float, widths: Sequence[int]) -> float:
    """G = B^H ∏_{l<H} width_l."""
    return float(size ** len(widths) * math.prod(widths[:-1]))


@torch.no_grad()
def _network(d: int, widths: Sequence[int], ramps: _Ramps) -> nn.Sequential:
    delta = Steep(d).delta
    size = ramps.size(delta, widths)
    gain = _gain(size, widths)
    hidden = [
        nn.Linear(inputs, outputs, dtype=torch.float64)
        for inputs, outputs in zip((d, *widths[:-1]), widths, strict=True)
    ]
    for layer in hidden:
        layer.weight.fill_(size)
        layer.bias.zero_()
    hidden[0].weight[:, 1:] = 0.0
    hidden[0].weight.neg_()
    hidden[0].bias.fill_(size)  # B(1 − x_1)
    copies = ramps.copies.long()
    last = hidden[-1]
    last.weight.neg_()
    last.bias.neg_().add_(gain * delta * ramps.ends.repeat_interleave(copies))
    readout = nn.Linear(widths[-1], 1, dtype=torch.float64)
    readout.weight.copy_((ramps.slopes / (ramps.copies * gain * delta)).repeat_interleave(copies)[None])
    readout.bias.fill_(ramps.level)
    return nn.Sequential(*(module for layer in hidden for module in (layer, nn.ReLU())), readout)
