"""A kernel to second order in the Gram matrix: A_ij + B_ij S_ij + C_ij S_ij², with A, B, C from each sample's own moments.

With m = E[φ(τ_iξ)], d = E[φ'(τ_iξ)], e = E[φ''(τ_iξ)] of each sample, a pair's dual map is, for a small covariance λ,
k ≈ m_i m_j + d_i d_j λ + ½ e_i e_j λ² and Q ≈ d_i d_j + e_i e_j λ. Everything else is algebra of truncated polynomials
in S. Ref: THEORY section 4, and the same for explicit networks.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from notsodeep.architecture import Implicit
from notsodeep.errors import BadInput
from notsodeep.gaussian import Moments


@dataclass(frozen=True)
class SecondOrder:
    """A + B S + C S², entry by entry; products drop what is beyond S²."""

    constant: Tensor
    linear: Tensor
    quadratic: Tensor

    def __add__(self, other: SecondOrder) -> SecondOrder:
        return SecondOrder(self.constant + other.constant, self.linear + other.linear, self.quadratic + other.quadratic)

    def __mul__(self, other: SecondOrder | Tensor | float) -> SecondOrder:
        if not isinstance(other, SecondOrder):
            return SecondOrder(other * self.constant, other * self.linear, other * self.quadratic)
        return SecondOrder(
            self.constant * other.constant,
            self.constant * other.linear + self.linear * other.constant,
            self.constant * other.quadratic + self.linear * other.linear + self.quadratic * other.constant,
        )

    def at(self, gram: Tensor) -> Tensor:
        return self.constant + gram * (self.linear + gram * self.quadratic)


def _gram_itself(like: Tensor, factor: float = 1.0) -> SecondOrder:
    return SecondOrder(like.new_zeros(()), like.new_full((), factor), like.new_zeros(()))


def _pair_moments(left: Moments, right: Moments) -> tuple[Tensor, Tensor, Tensor]:
    """m_i m_j, d_i d_j and e_i e_j."""
    return tuple(getattr(left, f)[:, None] * getattr(right, f)[None, :] for f in ("mean", "e1", "e2"))  # type: ignore[return-value]


def implicit_second_order(net: Implicit, left: Moments, right: Moments, kernel: str) -> SecondOrder:
    """With h = 1/(1 − σ_a² d_i d_j) and Λ0 = (σ_a² m_i m_j + σ_b² S) h:

    G = (m_i m_j + σ_b² d_i d_j S + ½ e_i e_j Λ0²) h,  Λ = σ_a² G + σ_b² S,
    K = Λ h + σ_a² e_i e_j Λ0² h²,                      Θ = G + d_i d_j K-part: G + Λ d_i d_j h + e_i e_j Λ0² h².
    """
    a, b = net.var_a, net.var_b
    mm, dd, ee = _pair_moments(left, right)
    h = 1.0 / (1.0 - a * dd)
    nothing = mm.new_zeros(())
    first = SecondOrder(a * mm * h, b * h, nothing)
    conjugate = (SecondOrder(mm, b * dd, nothing) + first * first * (0.5 * ee)) * h
    if kernel == "conjugate":
        return conjugate
    covariance = conjugate * a + _gram_itself(mm, b)
    if kernel == "tangent":
        return conjugate + covariance * (dd * h) + first * first * (ee * h * h)
    if kernel == "preactivation":
        return covariance * h + first * first * (a * ee * h * h)
    raise BadInput(f"There is no kernel {kernel!r}; choose conjugate, tangent or preactivation.")


def explicit_second_order(left: list[Moments], right: list[Moments], kernel: str) -> SecondOrder:
    """Σ ← m_i m_j + d_i d_j Σ + ½ e_i e_j Σ²,  Θ ← Σ_new + Θ (d_i d_j + e_i e_j Σ), from Σ = Θ = S."""
    if kernel not in ("conjugate", "tangent"):
        raise BadInput(f"An explicit network has no kernel {kernel!r}; choose conjugate or tangent.")
    sigma = theta = _gram_itself(left[0].mean)
    for row, column in zip(left, right, strict=True):
        mm, dd, ee = _pair_moments(row, column)
        nothing = mm.new_zeros(())
        slope = sigma * ee + SecondOrder(dd, nothing, nothing)
        sigma = SecondOrder(mm, nothing, nothing) + sigma * dd + sigma * sigma * (0.5 * ee)
        theta = sigma + theta * slope
    return sigma if kernel == "conjugate" else theta
