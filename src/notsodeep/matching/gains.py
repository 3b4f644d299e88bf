"""Gains of the layers with which an explicit network's tangent kernel is nearest to a DEQ's. Ref: docs/theory.md, section 7."""

from __future__ import annotations

import math

import torch
from scipy.optimize import nnls
from torch import Tensor

from notsodeep.kernels.compare import best_scaled_gap
from notsodeep.kernels.exact.kernels import tangent_kernel
from notsodeep.theory.architecture import Explicit, Implicit


def gained(explicit: Explicit, net: Implicit, x: Tensor, tau0: float) -> Explicit:
    """The network with the gains that minimise ‖Θ* − Σ_l g_l² Θ_l‖_F over samples x, times the factor that is best in operator
    norm: non-negative least squares, since the tangent kernel is linear in g². Its conjugate kernel stays as it is.

    Args:
        explicit: The network.
        net: The DEQ.
        x: Samples (n, p).
        tau0: The norm that the DEQ is centred at.
    """
    count = explicit.depth + 1
    alone = [explicit.with_gains([float(k == one) for k in range(count)]) for one in range(count)]
    target = tangent_kernel(net, x, tau0=tau0)
    parts = torch.stack([tangent_kernel(one, x).flatten() for one in alone], dim=1)
    scale = torch.linalg.vector_norm(target)
    squares, _ = nnls((parts / scale).cpu().numpy(), (target.flatten() / scale).cpu().numpy())
    _, factor = best_scaled_gap(target, (parts @ torch.from_numpy(squares).to(parts)).reshape(target.shape))
    return explicit.with_gains([math.sqrt(max(factor, 0.0) * float(square)) for square in squares])
