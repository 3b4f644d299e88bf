"""Hermite coefficients of an activation as smooth functions of the deviation: what a fit evaluates again and again."""

from __future__ import annotations

import math

import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.gaussian.hermite import hermite_coefficients
from notsodeep.gaussian.moments import moments_of

_NODES_PER_LOG, _FEWEST_NODES = 15.0, 24  # a Gaussian average is analytic in log τ for |arg τ| < π/4
_BLOCK = 2048  # pairs


class Series:
    """c_0(τ) … c_{K−1}(τ) of φ, the root of what they miss of E[φ²(τξ)], and of what Σ k c_k² misses of τ²E[φ'²(τξ)].

    They are held as one Chebyshev series in log τ. With the last numbers in place of c_K, Σ_k c_k(τ_i) c_k(τ_j) ρ^k and its
    slope are exact at ρ = 1, and off by ρ^K of a small rest elsewhere.

    Args:
        phi: φ.
        low: The smallest deviation asked for.
        high: The largest.
        terms: K.
    """

    def __init__(self, phi: Activation, low: float, high: float, terms: int) -> None:
        self.phi, self.terms = phi, terms
        self._middle, self._half = 0.5 * math.log(low * high), max(0.5 * math.log(high / low), 1e-3)
        nodes = _FEWEST_NODES + math.ceil(2.0 * _NODES_PER_LOG * self._half)
        degrees = torch.arange(nodes, dtype=torch.float64)
        angles = (degrees + 0.5) * (math.pi / nodes)
        transform = torch.cos(torch.outer(degrees, angles)) * (2.0 / nodes)
        transform[0] *= 0.5
        self._degrees = degrees
        self._table = transform @ self._values(torch.exp(self._middle + self._half * angles.cos()))
        sloped = chebyshev.chebder(self._table.numpy(), scl=1.0 / self._half)
        self._both = torch.cat([self._table, torch.nn.functional.pad(torch.from_numpy(sloped), (0, 0, 0, 1))], dim=1)

    def _values(self, tau: Tensor) -> Tensor:
        coefficients, at = hermite_coefficients(self.phi, tau, self.terms), moments_of(self.phi, tau)
        degrees = torch.arange(self.terms, dtype=tau.dtype)
        missed = at.gamma2 - coefficients.square().sum(1)
        missed_slope = tau.square() * at.q - (degrees * coefficients.square()).sum(1)
        rest = torch.stack([missed, missed_slope], dim=1).clamp(min=0.0).sqrt()
        return torch.cat([coefficients, rest], dim=1)

    def __call__(self, tau: Tensor) -> Tensor:
        """The numbers at deviations τ (n,): (n, K + 2)."""
        return self._polynomials(tau) @ self._table

    def with_slopes(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and their slopes in log τ."""
        numbers, slopes = (self._polynomials(tau) @ self._both).split(self.terms + 2, dim=1)
        return numbers, slopes

    def _polynomials(self, tau: Tensor) -> Tensor:
        """Those of Chebyshev, (n, degrees)."""
        angle = ((tau.log() - self._middle) / self._half).clamp(-1.0, 1.0).arccos()
        return torch.cos(angle[:, None] * self._degrees)


class Line:
    """`Series` of the line x, as long as another."""

    def __init__(self, terms: int) -> None:
        self.terms = terms

    def __call__(self, tau: Tensor) -> Tensor:
        numbers = tau.new_zeros(len(tau), self.terms + 2)
        numbers[:, 1] = tau
        return numbers

    def with_slopes(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and their slopes in log τ."""
        numbers = self(tau)
        return numbers, numbers


def products_at(first: Tensor, second: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The products (K + 2, pairs) of the numbers of φ and ψ (n, K + 2) at pairs of samples."""
    # Rows are gathered three times as fast as columns.
    return one.index_select(0, first).mul_(other.index_select(0, second)).T.contiguous()


def entries_at(first: Tensor, second: Tensor, rho: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """`entries` at pairs of samples of these correlations, from the numbers of φ and ψ (n, K + 2); blocks stay in the cache."""
    blocks = zip(first.split(_BLOCK), second.split(_BLOCK), rho.split(_BLOCK), strict=True)
    return torch.cat([entries(products_at(i, j, one, other), r) for i, j, r in blocks])


def entries(products: Tensor, rho: Tensor | float) -> Tensor:
    """E[φ(u)ψ(v)] = Σ_k p_k ρ^k of pairs, by Horner, from the products (K + 2, pairs) of the numbers of φ and ψ."""
    *given, total = products[:-1].unbind()
    for product in reversed(given):
        total = product + total * rho
    return total


def slopes(products: Tensor, rho: Tensor | float) -> Tensor:
    """τ_i τ_j E[φ'(u)ψ'(v)] = Σ_k k p_k ρ^(k−1) of pairs, likewise."""
    total = products[-1]
    for k in range(len(products) - 3, 0, -1):
        total = k * products[k] + total * rho
    return total
