"""Kernel ridge regression and Gaussian processes block by block, for more samples than a kernel matrix could hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import choice, count, instance, numbers
from notsodeep.data.blocks import SampleBlocks
from notsodeep.data.standardiser import Standardiser
from notsodeep.data.targets import Targets
from notsodeep.errors import BadInput, warn
from notsodeep.kernels.names import Kernel, as_kernel
from notsodeep.kernels.structured.equivalent import EquivalentFactor, EquivalentSums
from notsodeep.kernels.structured.factor import FactorRows, check_outputs
from notsodeep.kernels.structured.sharp import SharpFactor, SharpStatistics
from notsodeep.linalg.eigen import Lobpcg, top_eigenpairs
from notsodeep.linalg.gram_sum import GramSum
from notsodeep.linalg.low_rank import Capacitance
from notsodeep.theory.architecture import Network

_FAR = 1.5  # of squared norms beyond those of the statistics

Factor = EquivalentFactor | SharpFactor
"""The rows of U and d for any samples, known or new, and C."""


def streamed_fit(
    net: Network,
    x: Any,
    y: Any,
    *,
    kernel: Kernel | str = Kernel.CONJUGATE,
    form: str = "sharp",
    ridge: float = 1e-3,
    statistics: SharpStatistics | None = None,
    standardiser: Standardiser | None = None,
    block: int | None = None,
    dtype: torch.dtype | None = None,
) -> StreamedFit:
    """Fit (K + λI)⁻¹(y − ȳ), λ = ridge·tr K/n, with K the low rank + diagonal `sharp_kernel` or `equivalent_kernel` of x.

    x is read block by block and never copied. Only Gram matrices of r columns are kept, r ≈ p; products are in the dtype of x
    (or `dtype`), sums in float64. The equivalent form needs one pass; x is one class, as in the estimators. The sharp form
    first needs a pass for its `statistics`, unless they are given: the norms of a few thousand samples do as well as all, their
    leading directions only where these stand out.

    Args:
        net: An `Implicit` or an `Explicit` network.
        x: Samples (n, p): a memory map (`np.load(path, mmap_mode="r")`), an array, a tensor, or an object that gives rows for
            x[start:stop].
        y: Real numbers (n,) or (n, K), or classes 0 … K − 1, regressed on as one-hot rows.
        kernel: "conjugate", "tangent" or "preactivation".
        form: "sharp" or "equivalent".
        ridge: λ relative to the mean of the kernel's diagonal.
        statistics: Of the sharp form; `SharpStatistics.from_pass(x)` by default.
        standardiser: Applied to each block, here and in predictions.
        block: Rows per block; some four million numbers by default.
        dtype: Of the products; that of x by default.

    Returns:
        The fit, which predicts and has the likelihood and the spectrum.

    Raises:
        BadInput: Arguments that do not fit, or a kernel whose diagonal is infinite.
        NotContractive: The DEQ has no equilibrium on these samples.
    """
    rows = SampleBlocks.of(x, block, dtype, standardiser)
    return streamed_fits(net, rows, y, kernel=kernel, form=form, ridges=(ridge,), statistics=statistics)[0]


@torch.no_grad()
def streamed_fits(
    net: Network,
    x: Any,
    y: Any,
    *,
    ridges: Sequence[float],
    kernel: Kernel | str = Kernel.CONJUGATE,
    form: str = "sharp",
    statistics: SharpStatistics | None = None,
    standardiser: Standardiser | None = None,
    block: int | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[StreamedFit, ...]:
    """`streamed_fit` for several ridges in the same pass.

    They cost as much as one for the equivalent form, whose diagonal is constant; the sharp form takes one Gram matrix each.
    """
    rows = SampleBlocks.of(x, block, dtype, standardiser)
    targets = Targets.of(y, len(rows))
    ridges = numbers(ridges, "ridges", least=0.0)
    choice(form, "form", ("sharp", "equivalent"))
    chosen = as_kernel(kernel)
    if statistics is not None:
        instance(statistics, SharpStatistics, "statistics", "SharpStatistics, as SharpStatistics.from_sample(x) gives them")
    if form == "equivalent":
        if statistics is not None:
            raise BadInput("Statistics are for the sharp form; the equivalent one takes its own in the same pass.")
        sums = EquivalentSums.of(rows, targets)
        return tuple(equivalent_fit(net, sums, chosen, ridge, rows=rows, flat=targets.flat) for ridge in ridges)
    stats = statistics or SharpStatistics.from_pass(rows)
    if len(stats.directions) != rows.shape[1]:
        raise BadInput(f"x has {rows.shape[1]} features, its statistics {len(stats.directions)}; they must agree.")
    return _sharp_fits(SharpFactor(net, stats, chosen), rows, targets, ridges)


def equivalent_fit(
    net: Network,
    sums: EquivalentSums,
    kernel: Kernel | str,
    ridge: float,
    *,
    rows: SampleBlocks | None = None,
    flat: bool = False,
) -> StreamedFit:
    """A fit of the equivalent form from sums taken before: any network, kernel and ridge without reading x again."""
    factor, n = sums.factor(net, kernel), sums.n
    gram, r = sums.gram, len(factor.core)
    noise = ridge * (float((factor.core * gram[:r, :r]).sum()) / n + factor.level)
    level = factor.level + noise
    logarithm = n * math.log(abs(level)) if level else -math.inf
    shift = _Shift(ridge, noise, logarithm, n if level < 0 else 0)
    return _solved(factor, gram / level, gram[r:-1, -1] / n, shift, n=n, rows=rows, flat=flat)


def _sharp_fits(factor: SharpFactor, rows: SampleBlocks, targets: Targets, ridges: Sequence[float]) -> tuple[StreamedFit, ...]:
    """Of each λ: Σ [u, y, 1]ᵀ[u, y, 1]/(d_i + λ) and Σ log(d_i + λ), block by block."""
    p, n, m = rows.shape[1], len(rows), targets.outputs
    terms = factor.terms
    check_outputs(len(factor.core), m, len(ridges))
    shifts = [_Shift(ridge, ridge * factor.mean_diagonal) for ridge in ridges]
    grams = [GramSum(terms, p, len(factor.core) - terms * p + m + 1) for _ in ridges]
    total, far = torch.zeros(m, dtype=torch.float64), 0
    for where, part in rows.blocks():
        at, goal = factor.rows(part), targets.read(where).to(part.device)
        narrow = torch.cat([at.narrow, goal, torch.ones_like(goal[:, :1])], dim=1)
        total += goal.sum(0).cpu()
        assert at.norms2 is not None
        far += int(((at.norms2 > _FAR * factor.high) | (at.norms2 * _FAR < factor.low)).sum())
        for gram, shift in zip(grams, shifts, strict=True):
            diag = at.diag + shift.noise
            gram.add(part, at.scales, narrow, 1.0 / diag)
            shift.logarithm += float(diag.abs().log().sum())
            shift.negative += int((diag < 0).sum())
    if far:
        warn(
            f"{far} of {n} samples have norms far outside those of the statistics, {factor.low**0.5:.3g} to "
            f"{factor.high**0.5:.3g}: their part of the kernel is extrapolated. Pass statistics=SharpStatistics.from_pass(x)."
        )
    return tuple(
        _solved(factor, gram.matrix(), total / n, shift, n=n, rows=rows, flat=targets.flat)
        for gram, shift in zip(grams, shifts, strict=True)
    )


@dataclass
class _Shift:
    """λ = noise = ridge·tr K/n, and Σ log |D_i| of D = diag(d) + λI with the number of negative D_i."""

    ridge: float
    noise: float
    logarithm: float = 0.0
    negative: int = 0


def _solved(factor: Factor, sums: Tensor, mean: Tensor, shift: _Shift, **about: Any) -> StreamedFit:
    """From Σ [u, y, 1]ᵀ[u, y, 1]/D_i, with T = y − ȳ: P Uᵀ D⁻¹ T, Tᵀ A⁻¹ T = Tᵀ D⁻¹ T − (Uᵀ D⁻¹ T)ᵀ P (Uᵀ D⁻¹ T), log |A|."""
    u, y, one = slice(0, len(factor.core)), slice(len(factor.core), -1), -1
    system = Capacitance(factor.core, sums[u, u].contiguous())
    right = sums[u, y] - sums[u, one, None] * mean
    weights = system.solve(right)
    plain = sums.diagonal()[y] - 2.0 * mean * sums[y, one] + mean.square() * sums[one, one]
    return StreamedFit(
        factor=factor,
        system=system,
        weights=weights,
        intercept=mean,
        ridge=float(shift.ridge),
        noise=shift.noise,
        logdet=shift.logarithm + float(system.logdet(shift.negative)),
        quadratic=plain - (right * weights).sum(0),
        **about,
    )


@dataclass(frozen=True, eq=False)
class StreamedFit:
    """A = K + λI, K = U C Uᵀ + diag(d), fitted to y − ȳ; it holds nothing of size n but a reference to the samples."""

    factor: Factor
    """U, C and d of any samples"""
    system: Capacitance
    """C and Uᵀ (D + λ)⁻¹ U"""
    weights: Tensor
    """P Uᵀ (D + λ)⁻¹ (y − ȳ), (r, m): a new sample gets uᵀ weights + ȳ"""
    intercept: Tensor
    """ȳ, (m,)"""
    n: int
    """The number of samples"""
    ridge: float
    """λ relative to tr K/n"""
    noise: float
    """λ = ridge·tr K/n"""
    logdet: float
    """log |K + λI|"""
    quadratic: Tensor
    """(y − ȳ)ᵀ (K + λI)⁻¹ (y − ȳ) of each output, (m,)"""
    rows: SampleBlocks | None
    """The samples, unless the fit was made from sums"""
    flat: bool
    """Whether y was (n,)"""

    @property
    def log_marginal_likelihood(self) -> Tensor:
        """−½ (Tᵀ A⁻¹ T + log |A| + n log 2π) of each output, (m,)."""
        return -0.5 * (self.quadratic + self.logdet + self.n * math.log(2.0 * math.pi))

    def predict(self, x: Any) -> Any:
        """k(x)ᵀ A⁻¹ (y − ȳ) + ȳ, in float64: (n, m), or (n,) where y was; a tensor for a tensor, else a numpy array."""
        found = self._each(x, lambda at: at.times(self.weights) + self.intercept)
        return found[:, 0] if self.flat else found

    def variance(self, x: Any) -> Any:
        """K(x, x) − k(x)ᵀ A⁻¹ k(x) = d + uᵀ P u, the posterior variance without noise, (n,)."""
        return self._each(x, lambda at: at.diag + at.quadratic(self.system.inner))

    @torch.no_grad()
    def _each(self, x: Any, answer: Callable[[FactorRows], Tensor]) -> Any:
        old = self.rows
        rows = SampleBlocks.of(x, None, old.dtype if old else None, old.standardiser if old else None)
        p = self.factor.features
        if rows.shape[1] != p:
            raise BadInput(f"x has {rows.shape[1]} features; the fit was to samples of {p}.")
        found = torch.cat([answer(self.factor.rows(part)).cpu() for _, part in rows.blocks()])
        return found if isinstance(x, Tensor) else found.numpy()

    def spectrum(self, k: int = 10) -> Tensor:
        """The k largest eigenvalues of K, descending.

        Equivalent form: d is constant, so they are those of U C Uᵀ plus d, exactly, without the samples. Sharp form: those of
        D^(−1/2) U C Uᵀ D^(−1/2) give a start from which LOBPCG converges in a few pairs of passes over the samples.
        """
        k = count(k, "k", most=self.n)
        if isinstance(self.factor, EquivalentFactor):
            level = self.factor.level + self.noise
            found, _ = self.system.ritz(len(self.factor.core))
            values = level * found
            spare = max(0, self.n - len(values))
            return torch.cat([values, values.new_zeros(min(k, spare))]).sort().values.flip(0)[:k] + self.factor.level
        return self._iterated_spectrum(k)

    @torch.no_grad()
    def _iterated_spectrum(self, k: int) -> Tensor:
        rows = self.rows
        assert rows is not None
        guess = self._outer(self.system.ritz(k)[1])
        if guess.shape[1] < k:  # fewer directions than asked for: any others will do
            extra = torch.randn(self.n, k - guess.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            guess = torch.cat([guess, extra], dim=1)
        # The error of λ is ‖K v − λ v‖² over a gap: half the digits there are all of them here.
        method = Lobpcg(guess, torch.finfo(rows.dtype).eps ** 0.5)
        return top_eigenpairs(self._matvec, k, guess, method).values

    def _outer(self, right: Tensor) -> Tensor:
        """U R, (n, m), in a pass."""
        assert self.rows is not None
        return torch.cat([self.factor.rows(part).times(right).cpu() for _, part in self.rows.blocks()])

    def _matvec(self, v: Tensor) -> Tensor:
        """K v = U C (Uᵀ v) + d v, in two passes over the samples."""
        assert self.rows is not None
        left = v.reshape(self.n, -1)
        inside = torch.zeros(len(self.factor.core), left.shape[1], dtype=torch.float64)
        for where, part in self.rows.blocks():
            inside += self.factor.rows(part).transposed_times(left[where]).cpu()
        inside = self.factor.core @ inside
        parts = []
        for where, part in self.rows.blocks():
            at = self.factor.rows(part)
            parts.append((at.times(inside) + at.diag[:, None] * left[where]).cpu())
        return torch.cat(parts).reshape(v.shape)
