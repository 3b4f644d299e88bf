"""The theorem's equivalent of a kernel on a Gaussian mixture. Ref: [ling2024] Theorems 1–3, as in docs/theory.md, section 3."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from notsodeep._types import Array
from notsodeep.architecture import Network
from notsodeep.data.statistics import MixtureStatistics
from notsodeep.errors import BadInput
from notsodeep.numerics.operators import LowRankPlusDiagonal
from notsodeep.numerics.safe import samples
from notsodeep.scalars import Coefficients, scalars


def equivalent_kernel(
    net: Network, x: Array, stats: MixtureStatistics, kernel: str = "conjugate"
) -> LowRankPlusDiagonal:
    """c1 S + V [[c2 ttᵀ + c3 T, c2 t], [c2 tᵀ, c2]] Vᵀ + (d − τ0² c1) I with V = [J/√p, ψ].

    `kernel` is "conjugate", "tangent" or, for a DEQ, "preactivation" (the paper's Implicit-NTK).
    """
    data = samples(x)
    n, p = data.shape
    if len(stats.psi) != n:
        raise BadInput(
            f"x has {n} samples and the statistics were taken of {len(stats.psi)}; they must be of the same x."
        )
    row = scalars(net, stats.tau0).coefficients(kernel)
    if not math.isfinite(row.d):
        raise BadInput(f"{net} has no {kernel} kernel: its diagonal is infinite.")
    factor = torch.cat([data, (stats.J / math.sqrt(p)).to(data), stats.psi[:, None].to(data)], dim=1)
    core = torch.block_diag(
        row.c1 * torch.eye(p, dtype=data.dtype, device=data.device), _class_core(row, stats).to(data)
    )
    diag = torch.full((n,), row.d - stats.tau0**2 * row.c1, dtype=data.dtype, device=data.device)
    return LowRankPlusDiagonal(factor, core, diag)


def _class_core(row: Coefficients, stats: MixtureStatistics) -> Tensor:
    t = stats.t[:, None]
    corner = torch.full((1, 1), row.c2, dtype=t.dtype, device=t.device)
    top = torch.cat([row.c2 * (t @ t.T) + row.c3 * stats.T, row.c2 * t], dim=1)
    return torch.cat([top, torch.cat([row.c2 * t.T, corner], dim=1)])
