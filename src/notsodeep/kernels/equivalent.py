"""The theorem's equivalent of a kernel on a Gaussian mixture. Ref: [ling2024] Theorems 1–3, as in docs/theory.md, section 3."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import instance
from notsodeep.arrays import Array, like, refuse_beyond, samples
from notsodeep.errors import BadInput
from notsodeep.kernels.prepared import refuse_other_features
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.theory.architecture import Network
from notsodeep.theory.scalars import Coefficients, scalars
from notsodeep.theory.statistics import MixtureStatistics, squared_norms


def equivalent_kernel(
    net: Network, x: Array, stats: MixtureStatistics, kernel: str = "conjugate"
) -> LowRankPlusDiagonal:
    """c1 S + V [[c2 ttᵀ + c3 T, c2 t], [c2 tᵀ, c2]] Vᵀ + (d − τ0² c1) I with V = [J/√p, ψ].

    `kernel` is "conjugate", "tangent" or, for a DEQ, "preactivation" (the paper's Implicit-NTK).
    """
    instance(
        stats, MixtureStatistics, "stats", "the statistics of x, MixtureStatistics.from_labels(x, y) or .from_data(x)"
    )
    data = samples(x)
    n, p = data.shape
    if len(stats.psi) != n:
        raise BadInput(
            f"x has {n} samples and the statistics were taken of {len(stats.psi)}; they must be of the same x."
        )
    row = scalars(net, stats.tau0).coefficients(kernel)
    if not math.isfinite(row.d):
        raise BadInput(f"{net} has no {kernel} kernel: its diagonal is infinite.")
    refuse_beyond(row.d + abs(row.c1) * squared_norms(data), data.dtype, f"The {kernel} kernel of {net}")
    factor = torch.cat([data, _class_factor(stats.J, p, stats.psi).to(data)], dim=1)
    core = torch.block_diag(
        row.c1 * torch.eye(p, dtype=data.dtype, device=data.device), class_core(row, stats).to(data)
    )
    diag = torch.full((n,), row.d - stats.tau0**2 * row.c1, dtype=data.dtype, device=data.device)
    return LowRankPlusDiagonal(factor, core, diag)


def equivalent_cross(net: Network, x: Array, x2: Array, kernel: str = "conjugate") -> Any:
    """The theorem's kernel of new samples x against x2, (n, n2), where nobody knows the classes.

    x2 is one class, as in `MixtureStatistics.from_data`, and x is of that class too: t = 0, ψ is ‖x_i − mean‖² less its mean.
    """
    data, old = samples(x), samples(x2, "x2")
    refuse_other_features(data, old)
    stats = MixtureStatistics.from_data(old)
    row = scalars(net, stats.tau0).coefficients(kernel)
    n, p = old.shape
    mean = old.to(torch.float64).mean(0)
    psi = (data.to(torch.float64) - mean.to(data.device)).square().sum(1) * (n / (n - 1)) - stats.tau0**2
    core = class_core(row, stats).to(data)
    ours, theirs = (
        _class_factor(J, p, f).to(data) for J, f in ((torch.ones_like(psi)[:, None], psi), (stats.J, stats.psi))
    )
    return like(x)(row.c1 * (data @ old.to(data).T) + ours @ core @ theirs.T)


def _class_factor(J: Tensor, p: int, psi: Tensor) -> Tensor:
    """V = [J/√p, ψ]."""
    return torch.cat([J / math.sqrt(p), psi[:, None]], dim=1)


def class_core(row: Coefficients, stats: MixtureStatistics) -> Tensor:
    t = stats.t[:, None]
    corner = torch.full((1, 1), row.c2, dtype=t.dtype, device=t.device)
    top = torch.cat([row.c2 * (t @ t.T) + row.c3 * stats.T, row.c2 * t], dim=1)
    return torch.cat([top, torch.cat([row.c2 * t.T, corner], dim=1)])
