"""Networks without training: the sawtooth and the steep function by a DEQ, and the steep function by a ReLU network.

Ref: [wu2024], expressivity and steep functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from notsodeep.arguments import count, counts, not_negative, shown
from notsodeep.arrays import check_memory
from notsodeep.errors import BadInput
from notsodeep.models.relu_deq import ReluDEQ
from notsodeep.separation.targets import Steep, points

_BISECTIONS = 60
# The sums of ramps that are tried: the first ramp ends at one of `_FIRST`, each further one at a ratio times the last end.
_MOST_RAMPS = 4
_FIRST = tuple(0.05 * k for k in range(8, 61))
_RATIOS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_NODES = 1000  # of the integral for the loss, in each half of the law
_LARGEST_M = 1000  # of a sawtooth: 2^m must fit into float64


def sawtooth_deq(m: int) -> ReluDEQ:
    """The sawtooth of 2^m pieces as a DEQ of m units.

    A = −(2^m … 2), W_ti = −2^{t−i+1} for i < t, U = (2 … 2^m), b = −1 and V = 2^m: z_t = relu(2φ^{t−1} − 1), and so
    A z + V x = φ^m.

    Ref: [wu2024], expressivity.

    Args:
        m: the number of units, from 1 to 1000.

    Returns:
        The DEQ, in double precision.

    Raises:
        BadInput: `m` is not such a number.
    """
    t = torch.arange(1, count(m, "m", most=_LARGEST_M) + 1, dtype=torch.float64)
    powers = torch.exp2(t)
    W = -torch.exp2(t[:, None] - t + 1.0).tril(-1)
    return ReluDEQ(W, powers[:, None], -torch.ones_like(t), -powers.flip(0)[None], powers[-1:, None])


class SteepDEQ(nn.Module):
    """The steep function as the equilibrium of 4N + 2 ReLU units that read one number z and return it:

        z = h(z, x) = ½[φ_N(z + x_1/2) − φ_N(z − x_1/2)] + δ(x_1/2 − z),
        φ_N(u) = relu(tu) + relu(−tu) + Σ_{0<i<N} [relu(2tu − 2it²) + relu(−2tu − 2it²)],  t = 1/N,

    φ_N interpolates u² on [−1, 1], so that h ≈ z x_1 + δ(x_1/2 − z), whose equilibrium is δ x_1/(2(1 + δ − x_1)). The scalar z
    is found by bisection, because h need not contract.

    Ref: [wu2024], steep functions.

    Args:
        dimension: d of the steep function; δ = 2^(−d).
        N: the error falls like 1/N.

    Raises:
        BadInput: an argument is not a whole number from 1 on, or the units do not fit in memory.
    """

    slopes: Tensor
    offsets: Tensor

    def __init__(self, dimension: int, N: int) -> None:
        super().__init__()
        self.target, self.N = Steep(dimension), count(N, "N")
        check_memory((self.N, 4), torch.float64, torch.device("cpu"), "a smaller N", f"A DEQ of 4 · {self.N} units")
        self.in_features, self.width = self.target.dimension, 4 * self.N + 2
        t = 1.0 / self.N
        slopes = torch.full((self.N,), 2.0 * t, dtype=torch.float64)
        slopes[0] = t
        self.register_buffer("slopes", slopes)
        self.register_buffer("offsets", 2.0 * t**2 * torch.arange(self.N, dtype=torch.float64))

    def square(self, u: Tensor) -> Tensor:
        """φ_N(u), with each pair relu(au − c) + relu(−au − c) as relu(a|u| − c)."""
        return torch.relu(self.slopes.to(u) * u.abs()[..., None] - self.offsets.to(u)).sum(-1)

    def step(self, z: Tensor, x1: Tensor) -> Tensor:
        """h(z, x)."""
        curved = 0.5 * (self.square(z + 0.5 * x1) - self.square(z - 0.5 * x1))
        return curved + self.target.delta * (0.5 * x1 - z)

    def features(self, x: Tensor) -> Tensor:
        """The equilibrium z*, (n, 1), which h(0) ≥ 0 and h(½) ≤ ½ enclose."""
        x1 = points(x)[:, :1] if isinstance(x, Tensor) and x.ndim == 2 else None
        if x1 is None or x1.shape[1] == 0:
            raise BadInput(f"x is {shown(x)}; expected a tensor of shape (n, {self.in_features}).")
        low, high = torch.zeros_like(x1), torch.full_like(x1, 0.5)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            below = self.step(middle, x1) > middle
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)

    def forward(self, x: Tensor) -> Tensor:
        """The network's values at x (n, d), as (n, 1)."""
        return self.features(x)

    def as_relu_deq(self) -> ReluDEQ:
        """The same network as z = relu(W z + U x + b), y = A z, unit by unit; W has rank one, since every unit reads y alone.

        Units relu(±a(y + x_1/2) − c) of the first φ_N have ½ in A, relu(±a(y − x_1/2) − c) of the second −½, and
        relu(±δ(x_1/2 − y)) ±1, the largest of all weights from N = 2 on, whatever d is. `features` finds its equilibrium;
        solvers that need a contraction may not.
        """
        slopes, offsets = torch.cat([self.slopes, -self.slopes]), self.offsets.repeat(2)
        sign, half = torch.tensor([1.0, -1.0]).to(slopes), torch.full_like(slopes, 0.5)
        of_output = torch.cat([slopes, slopes, -self.target.delta * sign])
        A = torch.cat([half, -half, sign])
        U = slopes.new_zeros(self.width, self.in_features)
        U[:, 0] = 0.5 * torch.cat([slopes, -slopes, self.target.delta * sign])
        return ReluDEQ(of_output[:, None] * A, U, -torch.cat([offsets, offsets, 0.0 * sign]), A[None])


