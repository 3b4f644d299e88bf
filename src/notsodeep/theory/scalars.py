"""The scalars of a network, and the coefficients of its equivalent kernels. Ref: docs/theory.md, sections 3 and 5."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from notsodeep.activations.mixed import kinds_of
from notsodeep.arguments import norm
from notsodeep.errors import BadInput, NotContractive, warn
from notsodeep.gaussian.moments import Moments, moments_at
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.tolerances import CENTRED_ATOL


@dataclass(frozen=True)
class Coefficients:
    """A kernel c1 S + V [[c2 ttᵀ + c3 T, c2 t], [c2 tᵀ, c2]] Vᵀ + (d − τ0² c1) I. Ref: docs/theory.md, section 3."""

    c1: float
    c2: float
    c3: float
    d: float


@dataclass(frozen=True)
class Scalars:
    """The scalars of a network: α1..α3 and γ² make its conjugate kernel, β1..β3 and κ² its tangent kernel of f = aᵀz.

    A DEQ and an explicit network are equivalent when their (γ, α1, α2, α3), or (κ, β1, β2, β3), agree.
    """

    tau0: float
    """The root mean square norm of the data."""
    tau: float
    """The deviation of the last pre-activation: τ* of a DEQ, τ̃_{L−1} of an explicit network."""
    gamma: float
    """The deviation of the features: γ*, or τ̃_L."""
    alpha1: float
    """The coefficient of S in the conjugate kernel."""
    alpha2: float
    """That of the norms' and traces' variation."""
    alpha3: float
    """That of T."""
    alpha4: float
    """The slope of the features' variance in ‖x‖², which α2 contains."""
    beta1: float
    """As α1, in the tangent kernel."""
    beta2: float
    """As α2, in the tangent kernel."""
    beta3: float
    """As α3, in the tangent kernel."""
    kappa: float
    """√Θ_ii, the deviation in the tangent kernel."""
    preactivation: Coefficients | None = None
    """The kernel that [ling2024] calls Implicit-NTK; DEQs only."""
    layers: tuple[Scalars, ...] = ()
    """The scalars after each hidden layer; explicit networks only."""

    @property
    def conjugate(self) -> Coefficients:
        """The coefficients of the conjugate kernel."""
        return Coefficients(self.alpha1, self.alpha2, self.alpha3, self.gamma**2)

    @property
    def tangent(self) -> Coefficients:
        """The coefficients of the tangent kernel of f = aᵀz."""
        return Coefficients(self.beta1, self.beta2, self.beta3, self.kappa**2)


def warn_unless_centred(at: Moments, what: str) -> None:
    """The theorems drop E[φ]; say so where it is not zero."""
    mean, power = float(at.mean), float(at.gamma2)
    if abs(mean) > CENTRED_ATOL * power**0.5:
        warn(
            f"{what} is not centred: E[φ(τξ)] = {mean:.4g} with a root mean square of {power**0.5:.4g}. The scalars "
            "leave out the constant that this adds to the kernel; centre it (centre=True, or .centred(tau0))."
        )


def scalars(net: Network, tau0: float) -> Scalars:
    """τ, γ, α1..α4, β1..β3 and κ of a network, by the formulas of `implicit_scalars` and `explicit_scalars`.

    Args:
        net: An `Implicit` or an `Explicit` network.
        tau0: The root mean square norm of the data.

    Returns:
        The scalars; κ is infinite where there is no tangent kernel.

    Raises:
        BadInput: Another kind of network, or a τ0 that is not positive.
        NotContractive: A DEQ without an equilibrium, or with σ_a² E[φ'(τ*ξ)]² ≥ 1.
    """
    if not isinstance(net, Network):
        raise BadInput(f"Expected an Implicit or an Explicit network, got {type(net).__name__}.")
    return explicit_scalars(net, tau0) if isinstance(net, Explicit) else implicit_scalars(net, tau0)


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
    # σ_a² E[φ'²] is the growth of a gradient per step; from 1 on there is no tangent kernel.
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
            c1=pre1, c2=lambda2 / (1.0 - g), c3=(lambda3 + pre1 * var_a * e2**2 * lambda1) / (1.0 - g), d=gradient_power
        ),
    )


