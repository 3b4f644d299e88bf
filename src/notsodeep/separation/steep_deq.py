"""The steep function as the equilibrium of a DEQ that nobody trained. Ref: [wu2024], steep functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from notsodeep.arguments import count, shown
from notsodeep.arrays import refuse_if_too_large
from notsodeep.errors import BadInput
from notsodeep.separation.relu_deq import ReluDEQ
from notsodeep.separation.targets import Steep, points

_BISECTIONS = 60


class SteepDEQ(nn.Module):
    """A DEQ of 4N + 2 ReLU units that read one number z and give it back:

        z = h(z, x) = ½[φ_N(z + x_1/2) − φ_N(z − x_1/2)] + δ(x_1/2 − z),
        φ_N(u) = relu(tu) + relu(−tu) + Σ_{0<i<N} [relu(2tu − 2it²) + relu(−2tu − 2it²)],  t = 1/N,

    φ_N interpolates u² on [−1, 1], so that h ≈ z x_1 + δ(x_1/2 − z), whose equilibrium is δ x_1/(2(1 + δ − x_1)). The scalar z
    is found by bisection, as h need not contract.
    """

    slopes: Tensor
    offsets: Tensor

    def __init__(self, dimension: int, N: int) -> None:
        super().__init__()
        self.target, self.N = Steep(dimension), count(N, "N")
        refuse_if_too_large(
            self.N, 4, torch.float64, torch.device("cpu"), "a smaller N", f"A DEQ of 4 · {self.N} units"
        )
        t = 1.0 / self.N
        slopes = torch.full((self.N,), 2.0 * t, dtype=torch.float64)
        slopes[0] = t
        self.register_buffer("slopes", slopes)
        self.register_buffer("offsets", 2.0 * t**2 * torch.arange(self.N, dtype=torch.float64))

    @property
    def in_features(self) -> int:
        return self.target.dimension

    @property
    def width(self) -> int:
        return 4 * self.N + 2

    def square(self, u: Tensor) -> Tensor:
        """φ_N(u): each pair relu(au − c) + relu(−au − c) is relu(a|u| − c)."""
        return torch.relu(self.slopes.to(u) * u.abs()[..., None] - self.offsets.to(u)).sum(-1)

    def step(self, z: Tensor, x1: Tensor) -> Tensor:
        """h(z, x)."""
        curved = 0.5 * (self.square(z + 0.5 * x1) - self.square(z - 0.5 * x1))
        return curved + self.target.delta * (0.5 * x1 - z)

    def features(self, x: Tensor) -> Tensor:
        """z*, (n, 1): h(0) ≥ 0 and h(½) ≤ ½ enclose it."""
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
        """(n, 1)."""
        return self.features(x)

    def as_relu_deq(self) -> ReluDEQ:
        """The same network as z = relu(W z + U x + b), y = A z, unit by unit; W has rank one, as every unit reads y alone.

        Units relu(±a(y + x_1/2) − c) of the first φ_N have ½ in A, relu(±a(y − x_1/2) − c) of the second −½, and
        relu(±δ(x_1/2 − y)) ±1, the largest of all weights from N = 2 on, whatever d is. Solvers that ask for a contraction
        need not find its equilibrium, which `features` does.
        """
        slopes, offsets = torch.cat([self.slopes, -self.slopes]), self.offsets.repeat(2)
        sign, half = torch.tensor([1.0, -1.0]).to(slopes), torch.full_like(slopes, 0.5)
        of_output = torch.cat([slopes, slopes, -self.target.delta * sign])
        A = torch.cat([half, -half, sign])
        U = slopes.new_zeros(self.width, self.in_features)
        U[:, 0] = 0.5 * torch.cat([slopes, -slopes, self.target.delta * sign])
        return ReluDEQ(of_output[:, None] * A, U, -torch.cat([offsets, offsets, 0.0 * sign]), A[None])


def steep_deq(d: int, N: int) -> SteepDEQ:
    """The steep function of dimension d by a DEQ of 4N + 2 units, to an error that falls like 1/N."""
    return SteepDEQ(d, N)