@dataclass(frozen=True)
class _Ramps:
    """p(s) = level + Σ_i slopes_i relu(ends_i − s), where x_1 = 1 − δs, and its loss; the i-th ramp has copies_i units."""

    ends: Tensor
    slopes: Tensor
    level: float
    loss: float
    copies: Tensor

    def size(self, delta: float, widths: Sequence[int]) -> float:
        """B with B^(H + 1) δ ∏_{l<H} width_l = max_i |slopes_i|/copies_i, the size that the weights share."""
        each = float((self.slopes.abs() / self.copies).max())
        return float((each / (delta * math.prod(widths[:-1]))) ** (1.0 / (len(widths) + 1)))

    def largest_weight(self, delta: float, widths: Sequence[int]) -> float:
        """Largest weight of the network, its biases G(δ s_i) included; if the only layer reads x_1 itself, G(δ s_i − 1)."""
        size = self.size(delta, widths)
        biases = _gain(size, widths) * (delta * self.ends - float(len(widths) == 1))
        return max(size, float(biases.abs().max()), abs(self.level))


def steep_fnn(d: int, widths: Sequence[int] = (50, 50), loss: float = 1e-4) -> nn.Sequential:
    """The steep function as a feed-forward ReLU network with small weights, without training.

    With u = 1 − x_1 = δs, all units of a layer k < H are B^k ∏_{l<k} width_l u, by weights B alone; the last layer has copies
    of relu(G(δ s_i − u)), G = B^H ∏_{l<H} width_l, and the readout adds them up to p(s) = p_∞ + Σ_i e_i relu(s_i − s). Among
    the p with few ramps, each a least-squares fit, the one with the smallest weights is taken, biases included. At a loss of
    1e-4, widths of 50 and d = 8 … 20 the largest weight is within a tenth of the bound `min_weight_steep_fnn`.

    Args:
        d: the dimension.
        widths: the units of each hidden layer.
        loss: a bound on the mean squared error over the law of `Steep.sample`.

    Returns:
        The network, in double precision.

    Raises:
        BadInput: an argument is out of range, a weight does not fit in memory, or no sum of a few ramps reaches the loss.
    """
    shape, loss = counts(widths, "widths"), not_negative(loss, "loss")
    if not shape:
        raise BadInput("A feed-forward network has one hidden layer at least, got no width.")
    delta = Steep(d).delta
    for inputs, outputs in zip((d, *shape), shape, strict=False):
        what = f"A weight of {outputs} × {inputs}"
        check_memory((outputs, inputs), torch.float64, torch.device("cpu"), "smaller widths", what)
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
    """Least-squares fits of g(s) = (1 − δs)/(2(1 + s)) by each sum of ramps that is tried."""
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
    """Units of each ramp, at least one, chosen to make the largest size per unit as small as possible."""
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
        nn.Linear(inputs, outputs, dtype=torch.float64) for inputs, outputs in zip((d, *widths[:-1]), widths, strict=True)
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
