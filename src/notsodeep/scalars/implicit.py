"""The scalars of a DEQ. Ref: [ling2024] Theorems 1 and 2, corrected as in docs/theory.md, section 3."""

from __future__ import annotations

import math

from notsodeep.architecture import Implicit
from notsodeep.errors import NotContractive
from notsodeep.gaussian.moments import moments_at
from notsodeep.numerics.arguments import norm
from notsodeep.scalars.values import Coefficients, Scalars, warn_unless_centred


def implicit_scalars(net: Implicit, tau0: float) -> Scalars:
    """With e1 = E[φ'], e2 = E[φ''], s2 = E[(φ²)''], q = E[φ'²] at τ*, and g = σ_a² e1²:

    α1 = σ_b² e1²/(1−g)    α2 = e2² α4²/(4(1−g))    α3 = e2² λ1²/(2(1−g))    α4 = σ_b²/(1 − σ_a² s2/2)
    λ1 = σ_b²/(1−g)        λ2 = σ_a² α2             λ3 = σ_a² α3
    β1 = α1 + λ1 e1²/(1−g)                          β2 = α2 + λ2 e1²/(1−g)
    β3 = α3 + λ3 e1²/(1−g) + e2² λ1²/(1−g)²         κ² = γ² + τ*² q/(1 − σ_a² q)

    κ is infinite where σ_a² q ≥ 1: such a DEQ has a conjugate but no tangent kernel.
    """
    tau0 = norm(tau0)
    tau_star = net.deviation(tau0)
    centred = net.centred(tau0)
    net.warn_unless_contractive()
    at = moments_at(centred.phi, tau_star)
    warn_unless_centred(at, f"The activation {net.phi}")
    e1, e2, s2, q, gamma2 = (float(v) for v in (at.e1, at.e2, at.s2, at.q, at.gamma2))
    var_a, var_b = net.var_a, net.var_b
    g = var_a * e1**2
    if g >= 1.0:
        raise NotContractive(
            f"Two inputs of this DEQ do not keep their correlation: σ_a² E[φ'(τ*ξ)]² = {g:.4g} ≥ 1 for φ = {net.phi}, so its "
            f"kernels have no equivalent. Take var_a below about {1.0 / e1**2:.4g}.",
            left=g,
            right=1.0,
            largest_var_a=1.0 / e1**2,
        )
    # E[φ'²] at equilibrium: how a gradient grows. At 1 and above it does so for ever, and there is no tangent kernel.
    gradient_power = tau_star**2 / (1.0 - var_a * q) if var_a * q < 1.0 else math.inf
    alpha4 = var_b / (1.0 - 0.5 * var_a * s2)
    lambda1 = var_b / (1.0 - g)
    alpha1 = lambda1 * e1**2
    alpha2 = e2**2 * alpha4**2 / (4.0 * (1.0 - g))
    alpha3 = e2**2 * lambda1**2 / (2.0 * (1.0 - g))
    lambda2, lambda3 = var_a * alpha2, var_a * alpha3
    pre1 = lambda1 / (1.0 - g)
    gradient = e1**2 / (1.0 - g)
    return Scalars(
        tau0=tau0,
        tau=tau_star,
        gamma=gamma2**0.5,
        alpha1=alpha1,
        alpha2=alpha2,
        alpha3=alpha3,
        alpha4=alpha4,
        beta1=alpha1 + lambda1 * gradient,
        beta2=alpha2 + lambda2 * gradient,
        beta3=alpha3 + lambda3 * gradient + e2**2 * lambda1**2 / (1.0 - g) ** 2,
        kappa=(gamma2 + q * gradient_power) ** 0.5,
        preactivation=Coefficients(
            c1=pre1,
            c2=lambda2 / (1.0 - g),
            c3=(lambda3 + pre1 * var_a * e2**2 * lambda1) / (1.0 - g),
            d=gradient_power,
        ),
    )
