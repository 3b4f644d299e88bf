"""The sharp equivalent: each sample's own moments, no labels, no mixture. Ref: docs/theory.md, section 4."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from notsodeep.approximation.tables import Smooth, chebyshev_subset, separate, tabulated
from notsodeep.arguments import count, generator as checked_generator
from notsodeep.arrays import Array, check_memory, check_range, like, real, samples
from notsodeep.data.blocks import SampleBlocks
from notsodeep.errors import BadInput
from notsodeep.kernels.exact.pairs import ExplicitPairs, ImplicitPairs, Pairs
from notsodeep.kernels.exact.solver import check_features, equation_of_norms
from notsodeep.kernels.exact.tiles import fill
from notsodeep.kernels.names import Kernel, as_kernel
from notsodeep.kernels.structured.factor import FactorRows
from notsodeep.kernels.structured.gram_series import GramSeries, gram_series
from notsodeep.linalg.eigen import leading_directions
from notsodeep.linalg.gram_sum import GramSum
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.theory.architecture import Explicit, Network
from notsodeep.theory.statistics import root_mean_square, squared_norms, tau0 as root_mean_square_norm

SAMPLE, DIRECTIONS = 16384, 10
_CALLS = 1000  # of a factor, block after block: its tables are worth making for any number of samples


@torch.no_grad()
def sharp_kernel(
    net: Network, x: Array, kernel: Kernel | str = Kernel.CONJUGATE, tau0: float | None = None, directions: int = DIRECTIONS
) -> LowRankPlusDiagonal:
    """The kernel to second order in S = x xᵀ, as low rank + diagonal in O(n p) memory; its diagonal is exact.

        K_ij ≈ A(τ_i, τ_j) + B(τ_i, τ_j) S_ij + C(τ_i, τ_j) S_ij²

    A, B and C are smooth functions of two deviations, so each is a short sum of products; S is of rank p; and
    S_ij² = ⟨x_i x_iᵀ, x_j x_jᵀ⟩ is projected on the symmetric matrices spanned by the leading directions of the data and on the
    identity of their complement. Ref: docs/theory.md, section 4.

    Args:
        net: An `Implicit` or an `Explicit` network.
        x: Samples (n, p); no labels are needed.
        kernel: "conjugate", "tangent" or, for a DEQ, "preactivation".
        tau0: The norm at which a DEQ is centred; √(mean ‖x_i‖²) by default.
        directions: How many leading directions the quadratic term keeps; all of them make it exact.

    Returns:
        The kernel as a `LowRankPlusDiagonal`, in the dtype of x.

    Raises:
        BadInput: An unknown kernel, or one whose diagonal is infinite or leaves the range of the dtype.
        NotContractive: The DEQ has no equilibrium on these samples.
    """
    data = samples(x)
    wide = data.to(torch.float64)
    kept = min(count(directions, "directions", least=0), data.shape[1])
    factor = SharpFactor(net, SharpStatistics(squared_norms(wide), leading_directions(wide, kept)), kernel, tau0)
    check_range(factor.diagonal, data.dtype, f"The {factor.kernel} kernel of {net}")
    return factor.operator(data)


@torch.no_grad()
def sharp_cross(
    net: Network,
    x: Array,
    x2: Array,
    kernel: Kernel | str = Kernel.CONJUGATE,
    *,
    tau0: float | None = None,
    directions: int = DIRECTIONS,
) -> Any:
    """The sharp kernel of new samples x against x2, (n, n2): the entries off the diagonal of `sharp_kernel`.

    Entry by entry, so a new sample may have any norm, and without the small error of the sums of products. τ0 is that of x2
    unless given, so that both are one kernel.
    """
    data = samples(x)
    new, old = data.to(torch.float64), samples(x2, "x2").to(data.device, torch.float64)
    check_features(new, old)
    n, centre = len(new), root_mean_square_norm(old) if tau0 is None else tau0
    expansion = _Expansion.of(net, squared_norms(torch.cat([new, old])), kernel, centre)
    check_range(expansion.diagonal, data.dtype, f"The {expansion.kernel} kernel of {net}")
    squares = [quadratic_features(rows, directions, of=old) for rows in (new, old)]
    out = torch.empty(n, len(old), dtype=data.dtype, device=data.device)

    def tile(left: slice, right: slice) -> tuple[Tensor]:
        constant, linear, quadratic = expansion.series(left, slice(n + right.start, n + right.stop)).terms[:3]
        return (constant + linear * (new[left] @ old[right].T) + quadratic * (squares[0][left] @ squares[1][right].T),)

    fill((out,), False, tile)
    return like(x)(out)


@torch.no_grad()
def sharp_entries(net: Network, x: Array, kernel: Kernel | str = Kernel.CONJUGATE, tau0: float | None = None) -> Any:
    """The kernel to third order in S, entry by entry and without the projection of S²: dense, and far sharper.

        K_ij ≈ A_ij + B_ij S_ij + C_ij S_ij² + D_ij S_ij³,   K_ii exact

    Args:
        net, x, kernel, tau0: As for `sharp_kernel`.

    Returns:
        The kernel (n, n), of the type of x.

    Raises:
        BadInput: An unknown kernel, one whose diagonal is infinite, or one that does not fit in memory.
        NotContractive: The DEQ has no equilibrium on these samples.
    """
    data = samples(x)
    n = len(data)
    check_memory((n, n), data.dtype, data.device, "sharp_kernel, which keeps O(n p)")
    wide = data.to(torch.float64)
    expansion = _Expansion.of(net, squared_norms(wide), kernel, tau0)
    check_range(expansion.diagonal, data.dtype, f"The {expansion.kernel} kernel of {net}")
    out = torch.empty(n, n, dtype=data.dtype, device=data.device)
    fill((out,), True, lambda i, j: (expansion.series(i, j).at(wide[i] @ wide[j].T),))
    out.diagonal().copy_(expansion.diagonal)
    return like(x)(out)


@dataclass(frozen=True, eq=False)
class _Expansion:
    """The exact diagonal of a kernel on some samples, and its series in S for any of them against any others."""

    pairs: Pairs
    kernel: Kernel
    diagonal: Tensor

    @classmethod
    def of(cls, net: Network, norms2: Tensor, kernel: Kernel | str, tau0: float | None) -> _Expansion:
        chosen = as_kernel(kernel)
        pairs = equation_of_norms(net, norms2, tau0)
        found = cls(pairs, chosen, getattr(pairs.diagonal(slice(None)), chosen))
        found.series(slice(0, 1), slice(0, 1))  # raises BadInput where the network has no such kernel
        if not bool(torch.isfinite(found.diagonal).all()):
            raise BadInput(f"{net} has no {chosen} kernel: its diagonal is infinite.")
        return found

    def series(self, left: Any, right: Any) -> GramSeries:
        return gram_series(self.pairs.net, self.pairs.layers(left), self.pairs.layers(right), self.kernel)


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


@dataclass(frozen=True, eq=False)
class SharpStatistics:
    """The statistics of all samples that the sharp kernel needs.

    Args:
        norms2: ‖x_i‖², (n,): they give τ0, the range of τ, and tr K.
        directions: The leading directions of the samples, orthonormal columns (p, k).

    Raises:
        BadInput: A squared norm is negative, or there are none.
    """

    norms2: Tensor
    directions: Tensor

    def __post_init__(self) -> None:
        if not bool((real(self.norms2, "norms2", (None,)) >= 0.0).all()) or not len(self.norms2):
            raise BadInput("norms2 holds a negative number, or none: expected ‖x_i‖² of the samples, (n,).")
        real(self.directions, "directions", (None, None))

    @classmethod
    def from_pass(cls, x: Array | SampleBlocks, directions: int = DIRECTIONS) -> SharpStatistics:
        """The statistics of every sample, in one pass: ‖x_i‖² and the leading eigenvectors of xᵀx, summed block by block.

        Args:
            x: Samples (n, p), an array or `SampleBlocks`.
            directions: How many leading directions, at most p.
        """
        rows, directions = SampleBlocks.of(x), count(directions, "directions", least=0)
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
        cls, x: Array | SampleBlocks, size: int = SAMPLE, directions: int = DIRECTIONS, generator: torch.Generator | None = None
    ) -> SharpStatistics:
        """The statistics of some samples at random, which saves the pass over the others.

        Their norms serve as well as all norms. Their directions are those of all samples only where these stand out.

        Args:
            x, directions: As for `from_pass`.
            size: How many samples are drawn; all, where there are no more.
            generator: Of the draw.
        """
        directions, generator = count(directions, "directions", least=0), checked_generator(generator)
        drawn = SampleBlocks.of(x).sample(size, generator).to(torch.float64)
        vectors = leading_directions(drawn, min(directions, drawn.shape[1]))
        return cls(squared_norms(drawn).cpu(), vectors.cpu())

    @cached_property
    def tau0(self) -> float:
        """√(mean ‖x_i‖²)"""
        return root_mean_square(self.norms2)


class SharpFactor:
    """U = [f¹(τ_i) ⊗ x_i, f⁰(τ_i), f²(τ_i) ⊗ q_i], C diagonal and d of `sharp_kernel`, for samples known by their statistics.

    f⁰, f¹, f² separate the coefficients of 1, S and S² (at most 24 known norms serve as Nyström's points); q are the quadratic
    features. All of them, and the exact diagonal, are functions of ‖x_i‖² alone, and tabulated.
    """

    def __init__(self, net: Network, stats: SharpStatistics, kernel: Kernel | str, tau0: float | None = None) -> None:
        known = _Expansion.of(net, stats.norms2, kernel, tau0)
        self.kernel, self.directions = known.kernel, stats.directions
        self.low, self.high = float(stats.norms2.min()), float(stats.norms2.max())
        self.diagonal = known.diagonal
        """K_ii of the samples of the statistics, (n,)"""
        self.mean_diagonal = float(known.diagonal.mean())
        """tr K/n over them"""
        functions = _Functions(known.pairs.net, known.kernel, stats.norms2[chebyshev_subset(known.pairs.tau)].cpu())
        self._weights = functions.weights
        self.features, self.terms = len(stats.directions), len(functions.weights[1])
        self._table = Smooth(functions, together=True, call=functions, may_change=False)

    @cached_property
    def core(self) -> Tensor:
        constant, linear, quadratic = self._weights
        p, k = self.directions.shape
        squares = k * (k + 1) // 2 + (k < p)
        return torch.diag(torch.cat([linear.repeat_interleave(p), constant, quadratic.repeat_interleave(squares)]))

    def rows(self, x: Tensor) -> FactorRows:
        """U and d_i = K_ii − u_iᵀ C u_i of any samples: the diagonal of the kernel is exact."""
        norms2 = squared_norms(x)
        return self._rows(x, norms2, tabulated(self._table, norms2, _CALLS))

    def operator(self, x: Tensor) -> LowRankPlusDiagonal:
        """The kernel of some samples; a table for one call is worth making only for many."""
        wide = x.to(torch.float64)
        norms2 = squared_norms(wide)
        few = len(x) <= SAMPLE and not x.is_cuda
        functions = self._table.call(norms2) if few else tabulated(self._table, norms2)
        return self._rows(wide, norms2, functions).operator(self.core, x)

    def _rows(self, x: Tensor, norms2: Tensor, functions: Tensor) -> FactorRows:
        constant, linear, quadratic, exact = functions.split([*map(len, self._weights), 1], dim=1)
        along = (x @ self.directions.to(x)).to(torch.float64)
        squares = squares_along(along, norms2, self.features)
        narrow = torch.cat([constant, (quadratic[:, :, None] * squares[:, None, :]).flatten(1)], dim=1)
        weights0, weights1, weights2 = (weights.to(norms2) for weights in self._weights)
        low_rank = constant.square() @ weights0 + (linear.square() @ weights1) * norms2
        low_rank += (quadratic.square() @ weights2) * squares.square().sum(1)
        return FactorRows(x, linear, narrow, exact[:, 0] - low_rank, norms2)


class _Functions:
    """‖x_i‖² ↦ [f⁰, f¹, f², K_ii]: each sample against the pivots, and its exact diagonal."""

    def __init__(self, net: Network, kernel: Kernel, pivots: Tensor) -> None:
        self.net, self.kernel = net, kernel
        self.pivots = self._pairs(pivots)
        self.bases, self.weights = zip(*(separate(entries) for entries in self._terms(self.pivots)), strict=True)

    def __call__(self, norms2: Tensor) -> Tensor:
        pairs = self._pairs(norms2)
        parts = [entries @ basis for entries, basis in zip(self._terms(pairs), self.bases, strict=True)]
        exact: Tensor = getattr(pairs.diagonal(slice(None)), self.kernel)
        return torch.cat([*parts, exact[:, None]], dim=1)

    def _pairs(self, norms2: Tensor) -> Pairs:
        return ExplicitPairs(self.net, norms2) if isinstance(self.net, Explicit) else ImplicitPairs(self.net, norms2)

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """The coefficients of 1, S and S² of these samples against the pivots."""
        return gram_series(self.net, pairs.layers(), self.pivots.layers(), self.kernel).terms[:3]
