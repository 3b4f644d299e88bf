"""The dual map of one pair by integration, for functions with many panels: waves, many kinks, narrow steps.

    E[φ(u)φ(v)] = E_u[φ(u) S(λu/τ_i²)],     S(m) = E[φ(m + sη)],  s = τ_j √(1 − ρ²).

S has no feature narrower than s, so its values at nodes of panels of that size, each from the few panels of φ within ten
deviations, tell it everywhere: the cost is that of one line, not of a plane.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.activations.mesh import Mesh, legendre_sum, legendre_transform
from notsodeep.approximation.quadrature import CUT, PANEL_NODES, legendre, normal_rule

_CHUNK = 1 << 21  # values held at once
_WINDOW = 10.0  # deviations: beyond, a Gaussian is below 1e-21
_LAYER = 9.0  # deviations about a feature narrower than s within which S has features of width s
_STEP = 1.5  # deviations: on so wide a panel a blurred function is a polynomial of degree 15 to round-off
_SMALLEST_STD = 1e-300


def windowed_dual(
    phi: Activation, mesh: Mesh, tau_i: float, tau_j: float, lam: float, means: tuple[float, float]
) -> tuple[float, float]:
    """(Cov[φ(u), φ(v)], E[φ'(u)φ'(v)]) of one pair; `mesh` is that of φ for both deviations."""
    product = tau_i * tau_j
    spread = tau_j * math.sqrt(max(product - lam, 0.0) * max(product + lam, 0.0)) / product
    spread = max(spread, _SMALLEST_STD)
    gain = lam / tau_i**2
    blurred = _Blurred(phi, mesh, spread, CUT * abs(gain) * tau_i)
    marks = torch.cat([mesh.edges, blurred.edges / gain]) if gain else mesh.edges
    rule = normal_rule(torch.tensor(tau_i, dtype=torch.float64), marks.clamp(-CUT * tau_i, CUT * tau_i).unique())
    u = rule.u.reshape(-1, PANEL_NODES)
    weights = rule.weights.reshape(u.shape)
    kept = weights.amax(1) > 0.0
    u, weights = u[kept], weights[kept]
    value, slope = blurred(gain * u)
    covariance = (weights * (phi(u) - means[0]) * (value - means[1])).sum()
    derivative = (weights * phi.derivative(u) * slope).sum()
    if mesh.jumps:
        place, size = torch.tensor(mesh.jumps, dtype=torch.float64).unbind(1)
        density = torch.exp(-0.5 * (place / tau_i).square()) / (math.sqrt(2.0 * math.pi) * tau_i)
        derivative = derivative + (size * density * _smoothed(phi, mesh, gain * place, spread)[1]).sum()
    return float(covariance), float(derivative)


class _Blurred:
    """S and S' on [−reach, reach], as polynomials on panels."""

    def __init__(self, phi: Activation, mesh: Mesh, spread: float, reach: float) -> None:
        reach = max(reach, torch.finfo(torch.float64).tiny)
        self.edges = _blurred_edges(mesh, spread, reach)
        lower, upper = self.edges[:-1, None], self.edges[1:, None]
        nodes, _ = legendre(PANEL_NODES, "cpu")
        m = 0.5 * (lower + upper) + 0.5 * (upper - lower) * nodes
        both = _smoothed(phi, mesh, m.flatten(), spread)
        transform = legendre_transform().T
        self.series = tuple(each.reshape(m.shape) @ transform for each in both)

    def __call__(self, m: Tensor) -> tuple[Tensor, Tensor]:
        """(S, S') at m, (panels, nodes), each row of which lies on one panel."""
        at = (torch.searchsorted(self.edges, m.mean(1)) - 1).clamp(0, len(self.edges) - 2)
        lower, upper = self.edges[at, None], self.edges[at + 1, None]
        t = ((2.0 * m - lower - upper) / (upper - lower)).clamp(-1.0, 1.0)
        value, slope = (legendre_sum(series[at], t) for series in self.series)
        return value, slope


def _blurred_edges(mesh: Mesh, spread: float, reach: float) -> Tensor:
    """Panels for S: those of φ, and steps of s about everything that is narrower than that."""
    edges = mesh.edges
    narrow = edges.diff() < _STEP * spread
    features = torch.cat([edges[:-1][narrow], edges[1:][narrow], edges.new_tensor(mesh.kinks)])
    features = features[features.abs() < reach + _LAYER * spread].unique()
    if not len(features):
        return _within(edges, reach)
    ends = features.diff() > 2.0 * _LAYER * spread  # where one layer ends and the next begins
    none = torch.ones(1, dtype=torch.bool)
    start = features[torch.cat([none, ends])] - _LAYER * spread
    stop = features[torch.cat([ends, none])] + _LAYER * spread
    count = ((stop - start) / (_STEP * spread)).ceil().long().clamp(min=1)
    index = torch.arange(int((count + 1).sum())) - ((count + 1).cumsum(0) - count - 1).repeat_interleave(count + 1)
    share = index.double() / count.repeat_interleave(count + 1)
    steps = torch.lerp(start.repeat_interleave(count + 1), stop.repeat_interleave(count + 1), share)
    layer = (torch.searchsorted(start, edges, right=True) - 1).clamp(min=0)
    outside = ~((edges >= start[layer]) & (edges <= stop[layer]))
    found = torch.cat([edges[outside], steps])
    return _within(found, reach)


def _within(edges: Tensor, reach: float) -> Tensor:
    """The edges on [−reach, reach], which ends there."""
    found: Tensor = torch.cat([edges[edges.abs() < reach], edges.new_tensor([-reach, reach])]).unique()
    return found


def _smoothed(phi: Activation, mesh: Mesh, mean: Tensor, spread: float) -> tuple[Tensor, Tensor]:
    """(E[φ(m + sη)], E[φ'(m + sη)]) at means (Q,), from the panels of φ within reach of each."""
    order = mean.argsort()
    at = mean[order]
    first = torch.searchsorted(mesh.edges, at - _WINDOW * spread)
    last = torch.searchsorted(mesh.edges, at + _WINDOW * spread)
    value, slope = torch.empty_like(mean), torch.empty_like(mean)
    start = 0
    while start < len(at):
        # As many at a time as fit, with the marks of the fullest window for all.
        stop = min(len(at), start + 4096)
        most = int((last - first)[start:stop].max())
        stop = min(stop, start + max(1, _CHUNK // (PANEL_NODES * (most + 9))))
        part = slice(start, stop)
        index = first[part, None] + torch.arange(most)
        held = index < last[part, None]
        marks = torch.where(held, mesh.edges[index.clamp(max=len(mesh.edges) - 1)], at[part, None])
        std = at.new_full((stop - start,), spread)
        rule = normal_rule(std, marks, mean=at[part])
        value[order[part]], slope[order[part]] = rule.mean_of(phi(rule.u)), rule.mean_of(phi.derivative(rule.u))
        start = stop
    if mesh.jumps:
        place, size = torch.tensor(mesh.jumps, dtype=torch.float64).unbind(1)
        for rows in torch.arange(len(mean)).split(max(1, _CHUNK // len(place))):
            z = (place - mean[rows, None]) / spread
            slope[rows] += (size * torch.exp(-0.5 * z.square())).sum(1) / (math.sqrt(2.0 * math.pi) * spread)
    return value, slope
