"""A kernel as a short power series in the Gram matrix: A_ij + B_ij S_ij + C_ij S_ij² + D_ij S_ij³.

With m = E[φ(τ_iξ)], d = E[φ'], e = E[φ''], f = E[φ'''] of each sample, a pair's dual map is, for a small covariance λ,

    k ≈ m_i m_j + d_i d_j λ + ½ e_i e_j λ² + ⅙ f_i f_j λ³,      Q ≈ d_i d_j + e_i e_j λ + ½ f_i f_j λ².

Everything else is algebra of truncated series in S. Ref: docs/theory.md, section 4, carried one order further, and the same for
explicit networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from notsodeep.errors import BadInput
from notsodeep.gaussian import Moments
from notsodeep.kernels.names import OF_OUTPUTS, Kernel
from notsodeep.theory.architecture import Explicit, Implicit, Network

ORDER = 3


@dataclass(frozen=True)
class GramSeries:
    """Σ_k terms[k] S^k, entry by entry; products drop powers beyond S³."""

    terms: tuple[Tensor, ...]

    def __add__(self, other: GramSeries) -> GramSeries:
        pairs = zip_longest(self.terms, other.terms)
        return GramSeries(tuple(a if b is None else b if a is None else a + b for a, b in pairs))

    def __mul__(self, other: GramSeries | Tensor | float) -> GramSeries:
        if not isinstance(other, GramSeries):
            return GramSeries(tuple(other * term for term in self.terms))
        product: list[Tensor] = []
        for i, a in enumerate(self.terms):
            for j, b in enumerate(other.terms[: ORDER + 1 - i]):
                if i + j < len(product):
                    product[i + j] = product[i + j] + a * b
                else:
                    product.append(a * b)
        return GramSeries(tuple(product))

    def at(self, gram: Tensor) -> Tensor:
        """The sum at S = `gram`."""
        value = self.terms[-1]
        for term in reversed(self.terms[:-1]):
            value = value * gram + term
        return value


class PairDual:
    """k and Q of all pairs of some samples with some others, as series in a covariance that is itself one.

    They are the means over a layer's kinds of units, whose moments are given.
    """

    def __init__(self, left: list[Moments], right: list[Moments]) -> None:
        def outer(name: str) -> Tensor:
            kinds = zip(left, right, strict=True)
            products = [getattr(row, name)[:, None] * getattr(column, name)[None, :] for row, column in kinds]
            return products[0] if len(products) == 1 else torch.stack(products).mean(0)

        self.mm, self.dd, self.ee, self.ff = map(outer, ("mean", "e1", "e2", "e3"))

    def value(self, lam: GramSeries) -> GramSeries:
        return GramSeries((self.mm,)) + lam * self.dd + self.beyond_linear(lam)

    def beyond_linear(self, lam: GramSeries) -> GramSeries:
        square = lam * lam
        return square * (0.5 * self.ee) + square * lam * (self.ff / 6.0)

    def slope_beyond_constant(self, lam: GramSeries) -> GramSeries:
        return lam * self.ee + lam * lam * (0.5 * self.ff)


def gram_series(net: Network, left: list[list[Moments]], right: list[list[Moments]], kernel: Kernel) -> GramSeries:
    """The kernel of samples with these moments, layer by layer, of each kind of units, against others, as a series in S."""
    if isinstance(net, Implicit):
        return implicit_series(net, left[0], right[0], kernel)
    return explicit_series(net, left, right, kernel)


def implicit_series(net: Implicit, left: list[Moments], right: list[Moments], kernel: Kernel) -> GramSeries:
    """With h = 1/(1 − σ_a² d_i d_j), Λ solves Λ = h (σ_a² m_i m_j + σ_b² S + σ_a² (½ e_i e_j Λ² + ⅙ f_i f_j Λ³)), in two
    sweeps to third order; then G = k(Λ), K = Λ/(1 − σ_a² Q) and Θ = G + Q K."""
    a, pair = net.var_a, PairDual(left, right)
    h = 1.0 / (1.0 - a * pair.dd)
    drive = GramSeries((a * pair.mm * h, net.var_b * h))
    lam = drive
    for _ in range(ORDER - 1):
        lam = drive + pair.beyond_linear(lam) * (a * h)
    conjugate = pair.value(lam)
    if kernel is Kernel.CONJUGATE:
        return conjugate
    # 1/(1 − σ_a² Q) = h/(1 − u), u = σ_a² h (Q − d_i d_j): two powers of this geometric series reach third order.
    beyond = pair.slope_beyond_constant(lam)
    u = beyond * (a * h)
    preactivation = (lam + lam * u + lam * u * u) * h
    if kernel is Kernel.PREACTIVATION:
        return preactivation
    return conjugate + preactivation * pair.dd + preactivation * beyond


def explicit_series(net: Explicit, left: list[list[Moments]], right: list[list[Moments]], kernel: Kernel) -> GramSeries:
    """Σ ← k(Σ),  Θ ← g² Σ_new + Θ Q(Σ), from Σ = S and Θ = g_1² S, g the gain of the weights that follow."""
    if kernel not in OF_OUTPUTS:
        raise BadInput(f"An explicit network has no kernel {kernel.value!r}; choose from {', '.join(OF_OUTPUTS)}.")
    mean = left[0][0].mean
    first, *gains = (gain**2 for gain in net.gains)
    sigma = GramSeries((mean.new_zeros(()), mean.new_ones(())))
    theta = sigma * first
    for row, column, gain in zip(left, right, gains, strict=True):
        pair = PairDual(row, column)
        slope = GramSeries((pair.dd,)) + pair.slope_beyond_constant(sigma)
        sigma = pair.value(sigma)
        theta = sigma * gain + theta * slope
    return sigma if kernel is Kernel.CONJUGATE else theta
