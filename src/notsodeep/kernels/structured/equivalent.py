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
from notsodeep.kernels.exact.solver import check_features
from notsodeep.kernels.names import Kernel, as_kernel
from notsodeep.kernels.structured.factor import FactorRows, check_outputs
from notsodeep.linalg.gram_sum import GramSum
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.theory.architecture import Network
from notsodeep.theory.scalars import Coefficients, scalars
from notsodeep.theory.statistics import MixtureStatistics, squared_norms


def equivalent_kernel(
    net: Network, x: Array, stats: MixtureStatistics, kernel: Kernel | str = Kernel.CONJUGATE
) -> LowRankPlusDiagonal:
    """The kernel of Theorems 1–3, as low rank + diagonal in O(n p) memory:

        c1 S + V [[c2 ttᵀ + c3 T, c2 t], [c2 tᵀ, c2]] Vᵀ + (d − τ0² c1) I,    V = [J/√p, ψ].

    Args:
        net: An `Implicit` or a centred `Explicit` network.
        x: Samples (n, p).
        stats: The statistics of the same x: `MixtureStatistics.from_labels(x, y)`, `.from_mixture(…)` or `.from_data(x)`.
        kernel: "conjugate", "tangent" or, for a DEQ, "preactivation".

    Returns:
        The kernel as a `LowRankPlusDiagonal` of rank at most p + K + 1, in the dtype of x.

    Raises:
        BadInput: An unknown kernel, statistics of another number of samples, or a kernel with an infinite diagonal.
        NotContractive: The DEQ has no equilibrium, or its pairs keep no correlation.
    """
    instance(stats, MixtureStatistics, "stats", "the statistics of x, MixtureStatistics.from_labels(x, y) or .from_data(x)")
    data = samples(x)
    n, p = data.shape
    if len(stats.psi) != n:
        raise BadInput(f"x has {n} samples and the statistics were taken of {len(stats.psi)}; they must be of the same x.")
    factor = EquivalentFactor.of(net, stats, kernel, p)
    check_range(factor.row.d + abs(factor.row.c1) * squared_norms(data), data.dtype, f"The {as_kernel(kernel)} kernel of {net}")
    return factor.labelled(data, stats.J, stats.psi).operator(factor.core, data)


def equivalent_cross(net: Network, x: Array, x2: Array, kernel: Kernel | str = Kernel.CONJUGATE) -> Any:
    """The theorem's kernel of new samples x against x2, (n, n2), where the classes are unknown.

    x2 is one class, as in `MixtureStatistics.from_data`, and x is of that class too: t = 0, ψ is ‖x_i − mean‖² less its mean.
    """
    data, old = samples(x), samples(x2, "x2")
    check_features(data, old)
    stats = MixtureStatistics.from_data(old)
    n, p = old.shape
    shrinkage, trace = (stats.t.new_tensor([value]) for value in (n / (n - 1), stats.tau0**2))
    centres = Centres(old.to(torch.float64).mean(0, keepdim=True), shrinkage, trace)
    factor = EquivalentFactor.of(net, stats, kernel, p, centres)
    ours, theirs = (factor.rows(rows).narrow.to(data) for rows in (data, old))
    core = _class_core(factor.row, stats).to(data)
    return like(x)(factor.row.c1 * (data @ old.to(data).T) + ours @ core @ theirs.T)


def coefficients(net: Network, tau0: float, kernel: Kernel | str) -> Coefficients:
    """c1, c2, c3 and d of a kernel of `net` on data of root mean square norm τ0; raises BadInput where there is none."""
    chosen = as_kernel(kernel)
    found: Coefficients | None = getattr(scalars(net, tau0), chosen)
    if found is None:
        raise BadInput("Only a DEQ has a kernel read out at a pre-activation.")
    if not math.isfinite(found.d):
        raise BadInput(f"{net} has no {chosen} kernel: its diagonal is infinite.")
    return found


def _class_core(row: Coefficients, stats: MixtureStatistics) -> Tensor:
    """[[c2 ttᵀ + c3 T, c2 t], [c2 tᵀ, c2]], (K + 1, K + 1)."""
    t = torch.cat([stats.t, stats.t.new_ones(1)])
    core: Tensor = row.c2 * torch.outer(t, t) + torch.block_diag(row.c3 * stats.T, stats.T.new_zeros(1, 1))
    return core


@dataclass(frozen=True, eq=False)
class Centres:
    """The mean (K, p) of each class, n_a/(n_a − 1) and tr C_a/p, (K,): ψ of a sample of known class follows from them."""

    means: Tensor
    shrinkage: Tensor
    traces: Tensor


