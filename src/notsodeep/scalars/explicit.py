"""The scalars of an explicit network, layer by layer.

Ref: [gu2022]; [ling2024] Theorem 3, corrected (docs/theory.md, section 5).
"""

from __future__ import annotations

from dataclasses import replace

from notsodeep.architecture import Explicit
from notsodeep.gaussian.moments import moments_at
from notsodeep.numerics.arguments import norm
from notsodeep.scalars.values import Scalars, warn_unless_centred


def explicit_scalars(net: Explicit, tau0: float) -> Scalars:
    """With expectations of σ_l at τ̃_{l−1}, from α̃_0 = (1, 0, 0), α̃_{0,4} = 1, β̃_0 = (1, 0, 0), κ̃_0 = τ̃_0 = τ0:

    α̃_{l,1} = E[σ']² α̃_{l−1,1}                                 α̃_{l,2} = E[σ']² α̃_{l−1,2} + ¼ E[σ'']² α̃_{l−1,4}²
    α̃_{l,3} = E[σ']² α̃_{l−1,3} + ½ E[σ'']² α̃_{l−1,1}²         α̃_{l,4} = ½ E[(σ²)''] α̃_{l−1,4}
    β̃_{l,j} = α̃_{l,j} + E[σ']² β̃_{l−1,j}, and for j = 3 also + E[σ'']² α̃_{l−1,1} β̃_{l−1,1}
    τ̃_l² = E[σ_l²]                                              κ̃_l² = τ̃_l² + κ̃_{l−1}² E[σ'²]
    """
    tau0 = norm(tau0)
    before = Scalars(tau0, tau0, tau0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, tau0)
    after: list[Scalars] = []
    for depth, layer in enumerate(net.layers, start=1):
        at = moments_at(layer, before.gamma)
        warn_unless_centred(at, f"Layer {depth} ({layer})")
        e1, e2, s2, q, gamma2 = (float(v) for v in (at.e1, at.e2, at.s2, at.q, at.gamma2))
        alpha1 = e1**2 * before.alpha1
        alpha2 = e1**2 * before.alpha2 + 0.25 * e2**2 * before.alpha4**2
        alpha3 = e1**2 * before.alpha3 + 0.5 * e2**2 * before.alpha1**2
        before = Scalars(
            tau0=tau0,
            tau=before.gamma,
            gamma=gamma2**0.5,
            alpha1=alpha1,
            alpha2=alpha2,
            alpha3=alpha3,
            alpha4=0.5 * s2 * before.alpha4,
            beta1=alpha1 + e1**2 * before.beta1,
            beta2=alpha2 + e1**2 * before.beta2,
            beta3=alpha3 + e1**2 * before.beta3 + e2**2 * before.alpha1 * before.beta1,
            kappa=(gamma2 + before.kappa**2 * q) ** 0.5,
        )
        after.append(before)
    return replace(before, layers=tuple(after))
