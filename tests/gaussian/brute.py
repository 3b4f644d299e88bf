"""The dual map by brute force: a slow, independent integration over both Gaussians.

u = τ_i ξ and v = λu/τ_i² + s η, s² = τ_j² (1 − ρ²), with Gauss–Legendre panels that shrink towards every kink of φ in
both variables. Shares no line with the package but φ and φ' themselves.
"""

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from notsodeep.activations import Activation

REACH = 13.0
POINTS, WEIGHTS = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(20))


def brute_dual(phi: Activation, tau_i: float, tau_j: float, lam: float) -> tuple[float, float]:
    """(E[φ(u)φ(v)], E[φ'(u)φ'(v)]) of a φ without jumps; |λ| ≤ τ_i τ_j, in exact arithmetic up to s."""
    product = Fraction(tau_i) * Fraction(tau_j)
    rho = Fraction(lam) / product
    spread = tau_j * math.sqrt(max(float((1 - rho) * (1 + rho)), 0.0))
    gain = float(Fraction(lam) / Fraction(tau_i) ** 2)
    centres = torch.tensor(sorted({0.0, *phi.kinks}), dtype=torch.float64)
    own = (centres[:, None] + ladder(0.05)).flatten()
    met = (centres[:, None] + ladder(min(0.05, max(spread / 8.0, 1e-9)))).flatten() / gain if gain else own
    outer, outer_weights = panels(torch.cat([own, met, grid(tau_i)]).clamp(-REACH * tau_i, REACH * tau_i).unique())
    outer_weights = outer_weights * normal_density(outer / tau_i) / tau_i
    parts = [_inner(phi, gain * u, spread, own) for u in outer.split(400)]
    value, slope = (torch.cat(column) for column in zip(*parts, strict=True))
    return (float((outer_weights * phi(outer) * value).sum()), float((outer_weights * phi.derivative(outer) * slope).sum()))


def _inner(phi: Activation, mean: Tensor, spread: float, marks: Tensor) -> tuple[Tensor, Tensor]:
    if spread == 0.0:
        return phi(mean), phi.derivative(mean)
    cuts = torch.cat([(marks - mean[:, None]) / spread, grid(1.0).expand(len(mean), -1)], dim=1)
    eta, weights = panels(cuts.clamp(-REACH, REACH).sort(dim=1).values)
    weights = weights * normal_density(eta)
    v = mean[:, None] + spread * eta
    return (weights * phi(v)).sum(1), (weights * phi.derivative(v)).sum(1)


def grid(tau: float) -> Tensor:
    return tau * torch.linspace(-REACH, REACH, 27, dtype=torch.float64)


def ladder(smallest: float, largest: float = 2.0**15) -> Tensor:
    """0 and ±smallest·2^k."""
    steps = smallest * 2.0 ** torch.arange(math.ceil(math.log2(largest / smallest)) + 1, dtype=torch.float64)
    return torch.cat([-steps.flip(0), steps.new_zeros(1), steps])


def panels(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss–Legendre on each interval between neighbouring edges."""
    half = 0.5 * edges.diff(dim=-1)[..., None]
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1])[..., None]
    return (middle + half * POINTS).flatten(-2), (half * WEIGHTS).flatten(-2)


def normal_density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
