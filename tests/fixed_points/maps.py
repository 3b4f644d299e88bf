"""Maps with known fixed points, for every solver and adjoint."""

import torch
from torch import Tensor

from notsodeep import Anderson, Broyden, Picard

SOLVERS = {
    "picard": Picard(),
    "damped picard": Picard(damping=0.7),
    "anderson": Anderson(),
    "anderson at once": Anderson(engage=0.0),
    "short anderson": Anderson(memory=2, ridge=1e-10, damping=0.8, engage=0.0),
    "broyden": Broyden(),
    "broyden at once": Broyden(engage=0.0),
    "short broyden": Broyden(memory=3, engage=0.0),
}
ACCELERATED = {name: solver for name, solver in SOLVERS.items() if "at once" in name}


def contraction(
    n: int, d: int, seed: int = 0, radius: float = 0.6, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """(W, x) of z = tanh(z Wᵀ + x), with W of spectral norm `radius`."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(d, d, generator=draw, dtype=torch.float64)
    weight = radius * weight / torch.linalg.matrix_norm(weight, 2)
    return weight.to(dtype), torch.randn(n, d, generator=draw, dtype=torch.float64).to(dtype)


def tanh_map(weight: Tensor, x: Tensor):
    return lambda z: torch.tanh(z @ weight.T + x)