@dataclass(frozen=True, eq=False)
class EquivalentFactor:
    """U = [x, J/√p, ψ], C and the constant d of `equivalent_kernel`."""

    row: Coefficients
    core: Tensor
    level: float
    """d − τ0² c1"""
    features: int
    centres: Centres | None = None
    terms = 1

    @classmethod
    def of(
        cls, net: Network, stats: MixtureStatistics, kernel: Kernel | str, p: int, centres: Centres | None = None
    ) -> EquivalentFactor:
        row = coefficients(net, stats.tau0, kernel)
        square = row.c1 * torch.eye(p, dtype=torch.float64, device=stats.T.device)
        core = torch.block_diag(square, _class_core(row, stats))
        return cls(row, core, row.d - stats.tau0**2 * row.c1, p, centres)

    def rows(self, x: Tensor) -> FactorRows:
        """U and d of new samples, which are of the only class there is."""
        assert self.centres is not None
        if len(self.centres.means) > 1:
            raise BadInput(
                "This kernel was built with the classes of its samples, and the classes of new ones are unknown. Take the sums "
                "without labels: one class, as the estimators do."
            )
        noise = (x - self.centres.means[0].to(x)).to(torch.float64).square().sum(1)
        psi = noise * float(self.centres.shrinkage[0]) - float(self.centres.traces[0])
        return self.labelled(x, torch.ones_like(psi)[:, None], psi)

    def labelled(self, x: Tensor, J: Tensor, psi: Tensor) -> FactorRows:
        """U and d of samples whose classes J (n, K) and ψ (n,) are known."""
        ones = torch.ones(len(x), dtype=torch.float64, device=x.device)
        narrow = torch.cat([J / math.sqrt(x.shape[1]), psi[:, None]], dim=1).to(ones)
        return FactorRows(x, ones[:, None], narrow, self.level * ones)


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
    """Machine epsilon of the numbers that were summed."""

    @classmethod
    def of(cls, x: Any, y: Any, labels: Any = None) -> EquivalentSums:
        """One pass over x (an array, or `SampleBlocks`) and targets y; without `labels` (n,) all samples are one class."""
        rows = SampleBlocks.of(x)
        targets = y if isinstance(y, Targets) else Targets.of(y, len(rows))
        codes = _codes(labels, len(rows))
        p, m = rows.shape[1], targets.outputs
        check_outputs(p, m, int(codes.max()) + 1)
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
    def p(self) -> int:
        return len(self.shift)

    @property
    def n(self) -> int:
        return round(float(self.counts.sum()))

    @property
    def counts(self) -> Tensor:
        """The number of samples of each class, (K,)."""
        return self.grams[:, self.p, self.p]

    @cached_property
    def centres(self) -> Centres:
        """Means of z, n_a/(n_a − 1), and tr C_a/p = n_a/(n_a − 1) (mean r + offset − ‖mean z‖²)."""
        p, counts = self.p, self.counts
        if bool((counts < 2).any()):
            raise BadInput(f"Class {int(counts.argmin())} has {int(counts.min())} sample; each class needs at least two.")
        means = self.grams[:, :p, p] / counts[:, None]
        shrinkage = counts / (counts - 1.0)
        traces = shrinkage * (self.grams[:, p, p + 1] / counts + self.offset - means.square().sum(1))
        if float(traces.max()) <= 16.0 * self.eps**2 * float(self.shift.square().sum()):
            raise BadInput(f"All {self.n} samples are equal, or all of a class: τ0 = 0, there is nothing to scale by.")
        return Centres(means, shrinkage, traces)

    def statistics(self) -> MixtureStatistics:
        """τ0, t and T as `MixtureStatistics.from_labels` (or `from_data`) has them; the per-sample ψ and J are left empty."""
        p, counts, at = self.p, self.counts, self.centres
        mean_trace = float(counts @ at.traces) / self.n
        outer = at.means[:, :, None] * at.means[:, None, :]
        spreads = at.shrinkage[:, None, None] * (self.grams[:, :p, :p] - counts[:, None, None] * outer)
        totals = torch.einsum("apq,bpq->ab", spreads, spreads)
        fourth = torch.zeros_like(counts)
        for a, norm in enumerate(self._norms()):
            fourth[a] = norm @ self.grams[a, : p + 2, : p + 2] @ norm
        pairs = counts[:, None] * counts[None, :]
        T = (totals - torch.diag(fourth)) / (pairs - torch.diag(counts))
        empty = counts.new_zeros(0)
        t = (at.traces - mean_trace) * math.sqrt(p)
        return MixtureStatistics(math.sqrt(mean_trace), t, p * T, empty, empty[:, None])

    def factor(self, net: Network, kernel: Kernel | str) -> EquivalentFactor:
        """U, C and d of a kernel of any network on the samples that were summed."""
        at = self.centres
        moved = Centres(at.means + self.shift, at.shrinkage, at.traces)
        return EquivalentFactor.of(net, self.statistics(), kernel, self.p, moved)

    @cached_property
    def gram(self) -> Tensor:
        """Σ [u, y, 1]ᵀ[u, y, 1] over the samples: (p + K + 1 + m + 1) square."""
        p, classes, size = self.p, len(self.grams), self.grams.shape[1]
        # Columns of the sums, [z, 1, r, y], and of the result, [x, J/√p, ψ, y, 1].
        z, one, y = slice(0, p), p, slice(p + 2, size)
        x, psi, goal, last = slice(0, p), p + classes, slice(p + classes + 1, -1), -1
        total = self.grams.new_zeros((), dtype=torch.float64)
        for a, norm in enumerate(self._norms()):
            change = self.grams.new_zeros(size, classes + size)
            change[z, x] = torch.eye(p)
            change[one, x] = self.shift
            change[one, p + a] = 1.0 / math.sqrt(p)
            change[: p + 2, psi] = norm
            change[one, psi] -= self.centres.traces[a]
            change[y, goal] = torch.eye(size - p - 2)
            change[one, last] = 1.0
            total = total + change.T @ self.grams[a] @ change
        return total

    def _norms(self) -> Tensor:
        """(K, p + 2): n_a/(n_a − 1) ‖z − mean‖² as a combination of z, 1 and r."""
        means, shrinkage = self.centres.means, self.centres.shrinkage
        constant = self.offset + means.square().sum(1)
        return shrinkage[:, None] * torch.cat([-2.0 * means, constant[:, None], torch.ones_like(constant)[:, None]], 1)


def _codes(labels: Any, n: int) -> Tensor:
    """Classes 0 … K − 1 of any labels (n,); zeros without labels."""
    if labels is None:
        return torch.zeros(n, dtype=torch.long)
    values = label_array(labels, "labels")
    if values.shape != (n,):
        raise BadInput(f"The labels have shape {values.shape}; expected ({n},), one per row of x.")
    return torch.from_numpy(class_codes(values)[1])
