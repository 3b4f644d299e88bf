"""The sharp equivalent: each sample's own moments, no labels, no mixture. Ref: docs/theory.md, section 4."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from notsodeep.approximation.tables import separate
from notsodeep.arguments import choice, count
from notsodeep.arrays import Array, like, refuse_beyond, refuse_if_too_large, samples
from notsodeep.errors import BadInput
from notsodeep.kernels.gram_series import GramSeries, explicit_series, implicit_series
from notsodeep.kernels.pairs import ExplicitPairs, ImplicitPairs
from notsodeep.kernels.prepared import pair_equation, refuse_other_features
from notsodeep.kernels.stream import KERNELS
from notsodeep.kernels.tiles import fill
from notsodeep.linalg.eigen import leading_directions
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.theory.architecture import Network
from notsodeep.theory.statistics import tau0 as root_mean_square_norm

_DIRECTIONS = 10


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
