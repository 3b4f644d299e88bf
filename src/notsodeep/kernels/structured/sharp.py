"""The sharp equivalent: each sample's own moments, no labels, no mixture. Ref: docs/theory.md, section 4."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from notsodeep.approximation.tables import ChebyshevSeries, chebyshev_subset, separate
from notsodeep.arguments import choice, count, generator as checked_generator
from notsodeep.arrays import Array, like, real, refuse_beyond, refuse_if_too_large, samples
from notsodeep.data.blocks import Rows
from notsodeep.errors import BadInput
from notsodeep.kernels.exact.pairs import ExplicitPairs, ImplicitPairs
from notsodeep.kernels.exact.solver import equation_of_norms, pair_equation, refuse_other_features
from notsodeep.kernels.exact.tiles import fill
from notsodeep.kernels.names import KERNELS
from notsodeep.kernels.structured.factor import FactorRows
from notsodeep.kernels.structured.gram_series import GramSeries, explicit_series, implicit_series
from notsodeep.linalg.eigen import leading_directions
from notsodeep.linalg.gram_sum import GramSum
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.statistics import root_mean_square, squared_norms, tau0 as root_mean_square_norm
from notsodeep.tolerances import SEPARABLE_RTOL

_DIRECTIONS = 10
SAMPLE, DIRECTIONS = 16384, 10
_MARGIN = 4.0  # of squared norms about those known, within which functions of a norm come from a series
_WIDEST = 1e6  # of a range of squared norms that one series is asked to follow


class _Expansion:
    """The exact diagonal of a kernel on x, and its series in S for any rows against any others."""

    def __init__(self, net: Network, x: Tensor, kernel: str, tau0: float | None) -> None:
        self.kernel = choice(kernel, "kernel", KERNELS)
        equation = pair_equation(net, x, tau0)
        assert isinstance(equation, ImplicitPairs | ExplicitPairs)
        self.equation = equation
        self.series(slice(0, 1), slice(0, 1))  # an unknown kernel is refused before any work
        self.diagonal: Tensor = getattr(equation.diagonal(slice(None)), kernel)
        self.tau = equation.rows.tau if isinstance(equation, ImplicitPairs) else equation.rows[0].tau
        if not bool(torch.isfinite(self.diagonal).all()):
            raise BadInput(f"{net} has no {kernel} kernel: its diagonal is infinite.")

    def series(self, left: Any, right: Any) -> GramSeries:
        equation = self.equation
        if isinstance(equation, ImplicitPairs):
            return implicit_series(equation.net, equation.moments[left], equation.moments[right], self.kernel)
        rows, columns = ([m[index] for m in equation.moments] for index in (left, right))
        return explicit_series(rows, columns, self.kernel)


@torch.no_grad()
def sharp_kernel(
    net: Network,
    x: Array,
    kernel: str = "conjugate",
    tau0: float | None = None,
    directions: int = _DIRECTIONS,
) -> LowRankPlusDiagonal:
    """The kernel to second order in S, as low rank + diagonal, in O(n p) memory; its diagonal is exact.

    The first three coefficients of `gram_series` are smooth functions of two deviations, so each is a short sum of
    products; S is of rank p; and S_ij² = ⟨x_i x_iᵀ, x_j x_jᵀ⟩ is projected on the symmetric matrices spanned by
    `directions` leading directions of the data and on the identity of their complement.
    """
    data = samples(x)
    wide = data.to(torch.float64)
    directions = count(directions, "directions", least=0)
    expansion = _Expansion(net, wide, kernel, tau0)
    refuse_beyond(expansion.diagonal, data.dtype, f"The {kernel} kernel of {net}")

    def part(order: int) -> tuple[Tensor, Tensor]:
        return separate(lambda i, j: expansion.series(i, j).terms[order], expansion.tau)

    (constant, weights0), (linear, weights1), (quadratic, weights2) = map(part, range(3))
    squares = quadratic_features(wide, directions)
    factor = torch.cat([constant, _products(linear, wide), _products(quadratic, squares)], dim=1)
    weights = torch.cat(
        [weights0, weights1.repeat_interleave(wide.shape[1]), weights2.repeat_interleave(squares.shape[1])]
    )
    diag = expansion.diagonal - factor.square() @ weights
    return LowRankPlusDiagonal(factor.to(data), torch.diag(weights).to(data), diag.to(data))


@torch.no_grad()
def sharp_cross(
    net: Network,
    x: Array,
    x2: Array,
    kernel: str = "conjugate",
    tau0: float | None = None,
    directions: int = _DIRECTIONS,
) -> Any:
    """The sharp kernel of new samples x against x2, (n, n2), as `sharp_kernel` of x2 would have it beside its diagonal.

    Entry by entry, so a new sample may be of any norm, and without the small error of `sharp_kernel`'s sums of products. τ0 is
    that of x2 unless given, so that both are one kernel.
    """
    data = samples(x)
    new, old = data.to(torch.float64), samples(x2, "x2").to(data.device, torch.float64)
    refuse_other_features(new, old)
    n = len(new)
    expansion = _Expansion(net, torch.cat([new, old]), kernel, root_mean_square_norm(old) if tau0 is None else tau0)
    refuse_beyond(expansion.diagonal, data.dtype, f"The {kernel} kernel of {net}")
    squares = [quadratic_features(rows, directions, of=old) for rows in (new, old)]
    out = torch.empty(n, len(old), dtype=data.dtype, device=data.device)

    def tile(left: slice, right: slice) -> tuple[Tensor]:
        constant, linear, quadratic = expansion.series(left, slice(n + right.start, n + right.stop)).terms[:3]
        return (constant + linear * (new[left] @ old[right].T) + quadratic * (squares[0][left] @ squares[1][right].T),)

    fill((out,), False, tile)
    return like(x)(out)


@torch.no_grad()
def sharp_entries(net: Network, x: Array, kernel: str = "conjugate", tau0: float | None = None) -> Any:
    """The same to third order, entry by entry and without the projection of S²: dense (n, n), and far sharper."""
    data = samples(x)
    n = len(data)
    refuse_if_too_large(n, n, data.dtype, data.device, "sharp_kernel, which keeps O(n p)")
    wide = data.to(torch.float64)
    expansion = _Expansion(net, wide, kernel, tau0)
    refuse_beyond(expansion.diagonal, data.dtype, f"The {kernel} kernel of {net}")
    out = torch.empty(n, n, dtype=data.dtype, device=data.device)
    fill((out,), True, lambda i, j: (expansion.series(i, j).at(wide[i] @ wide[j].T),))
    out.diagonal().copy_(expansion.diagonal)
    return like(x)(out)


def quadratic_features(x: Tensor, directions: int, of: Tensor | None = None) -> Tensor:
    """Features f with f_i·f_j ≈ (x_i·x_j)²: x_iᵀ M x_i for M orthonormal in the trace inner product.

    M runs over v_a v_aᵀ, (v_a v_bᵀ + v_b v_aᵀ)/√2 for the leading directions v of x (or of the samples `of`), and
    (I − VVᵀ)/√(p − k). Exact when k = p.
    """
    k = min(directions, x.shape[1])
    along = x @ leading_directions(x if of is None else of, k)
    return squares_along(along, x.square().sum(1), x.shape[1])


def squares_along(along: Tensor, norms2: Tensor, p: int) -> Tensor:
    """`quadratic_features` of samples known by their components x_i·v_a (n, k) and ‖x_i‖² (n,)."""
    k = along.shape[1]
    first, second = torch.triu_indices(k, k, device=along.device)
    weight = 1.0 + (math.sqrt(2.0) - 1.0) * (first != second).to(along)
    products: Tensor = along[:, first] * along[:, second] * weight
    if k == p:
        return products
    rest = (norms2 - along.square().sum(1)) / math.sqrt(p - k)
    return torch.cat([products, rest[:, None]], dim=1)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Every column of `left` times every column of `right`: (n, a·b)."""
    return (left[:, :, None] * right[:, None, :]).flatten(1)


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
