"""The theorem's equivalent of a kernel on a Gaussian mixture. Ref: [ling2024] Theorems 1–3, as in docs/theory.md, section 3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import instance
from notsodeep.arrays import Array, check_range, class_codes, label_array, like, samples
from notsodeep.data.blocks import SampleBlocks
from notsodeep.data.targets import Targets
from notsodeep.errors import BadInput
from notsodeep.kernels.exact.solver import refuse_other_features
from notsodeep.kernels.structured.factor import FactorRows, refuse_many_outputs
from notsodeep.linalg.gram_sum import GramSum
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
    check_range(row.d + abs(row.c1) * squared_norms(data), data.dtype, f"The {kernel} kernel of {net}")
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


@dataclass(frozen=True, eq=False)
class EquivalentFactor:
    """U = [x, J/√p, ψ], C and the constant d of `equivalent_kernel`; new samples are of the one class there is."""

    core: Tensor
    level: float
    """d − τ0² c1"""
    mean: Tensor
    """(K, p)"""
    shrinkage: Tensor
    """n_a/(n_a − 1), (K,)"""
    traces: Tensor
    """tr C_a/p, (K,)"""

    @property
    def features(self) -> int:
        return self.mean.shape[1]

    @property
    def terms(self) -> int:
        return 1

    def rows(self, x: Tensor) -> FactorRows:
        if len(self.mean) > 1:
            raise BadInput(
                "This kernel was built with the classes of its samples, and nobody knows those of new ones. Take the sums "
                "without labels: one class, as the estimators do."
            )
        noise = (x - self.mean[0].to(x)).to(torch.float64).square().sum(1)
        psi = noise * float(self.shrinkage[0]) - float(self.traces[0])
        ones = torch.ones_like(psi)
        narrow = torch.stack([ones / math.sqrt(x.shape[1]), psi], dim=1)
        return FactorRows(x, squared_norms(x), ones[:, None], narrow, self.level * ones)


@dataclass(frozen=True, eq=False)
class EquivalentSums:
    """Of each class, Σ [z, 1, r, y]ᵀ[z, 1, r, y] with z = x − shift and r = ‖z‖² − offset.

    ψ is affine in z and r within a class, and so is all of U: these sums hold every statistic, every Gram matrix and every
    target of `equivalent_kernel`, for any network, kernel and ridge, to round-off.
    """

    grams: Tensor
    """(K, p + 2 + m, p + 2 + m)"""
    shift: Tensor
    offset: float
    eps: float
    """of the numbers that were summed"""

    @classmethod
    def of(cls, x: Any, y: Any, labels: Any = None) -> EquivalentSums:
        """One pass over x, an array or `SampleBlocks`, and targets y; `labels` (n,) are classes, by default one for all."""
        rows = x if isinstance(x, SampleBlocks) else SampleBlocks.of(x)
        targets = y if isinstance(y, Targets) else Targets.of(y, len(rows))
        codes = _codes(labels, len(rows))
        p, m = rows.shape[1], targets.outputs
        refuse_many_outputs(p, m, int(codes.max()) + 1)
        sums = [GramSum(1, p, 2 + m) for _ in range(int(codes.max()) + 1)]
        first = rows.read(slice(0, min(rows.block, len(rows)))).to(torch.float64)
        # A shift by about the mean keeps the large common part out of products in float32.
        shift = first.mean(0)
        offset = float((first - shift).square().sum(1).mean())
        for where, part in rows.blocks():
            z, goal, which = part - shift.to(part), targets.read(where).to(part.device), codes[where]
            r = z.to(torch.float64).square().sum(1) - offset
            ones = torch.ones_like(r)
            narrow = torch.cat([ones[:, None], r[:, None], goal], dim=1)
            for a in which.unique().tolist():
                own = slice(None) if len(sums) == 1 else torch.nonzero(which == a).flatten().to(part.device)
                sums[a].add(z[own], ones[own, None], narrow[own], ones[own])
        grams = torch.stack([total.matrix() for total in sums])
        return cls(grams, shift.cpu(), offset, torch.finfo(rows.dtype).eps)

    @property
    def n(self) -> int:
        return round(float(self.counts.sum()))

    @property
    def counts(self) -> Tensor:
        p = len(self.shift)
        return self.grams[:, p, p]

    def centres(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean z (K, p), n_a/(n_a − 1) and tr C_a/p = n_a/(n_a − 1) (mean r + offset − ‖mean z‖²) of each class."""
        p, counts = len(self.shift), self.counts
        if bool((counts < 2).any()):
            raise BadInput(
                f"Class {int(counts.argmin())} has {int(counts.min())} sample; each class needs at least two."
            )
        means = self.grams[:, :p, p] / counts[:, None]
        shrinkage = counts / (counts - 1.0)
        traces = shrinkage * (self.grams[:, p, p + 1] / counts + self.offset - means.square().sum(1))
        if float(traces.max()) <= 16.0 * self.eps**2 * float(self.shift.square().sum()):
            raise BadInput(f"All {self.n} samples are equal, or all of a class: τ0 = 0, there is nothing to scale by.")
        return means, shrinkage, traces

    def statistics(self) -> MixtureStatistics:
        """τ0, t and T as `MixtureStatistics.from_labels` (or `from_data`) has them; ψ and J, one a sample, are left empty."""
        p, counts = len(self.shift), self.counts
        means, shrinkage, traces = self.centres()
        mean_trace = float(counts @ traces) / self.n
        outer = means[:, :, None] * means[:, None, :]
        spreads = shrinkage[:, None, None] * (self.grams[:, :p, :p] - counts[:, None, None] * outer)
        totals = torch.einsum("apq,bpq->ab", spreads, spreads)
        fourth = torch.zeros_like(counts)
        for a, map_ in enumerate(self._norm_maps(means, shrinkage)):
            fourth[a] = map_ @ self.grams[a, : p + 2, : p + 2] @ map_
        pairs = counts[:, None] * counts[None, :]
        T = (totals - torch.diag(fourth)) / (pairs - torch.diag(counts))
        empty = counts.new_zeros(0)
        t = (traces - mean_trace) * math.sqrt(p)
        return MixtureStatistics(math.sqrt(mean_trace), t, p * T, empty, empty[:, None])

    def factor(self, net: Network, kernel: str) -> EquivalentFactor:
        stats = self.statistics()
        means, shrinkage, traces = self.centres()
        row = scalars(net, stats.tau0).coefficients(kernel)
        if not math.isfinite(row.d):
            raise BadInput(f"{net} has no {kernel} kernel: its diagonal is infinite.")
        core = torch.block_diag(row.c1 * torch.eye(len(self.shift), dtype=torch.float64), class_core(row, stats))
        return EquivalentFactor(core, row.d - stats.tau0**2 * row.c1, means + self.shift, shrinkage, traces)

    @cached_property
    def gram(self) -> Tensor:
        """Σ [u, y, 1]ᵀ[u, y, 1] over the samples: (p + K + 1 + m + 1) square."""
        p, classes = len(self.shift), len(self.grams)
        means, shrinkage, traces = self.centres()
        size = self.grams.shape[1]
        total = self.grams.new_zeros((), dtype=torch.float64)
        for a, norm_map in enumerate(self._norm_maps(means, shrinkage)):
            change = self.grams.new_zeros(size, p + classes + 1 + size - p - 1)
            change[:p, :p] = torch.eye(p)
            change[p, :p] = self.shift
            change[p, p + a] = 1.0 / math.sqrt(p)
            change[: p + 2, p + classes] = norm_map
            change[p, p + classes] -= traces[a]
            change[p + 2 :, p + classes + 1 : -1] = torch.eye(size - p - 2)
            change[p, -1] = 1.0
            total = total + change.T @ self.grams[a] @ change
        return total

    def _norm_maps(self, means: Tensor, shrinkage: Tensor) -> Tensor:
        """(K, p + 2): n_a/(n_a − 1) ‖z − mean‖² as a combination of z, 1 and r."""
        constant = self.offset + means.square().sum(1)
        return shrinkage[:, None] * torch.cat([-2.0 * means, constant[:, None], torch.ones_like(constant)[:, None]], 1)


def _codes(labels: Any, n: int) -> Tensor:
    if labels is None:
        return torch.zeros(n, dtype=torch.long)
    values = label_array(labels, "labels")
    if values.shape != (n,):
        raise BadInput(f"The labels have shape {values.shape}; expected ({n},), one a row of x.")
    return torch.from_numpy(class_codes(values)[1])