def explicit_scalars(net: Explicit, tau0: float) -> Scalars:
    """With expectations of σ_l at τ̃_{l−1}, from α̃_0 = (1, 0, 0), α̃_{0,4} = 1, β̃_0 = (1, 0, 0), κ̃_0 = τ̃_0 = τ0:

    α̃_{l,1} = E[σ']² α̃_{l−1,1}                                 α̃_{l,2} = E[σ']² α̃_{l−1,2} + ¼ E[σ'']² α̃_{l−1,4}²
    α̃_{l,3} = E[σ']² α̃_{l−1,3} + ½ E[σ'']² α̃_{l−1,1}²         α̃_{l,4} = ½ E[(σ²)''] α̃_{l−1,4}
    β̃_{l,j} = g² α̃_{l,j} + E[σ']² β̃_{l−1,j}, and for j = 3 also + E[σ'']² α̃_{l−1,1} β̃_{l−1,1}
    τ̃_l² = E[σ_l²]                                              κ̃_l² = g² τ̃_l² + κ̃_{l−1}² E[σ'²]

    with the gain g = g_{l+1} of the weights that follow, and β̃_{0,1} and κ̃_0² times g_1². Of a layer of several kinds of units,
    E[σ']², E[σ'']², E[(σ²)''], E[σ'²] and E[σ²] are means over the kinds.
    """
    tau0 = norm(tau0)
    first, *gains = (gain**2 for gain in net.gains)
    before = of_inputs(tau0, first)
    after: list[Scalars] = []
    for depth, (layer, gain) in enumerate(zip(net.layers, gains, strict=True), start=1):
        kinds = [moments_at(kind, before.gamma) for kind in kinds_of(layer)]
        for at in kinds:
            warn_unless_centred(at, f"Layer {depth} ({layer})")
        squares = ((at.e1**2, at.e2**2, at.s2, at.q, at.gamma2) for at in kinds)
        means = Means(*(sum(map(float, values)) / len(kinds) for values in zip(*squares, strict=True)))
        before = after_layer(before, means, gain)
        after.append(before)
    return replace(before, layers=tuple(after))


class Means(NamedTuple):
    """Gaussian averages of a layer σ, over its kinds of units."""

    slope2: float
    """E[σ']²"""
    bend2: float
    """E[σ'']²"""
    s2: float
    """E[(σ²)'']"""
    q: float
    """E[σ'²]"""
    gamma2: float
    """E[σ²]"""


def of_inputs(tau0: float, gain: float = 1.0) -> Scalars:
    """The scalars before the first layer, with the square of its gain."""
    return Scalars(tau0, tau0, tau0, 1.0, 0.0, 0.0, 1.0, gain, 0.0, 0.0, gain**0.5 * tau0)


def after_layer(before: Scalars, at: Means, gain: float = 1.0) -> Scalars:
    """The scalars after a layer, by the formulas of `explicit_scalars`, with the square of the gain that follows."""
    alpha1 = at.slope2 * before.alpha1
    alpha2 = at.slope2 * before.alpha2 + 0.25 * at.bend2 * before.alpha4**2
    alpha3 = at.slope2 * before.alpha3 + 0.5 * at.bend2 * before.alpha1**2
    return Scalars(
        tau0=before.tau0,
        tau=before.gamma,
        gamma=at.gamma2**0.5,
        alpha1=alpha1,
        alpha2=alpha2,
        alpha3=alpha3,
        alpha4=0.5 * at.s2 * before.alpha4,
        beta1=gain * alpha1 + at.slope2 * before.beta1,
        beta2=gain * alpha2 + at.slope2 * before.beta2,
        beta3=gain * alpha3 + at.slope2 * before.beta3 + at.bend2 * before.alpha1 * before.beta1,
        kappa=(gain * at.gamma2 + before.kappa**2 * at.q) ** 0.5,
    )
