"""The DEQ of [wu2024]: z = relu(W z + U x + b), y = A z + V x."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.errors import NotConverged
from notsodeep.models import checks


class ReluDEQ(nn.Module):
    """z = relu(W z + U x + b) and y = A z + V x, with weights as given; V is 0 unless given.

    Where W is strictly lower triangular the equilibrium is exact after as many sweeps as there are units, however large W is.
    """

    def __init__(self, W: Tensor, U: Tensor, b: Tensor, A: Tensor, V: Tensor | None = None) -> None:
        super().__init__()
        self.W, self.U, self.b, self.A = (nn.Parameter(weight.clone()) for weight in (W, U, b, A))
        self.V = None if V is None else nn.Parameter(V.clone())

    @property
    def width(self) -> int:
        return len(self.b)

    @property
    def in_features(self) -> int:
        return self.U.shape[1]

    def features(self, x: Tensor) -> Tensor:
        """z*, (n, m), by sweeps from z = 0."""
        u = functional.linear(checks.batch(x, self.in_features, self.U, "ReluDEQ"), self.U, self.b)
        z = torch.zeros_like(u)
        for _ in range(self.width + 1):
            following = torch.relu(functional.linear(z, self.W) + u)
            if bool((following == z).all()):
                return z
            z = following
        raise NotConverged(
            f"{self.width} sweeps did not reach the equilibrium: W is not nilpotent. Use fixed_point on its map.",
            residual=float((following - z).detach().norm()),
            steps=self.width,
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, outputs)."""
        y = functional.linear(self.features(x), self.A)
        return y if self.V is None else y + functional.linear(x, self.V)


def sawtooth_deq(m: int) -> ReluDEQ:
    """The sawtooth of 2^m pieces, without training.

    A = −(2^m … 2), W_ti = −2^{t−i+1} for i < t, U = (2 … 2^m), b = −1 and V = 2^m: z_t = relu(2φ^{t−1} − 1), and so
    A z + V x = φ^m.

    Ref: [wu2024], expressivity.
    """
    t = torch.arange(1, checks.count(m, "m") + 1, dtype=torch.float64)
    powers = torch.exp2(t)
    W = -torch.exp2(t[:, None] - t + 1.0).tril(-1)
    return ReluDEQ(W, powers[:, None], -torch.ones_like(t), -powers.flip(0)[None], powers[-1:, None])
