"""The sharp equivalent of samples that are read block by block. Ref: docs/theory.md, section 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from notsodeep.approximation.tables import ChebyshevSeries, chebyshev_subset
from notsodeep.arguments import count
from notsodeep.arguments import generator as checked_generator
from notsodeep.arrays import Array, real
from notsodeep.data.blocks import Rows
from notsodeep.errors import BadInput
from notsodeep.kernels.gram_series import GramSeries, explicit_series, implicit_series
from notsodeep.kernels.pairs import ExplicitPairs, ImplicitPairs
from notsodeep.kernels.prepared import equation_of_norms
from notsodeep.kernels.sharp import squares_along
from notsodeep.kernels.streamed_factor import FactorRows
from notsodeep.linalg.eigen import leading_directions
from notsodeep.linalg.gram_sum import GramSum
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.statistics import root_mean_square, squared_norms
from notsodeep.tolerances import SEPARABLE_RTOL

SAMPLE, DIRECTIONS = 16384, 10

_MARGIN = 4.0  # of squared norms about those known, within which functions of a norm come from a series
_WIDEST = 1e6  # of a range of squared norms that one series is asked to follow

Pairs = ImplicitPairs | ExplicitPairs


@dataclass(frozen=True, eq=False)
class SharpStatistics:
    """What the sharp kernel asks of all samples: ‖x_i‖² (for τ0, the range of τ, tr K) and leading directions (p, k)."""

    norms2: Tensor
    directions: Tensor

    def __post_init__(self) -> None:
        if not bool((real(self.norms2, "norms2", (None,)) >= 0.0).all()) or not len(self.norms2):
            raise BadInput("norms2 holds a negative number, or none: expected ‖x_i‖² of the samples, (n,).")
        real(self.directions, "directions", (None, None))

    @classmethod
    def from_pass(cls, x: Array | Rows, directions: int = DIRECTIONS) -> SharpStatistics:
        """Of every sample, in a pass of its own: ‖x_i‖² and the leading eigenvectors of xᵀx, summed block by block."""
        rows, directions = x if isinstance(x, Rows) else Rows.of(x), count(directions, "directions", least=0)
        p = rows.shape[1]
        norms2, gram = [], GramSum(1, p, 0)
        for _, part in rows.blocks():
            norms2.append(squared_norms(part).cpu())
            one = torch.ones(len(part), dtype=torch.float64, device=part.device)
            gram.add(part, one[:, None], part.new_empty(len(part), 0, dtype=torch.float64), one)
        vectors: Tensor = torch.linalg.eigh(gram.matrix()).eigenvectors
        return cls(torch.cat(norms2), vectors[:, p - min(directions, p) :].flip(1))

    @classmethod
    def from_sample(
        cls,
        x: Array | Rows,
        size: int = SAMPLE,
        directions: int = DIRECTIONS,
        generator: torch.Generator | None = None,
    ) -> SharpStatistics:
        """Of `size` samples at random, so that no pass over the others is needed; of all, where there are no more.

        Their norms serve as well as all norms. Their directions are those of all samples only where these stand out.
        """
        directions, generator = count(directions, "directions", least=0), checked_generator(generator)
        drawn = (x if isinstance(x, Rows) else Rows.of(x)).sample(size, generator).to(torch.float64)
        vectors = leading_directions(drawn, min(directions, drawn.shape[1]))
        return cls(squared_norms(drawn).cpu(), vectors.cpu())

    @cached_property
    def tau0(self) -> float:
        return root_mean_square(self.norms2)


class SharpFactor:
    """U = [f¹(τ_i) ⊗ x_i, f⁰(τ_i), f²(τ_i) ⊗ q_i], C diagonal and d of `sharp_kernel`, for samples known by their statistics.

    f⁰, f¹, f² separate the coefficients of 1, S and S² (at most 24 known norms serve as Nyström's points); q are the quadratic
    features. All of them, and the exact diagonal, are functions of ‖x_i‖² alone, so a Chebyshev series of each replaces one
    fixed point and its integrals a sample; a norm far from those known is computed by itself.
    """

    def __init__(self, net: Network, stats: SharpStatistics, kernel: str, tau0: float | None = None) -> None:
        self.kernel, self.directions = kernel, stats.directions
        centre = stats.tau0 if tau0 is None and isinstance(net, Implicit) and net.centre else tau0
        first = equation_of_norms(net, stats.norms2[:1], centre)  # warns and refuses, once
        assert isinstance(first, ImplicitPairs | ExplicitPairs)
        self.net = first.net
        self.low, self.high = float(stats.norms2.min()), float(stats.norms2.max())
        self._pivots = self._pairs(self._spread_out(stats.norms2))
        self._bases, self._weights = self._separated()
        self._series = self._interpolated(self._columns)
        at = self.functions(stats.norms2)
        if not bool(torch.isfinite(at).all()):
            raise BadInput(f"{net} has no {kernel} kernel: its diagonal is infinite.")
        self.mean_diagonal = float(at[:, -1].mean())
        """tr K/n over the samples of the statistics"""

    @cached_property
    def core(self) -> Tensor:
        p, squares = self.features, self._squares
        constant, linear, quadratic = self._weights
        return torch.diag(torch.cat([linear.repeat_interleave(p), constant, quadratic.repeat_interleave(squares)]))

    def rows(self, x: Tensor) -> FactorRows:
        """d_i = K_ii − u_iᵀ C u_i, so that the diagonal of the kernel is exact."""
        norms2 = squared_norms(x)
        constant, linear, quadratic, exact = self.functions(norms2).split([*map(len, self._weights), 1], dim=1)
        along = (x @ self.directions.to(x)).to(torch.float64)
        squares = squares_along(along, norms2, self.features)
        narrow = torch.cat([constant, (quadratic[:, :, None] * squares[:, None, :]).flatten(1)], dim=1)
        weights0, weights1, weights2 = self._weights
        low_rank = constant.square() @ weights0 + (linear.square() @ weights1) * norms2
        low_rank += (quadratic.square() @ weights2) * squares.square().sum(1)
        return FactorRows(x, norms2, linear, narrow, exact[:, 0] - low_rank)

    def functions(self, norms2: Tensor) -> Tensor:
        """[f⁰, f¹, f², K_ii] at each squared norm."""
        if self._series is None:
            return self._columns(norms2)
        inside = self._series.covers(norms2)
        if bool(inside.all()):
            return self._series(norms2)
        out = norms2.new_empty(len(norms2), self._series.coefficients.shape[1])
        out[inside], out[~inside] = self._series(norms2[inside]), self._columns(norms2[~inside])
        return out

    @property
    def features(self) -> int:
        return len(self.directions)

    @property
    def terms(self) -> int:
        return len(self._weights[1])

    @property
    def _squares(self) -> int:
        p, k = self.directions.shape
        return k * (k + 1) // 2 + (k < p)

    def _pairs(self, norms2: Tensor) -> Pairs:
        return ExplicitPairs(self.net, norms2) if isinstance(self.net, Explicit) else ImplicitPairs(self.net, norms2)

    def _spread_out(self, norms2: Tensor) -> Tensor:
        """The norms whose τ lie nearest to Chebyshev points."""

        def tau(some: Tensor) -> Tensor:
            pairs = self._pairs(some)
            return (pairs.rows.tau if isinstance(pairs, ImplicitPairs) else pairs.rows[0].tau)[:, None]

        series = self._interpolated(tau)
        places = tau(norms2) if series is None else series(norms2.clamp(min=series.low))
        return norms2[chebyshev_subset(places[:, 0])]

    def _interpolated(self, function: Callable[[Tensor], Tensor]) -> ChebyshevSeries | None:
        high = self.high * _MARGIN
        low = max(self.low / _MARGIN, high / _WIDEST)
        return ChebyshevSeries.of(function, low, high) if high > 0.0 else None

    def _terms(self, left: Pairs) -> GramSeries:
        right = self._pivots
        if isinstance(left, ImplicitPairs) and isinstance(right, ImplicitPairs):
            return implicit_series(left.net, left.moments, right.moments, self.kernel)
        assert isinstance(left, ExplicitPairs)
        assert isinstance(right, ExplicitPairs)
        return explicit_series(left.moments, right.moments, self.kernel)

    def _separated(self) -> tuple[list[Tensor], list[Tensor]]:
        """For the coefficient of each power of S, M(τ, τ') ≈ Σ_r ±f_r(τ) f_r(τ') with f = M(τ, pivots) · basis."""
        bases, weights = [], []
        for entries in self._terms(self._pivots).terms[:3]:
            values, vectors = torch.linalg.eigh(0.5 * (entries + entries.T))
            kept = values.abs() > SEPARABLE_RTOL * values.abs().max()
            bases.append(vectors[:, kept] * (values[kept].abs().sqrt() / values[kept]))
            weights.append(values[kept].sign())
        return bases, weights

    def _columns(self, norms2: Tensor) -> Tensor:
        """`functions`, computed for each norm."""
        pairs = self._pairs(norms2)
        terms = self._terms(pairs).terms[:3]
        parts = [entries @ basis for entries, basis in zip(terms, self._bases, strict=True)]
        exact: Tensor = getattr(pairs.diagonal(slice(None)), self.kernel)
        return torch.cat([*parts, exact[:, None]], dim=1)
