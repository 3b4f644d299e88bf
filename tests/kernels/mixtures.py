"""The mixtures that the equivalents are measured on, drawn once."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

import notsodeep as nsd

KERNELS = ("conjugate", "tangent", "preactivation")


@lru_cache(maxsize=8)
def two_classes(n: int, seed: int, spread: float = 8.0) -> tuple[Tensor, Tensor, nsd.MixtureStatistics]:
    """x, y and the exact statistics of THEORY section 3's mixture, p/n = 0.8."""
    return drawn(nsd.GaussianMixture.two_classes(round(0.8 * n), spread=spread), n, seed)


def drawn(mixture: nsd.GaussianMixture, n: int, seed: int) -> tuple[Tensor, Tensor, nsd.MixtureStatistics]:
    x, y = mixture.sample(n, torch.Generator().manual_seed(seed))
    return x, y, nsd.MixtureStatistics.from_mixture(mixture, x, y)


def three_classes(p: int, kind: str) -> nsd.GaussianMixture:
    """Unequal spectra, not only unequal traces: diagonal, or full with correlated features."""
    means = torch.zeros(3, p, dtype=torch.float64)
    means[0, 0] = means[1, 8] = means[2, 3] = 6.0
    ramp = torch.linspace(0.5, 1.5, p, dtype=torch.float64)
    step = 3.0 / math.sqrt(p)
    if kind == "diagonal":
        return nsd.GaussianMixture(means, torch.stack([ramp, ramp.flip(0) + step, ramp.sqrt() + 2.0 * step]))
    places = torch.arange(p, dtype=torch.float64)
    correlated = 0.4 ** (places[:, None] - places[None, :]).abs()
    return nsd.GaussianMixture(
        means, torch.stack([torch.eye(p, dtype=torch.float64), (1.0 + 2.0 * step) * correlated, torch.diag(ramp)])
    )


def exact(net: nsd.Implicit | nsd.Explicit, x: Tensor, tau0: float) -> dict[str, Tensor]:
    """Every exact kernel of one pass; K = σ_a² Θ + σ_b² S."""
    both = nsd.exact_kernels(net, x, tau0=tau0)
    kernels = {"conjugate": both.conjugate, "tangent": both.tangent}
    if isinstance(net, nsd.Implicit):
        kernels["preactivation"] = net.var_a * both.tangent + net.var_b * (x @ x.T)
    return kernels


def slope(sizes: list[int], gaps: list[float]) -> float:
    """The least-squares slope of log gap against log size."""
    return float(np.polyfit(np.log(sizes), np.log(gaps), 1)[0])
