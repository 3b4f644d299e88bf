"""What a streamed fit knows: predictions, their variance, the marginal likelihood, the spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, lobpcg
from torch import Tensor

from notsodeep.arguments import count
from notsodeep.data.blocks import Rows
from notsodeep.errors import BadInput
from notsodeep.kernels.streamed_equivalent import EquivalentFactor
from notsodeep.kernels.streamed_factor import Factor, FactorRows
from notsodeep.linalg.low_rank import Capacitance

_SPECTRUM_STEPS = 60


@dataclass(frozen=True, eq=False)
class StreamedFit:
    """A = K + λI, K = U C Uᵀ + diag(d), fitted to y − ȳ; only the samples, which stay where they are, are of size n."""

    factor: Factor
    system: Capacitance
    weights: Tensor
    """P Uᵀ (D + λ)⁻¹ (y − ȳ), (r, m): a new sample gets uᵀ weights + ȳ"""
    intercept: Tensor
    """ȳ, (m,)"""
    n: int
    ridge: float
    noise: float
    """λ = ridge·tr K/n"""
    logdet: float
    """log |K + λI|"""
    quadratic: Tensor
    """(y − ȳ)ᵀ (K + λI)⁻¹ (y − ȳ) of each output, (m,)"""
    rows: Rows | None
    flat: bool

    @property
    def log_marginal_likelihood(self) -> Tensor:
        """−½ (Tᵀ A⁻¹ T + log |A| + n log 2π) of each output, (m,)."""
        return -0.5 * (self.quadratic + self.logdet + self.n * math.log(2.0 * math.pi))

    def predict(self, x: Any) -> Any:
        """k(x)ᵀ A⁻¹ (y − ȳ) + ȳ: (n, m), or (n,) where y was; in float64, a tensor for a tensor and else a numpy array."""

        def mean(at: FactorRows) -> Tensor:
            return at.times(self.weights) + self.intercept

        found = self._each(x, mean)
        return found[:, 0] if self.flat else found

    def variance(self, x: Any) -> Any:
        """K(x, x) − k(x)ᵀ A⁻¹ k(x) = d + uᵀ P u, the posterior variance without noise, (n,)."""
        return self._each(x, lambda at: at.diag + at.quadratic(self.system.inner))

    @torch.no_grad()
    def _each(self, x: Any, answer: Callable[[FactorRows], Tensor]) -> Any:
        old = self.rows
        rows = Rows.of(x, None, old.dtype if old else None, old.standardiser if old else None)
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
        _, start = self.system.ritz(k)
        rows = self.rows
        assert rows is not None
        guess = self._outer(start)
        if guess.shape[1] < k:  # fewer directions than asked for: any others will do
            extra = torch.randn(
                self.n, k - guess.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)
            )
            guess = torch.cat([guess, extra], dim=1)
        operator = LinearOperator((self.n, self.n), matvec=self._matvec, matmat=self._matvec, dtype=np.float64)
        guess = torch.linalg.qr(guess).Q
        # The error of λ is ‖K v − λ v‖² over a gap: half the digits there are all of them here.
        tolerance = torch.finfo(rows.dtype).eps ** 0.5 * float(np.linalg.norm(self._matvec(guess[:, :1].numpy())))
        values, _ = lobpcg(operator, guess.numpy(), tol=tolerance, maxiter=_SPECTRUM_STEPS, largest=True)
        return torch.from_numpy(np.sort(values)[::-1].copy())

    def _outer(self, right: Tensor) -> Tensor:
        """U R, (n, m), in a pass."""
        assert self.rows is not None
        return torch.cat([self.factor.rows(part).times(right).cpu() for _, part in self.rows.blocks()])

    def _matvec(self, v: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """K v = U C (Uᵀ v) + d v, in two passes over the samples."""
        assert self.rows is not None
        left = torch.from_numpy(np.ascontiguousarray(v)).to(torch.float64).reshape(self.n, -1)
        inside = torch.zeros(len(self.factor.core), left.shape[1], dtype=torch.float64)
        for where, part in self.rows.blocks():
            inside += self.factor.rows(part).transposed_times(left[where]).cpu()
        inside = self.factor.core @ inside
        parts = []
        for where, part in self.rows.blocks():
            at = self.factor.rows(part)
            parts.append((at.times(inside) + at.diag[:, None] * left[where]).cpu())
        return torch.cat(parts).numpy().reshape(v.shape)
