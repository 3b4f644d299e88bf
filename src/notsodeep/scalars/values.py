"""The scalars of a network, and the coefficients of its three equivalent kernels."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from notsodeep.errors import BadInput, NumericsWarning
from notsodeep.gaussian.moments import Moments
from notsodeep.numerics.arguments import choice
from notsodeep.numerics.tolerances import CENTRED_ATOL


@dataclass(frozen=True)
class Coefficients:
    """A kernel c1 S + V [[c2 ttᵀ + c3 T, c2 t], [c2 tᵀ, c2]] Vᵀ + (d − τ0² c1) I. Ref: docs/theory.md, section 3."""

    c1: float
    c2: float
    c3: float
    d: float


@dataclass(frozen=True)
class Scalars:
    """τ is the deviation of the last pre-activation (τ* of a DEQ, τ̃_{L−1} of an explicit network) and γ that of the
    features (γ*, τ̃_L). α1..α3 and γ² make the conjugate kernel, β1..β3 and κ² the tangent kernel of f = aᵀz.

    A DEQ and an explicit network are equivalent when their (γ, α1, α2, α3), or (κ, β1, β2, β3), agree.
    """

    tau0: float
    tau: float
    gamma: float
    alpha1: float
    alpha2: float
    alpha3: float
    alpha4: float
    beta1: float
    beta2: float
    beta3: float
    kappa: float
    preactivation: Coefficients | None = None
    """The kernel that [ling2024] calls Implicit-NTK; DEQs only."""
    layers: tuple[Scalars, ...] = ()
    """The scalars after each hidden layer; explicit networks only."""

    def coefficients(self, kernel: str) -> Coefficients:
        """The row of docs/theory.md, section 3 for "conjugate", "tangent" or "preactivation"."""
        match choice(kernel, "kernel", ("conjugate", "tangent", "preactivation")):
            case "conjugate":
                return Coefficients(self.alpha1, self.alpha2, self.alpha3, self.gamma**2)
            case "tangent":
                return Coefficients(self.beta1, self.beta2, self.beta3, self.kappa**2)
            case "preactivation" if self.preactivation is not None:
                return self.preactivation
        raise BadInput("Only a DEQ has a kernel read out at a pre-activation.")


def warn_unless_centred(at: Moments, what: str) -> None:
    """The theorems drop E[φ]; say so where it is not zero."""
    mean, power = float(at.mean), float(at.gamma2)
    if abs(mean) > CENTRED_ATOL * power**0.5:
        warnings.warn(
            f"{what} is not centred: E[φ(τξ)] = {mean:.4g} beside a root mean square of {power**0.5:.4g}. The scalars "
            "leave out the constant that this adds to the kernel; centre it (centre=True, or .centred(tau0)).",
            NumericsWarning,
            stacklevel=4,
        )
