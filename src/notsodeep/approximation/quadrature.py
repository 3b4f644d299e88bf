"""Gaussian expectations to round-off: Gauss–Legendre panels split where the integrand is not smooth.

A plain Gauss–Hermite rule converges as a power of its nodes for a kinked function, and needs a thousand nodes for a
smooth one with features far narrower than the Gaussian (tanh at τ = 1000). Panels cut at the kinks, graded around
them and never wider than the Gaussian converge geometrically in every case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.special import roots_hermitenorm
from torch import Tensor

PANEL_NODES = 16
CUT = 12.0  # e^(−12²/2) = 5e-32; with a factor as large as e^(ξ²/4) (a Hermite function) still 2e-16


@dataclass(frozen=True)
class NormalRule:
    """Nodes u and weights w, both (..., q), with Σ w g(u) = E[g(u)] for u ~ N(mean, std²).

    ``xi`` is (u − mean)/std. The weights carry the gradient in std (the nodes do not), so an expectation is
    differentiable in std even where g jumps: d/dτ E[g(τξ)] = E[g(τξ)(ξ² − 1)]/τ.
    """

    u: Tensor
    xi: Tensor
    weights: Tensor
    roots: Tensor | None = None
    """their square roots, where some of the weights underflow"""

    def mean_of(self, values: Tensor) -> Tensor:
        """Σ_q w_q values_q."""
        return (self.weights * values).sum(-1)

    def mean_of_product(self, one: Tensor, other: Tensor) -> Tensor:
        """Σ_q w_q one_q other_q, also where one_q other_q alone overflows."""
        product = one * other
        if bool(torch.isfinite(product).all()):
            return self.mean_of(product)
        if self.roots is not None:
            return (self.roots * one * (self.roots * other)).sum(-1)
        return (self.weights * one * other).sum(-1)


def normal_rule(std: Tensor, marks: Tensor, mean: Tensor | None = None, spacing: float = 3.0, cut: float = CUT) -> NormalRule:
    """A rule for N(mean, std²), std of any shape, as far out as `cut` deviations; `marks` (..., M) are the places where panels
    must begin or end."""
    scale = std.detach()
    centre = torch.zeros_like(scale) if mean is None else mean.detach()
    points, point_weights = legendre(PANEL_NODES, str(scale.device))
    steps = round(2 * cut / spacing) + 1
    grid = torch.linspace(-cut, cut, steps, dtype=scale.dtype, device=scale.device)
    cuts = (marks - centre[..., None]) / scale[..., None]
    # 0/0 is a mark that sits on the mean of a Gaussian of no width: any place will do.
    cuts = torch.nan_to_num(cuts, nan=0.0, posinf=cut, neginf=-cut).clamp(-cut, cut)
    edges = torch.cat([grid.expand(*scale.shape, steps), cuts.expand(*scale.shape, cuts.shape[-1])], dim=-1)
    edges = edges.sort(dim=-1).values
    half = 0.5 * edges.diff(dim=-1)[..., None]
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1])[..., None]
    xi = (middle + half * points).flatten(-2)
    density = torch.exp(-0.5 * xi.square()) / (2.0 * torch.pi) ** 0.5
    weights = (half * point_weights).flatten(-2) * density
    u = centre[..., None] + scale[..., None] * xi
    return NormalRule(u, xi, _with_gradient(weights, xi, std))


def gauss_hermite_rule(std: Tensor, nodes: int) -> NormalRule:
    """The classical rule for N(0, std²): exact for polynomials of degree < 2·nodes."""
    points, point_weights, point_roots = _hermite(nodes, str(std.device))
    xi = points.expand(*std.shape, nodes)
    weights = _with_gradient(point_weights.expand_as(xi), xi, std)
    if float(point_weights.min()) >= torch.finfo(torch.float64).tiny:
        return NormalRule(std.detach()[..., None] * xi, xi, weights)
    roots = point_roots * _with_gradient(torch.ones_like(xi), xi, std).sqrt()
    return NormalRule(std.detach()[..., None] * xi, xi, weights, roots)


def _with_gradient(weights: Tensor, xi: Tensor, std: Tensor) -> Tensor:
    """Multiply by N(u; std)/N(u; std.detach()): 1 in value, the score in gradient."""
    if not std.requires_grad:
        return weights
    ratio = std.detach()[..., None] / std[..., None]
    return weights * ratio * torch.exp(-0.5 * xi.square() * (ratio.square() - 1.0))


@lru_cache
def legendre(nodes: int, device: str) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss–Legendre rule on [−1, 1]."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return torch.tensor(points, device=device), torch.tensor(weights, device=device)


@lru_cache
def _hermite(nodes: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, weights and their roots: w = 1/Σ h_k², which e^(−ξ²/2) makes a sum of numbers that neither overflow nor vanish."""
    points, weights = roots_hermitenorm(nodes)  # numpy's own overflows at some 250 nodes
    envelope = np.exp(-0.25 * points**2)
    before, now = np.zeros_like(points), envelope
    total = now**2
    for k in range(1, nodes):
        before, now = now, (points * now - np.sqrt(k - 1) * before) / np.sqrt(k)
        total += now**2
    found = (points, weights / weights.sum(), envelope / np.sqrt(total))
    return tuple(torch.tensor(each, device=device) for each in found)  # type: ignore[return-value]
