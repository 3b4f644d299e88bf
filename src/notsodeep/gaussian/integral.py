"""The dual map by integration, for any |ρ| ≤ 1: the exact path where no Hermite series is long enough.

    E[φ(u)φ(v)] = E_u[φ(u) S(λu/τ_i²)],     S(m) = E[φ(m + sη)],  s = τ_j √(1 − ρ²),

and the same with φ' for the derivative in λ (Price). As |ρ| → 1 the inner Gaussian shrinks to a point, and the outer panels are
graded around the places where its mean crosses a kink.

Few panels: S is integrated for every outer node, many pairs at a time. Many panels (waves, many kinks, narrow steps): S has no
feature narrower than s, so it is tabulated on panels of that size, each value from the panels of φ within ten deviations. The
cost is then that of a line instead of a plane.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from notsodeep.activations import Activation, Elu, HardTanh
from notsodeep.activations.combination import Stretched, Sum
from notsodeep.activations.mesh import Mesh, legendre_sum, legendre_transform
from notsodeep.activations.wrappers import affine_parts
from notsodeep.approximation.quadrature import CUT, PANEL_NODES, legendre, normal_rule
from notsodeep.gaussian.mass import cuts
from notsodeep.gaussian.moments import panels

_CHUNK, _LINE_CHUNK = 1 << 22, 1 << 21  # values held at once
_SPACING = 3.0  # of a rule's own panels, in deviations
# Deviations of the inner Gaussian at which outer panels end, around a kink.
_BLUR = (-9.0, -3.0, -1.0, 0.0, 1.0, 3.0, 9.0)
_PLANE = 1 << 21  # values for one pair above which tabulating S costs less
_FAINT = 2.0  # deviations: the last ones before a cut, in which panels need not end where those of φ do
_LAYER = 9.0  # deviations around a feature narrower than s within which S has features of width s
_STEP = 1.5  # deviations: on a panel this wide a blurred function is a polynomial of degree 15 to round-off
_SMALLEST_STD = 1e-300


class Range(NamedTuple):
    """How far out φ counts."""

    cut: float = CUT
    """in deviations"""
    end: float = math.inf
    """in its argument; farther out, φ is taken to be what it is there"""

    def of(self, function: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
        return function(u) if math.isinf(self.end) else function(u.clamp(-self.end, self.end))


_USUAL = Range()


def conditional_dual(
    phi: Activation, tau_i: Tensor, tau_j: Tensor, lam: Tensor, means: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """(E[φ(u)φ(v)], E[φ'(u)φ'(v)]) for vectors of pairs, all of shape (pairs,), every τ > 0.

    With the `means` of φ(u) and φ(v), the first is their covariance.
    """
    means = (torch.zeros_like(lam), torch.zeros_like(lam)) if means is None else means
    if not lam.numel():
        return torch.empty_like(lam), torch.empty_like(lam)
    every = torch.maximum(cuts(phi, tau_i), cuts(phi, tau_j))
    if bool((every == CUT).all()):
        return _of_cut(phi, CUT, tau_i, tau_j, lam, *means)
    value, slope = torch.empty_like(lam), torch.empty_like(lam)
    for cut in every.unique().tolist():
        here = every == cut
        given = (each[here] for each in (tau_i, tau_j, lam, *means))
        value[here], slope[here] = _of_cut(phi, cut, *given)
    return value, slope


def _of_cut(
    phi: Activation, cut: float, tau_i: Tensor, tau_j: Tensor, lam: Tensor, mean_i: Tensor, mean_j: Tensor
) -> tuple[Tensor, Tensor]:
    """`conditional_dual` of pairs within whose `cut` deviations all of φ counts."""
    value, slope = torch.empty_like(lam), torch.empty_like(lam)
    largest = torch.maximum(tau_i, tau_j)
    mesh, far = panels(phi, largest, cut), Range(cut, math.inf if cut == CUT else cut * float(largest.max()))
    marks, blurred = len(mesh.edges), len(_blurred_places(phi, mesh))
    grid = round(2.0 * cut / _SPACING) + 1  # edges of a rule's own panels
    inner, outer = grid + marks, grid + 2 * marks + len(_BLUR) * blurred
    plane = inner * outer * PANEL_NODES**2
    if plane > _PLANE and phi.is_found_by_looking:
        numbers = zip(*(each.tolist() for each in (tau_i, tau_j, lam, mean_i, mean_j)), strict=True)
        for k, (a, b, both, *two) in enumerate(numbers):
            value[k], slope[k] = _tabulated_dual(phi, mesh, a, b, both, (two[0], two[1]), far)
        return value, slope
    size = max(1, _CHUNK // plane)
    for start in range(0, lam.numel(), size):
        part = slice(start, start + size)
        given = (each[part] for each in (tau_i, tau_j, lam, mean_i, mean_j))
        value[part], slope[part] = _conditional_chunk(phi, mesh, far, *given)
    return value, slope


def _blurred_places(phi: Activation, mesh: Mesh) -> tuple[float, ...]:
    """Places where φ blurred has a feature as wide as the blur: the kinks, and narrow features of unknown φ."""
    return (*mesh.kinks, *mesh.features) if phi.is_found_by_looking else mesh.kinks


def _conditional_chunk(
    phi: Activation, mesh: Mesh, far: Range, tau_i: Tensor, tau_j: Tensor, lam: Tensor, mean_i: Tensor, mean_j: Tensor
) -> tuple[Tensor, Tensor]:
    product = tau_i * tau_j
    spread = tau_j * ((product - lam).clamp(min=0) * (product + lam).clamp(min=0)).sqrt() / product
    gain = lam / tau_i.square()  # E[v | u] = gain·u
    marks = mesh.edges.to(lam.device).expand(lam.numel(), -1)
    blurred = spread[:, None, None] * torch.tensor(_BLUR, dtype=lam.dtype, device=lam.device)
    places = torch.tensor(_blurred_places(phi, mesh), dtype=lam.dtype, device=lam.device)[None, :, None]
    crossings = torch.cat([marks, (places + blurred).flatten(1)], dim=1) / gain[:, None]
    rule = normal_rule(tau_i, torch.cat([marks, crossings], dim=1), cut=far.cut)
    inner, inner_slope = smoothed(phi, gain[:, None] * rule.u, spread[:, None], far)
    value = rule.mean_of_product(phi(rule.u) - mean_i[:, None], inner - mean_j[:, None])
    slope = rule.mean_of_product(phi.derivative(rule.u), inner_slope)
    for place, size in mesh.jumps:
        _, at_jump = smoothed(phi, gain * place, spread, far)
        density = torch.exp(-0.5 * (place / tau_i).square()) / (math.sqrt(2.0 * math.pi) * tau_i)
        slope = slope + size * density * at_jump
    return value, slope


def _tabulated_dual(
    phi: Activation, mesh: Mesh, tau_i: float, tau_j: float, lam: float, means: tuple[float, float], far: Range = _USUAL
) -> tuple[float, float]:
    """(Cov[φ(u), φ(v)], E[φ'(u)φ'(v)]) of one pair; `mesh` is that of φ for both deviations."""
    product = tau_i * tau_j
    spread = tau_j * math.sqrt(max(product - lam, 0.0) * max(product + lam, 0.0)) / product
    spread = max(spread, _SMALLEST_STD)
    gain = lam / tau_i**2
    blurred = _Blurred(phi, mesh, spread, far.cut * abs(gain) * tau_i, far)
    marks = torch.cat([mesh.edges, blurred.edges / gain]) if gain else mesh.edges
    marks = marks.clamp(-far.cut * tau_i, far.cut * tau_i).unique()
    rule = normal_rule(torch.tensor(tau_i, dtype=torch.float64), marks, cut=far.cut)
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
        derivative = derivative + (size * density * _smoothed(phi, mesh, gain * place, spread, far)[1]).sum()
    return float(covariance), float(derivative)


class _Blurred:
    """S and S' on [−reach, reach], as polynomials on panels."""

    def __init__(self, phi: Activation, mesh: Mesh, spread: float, reach: float, far: Range) -> None:
        reach = max(reach, torch.finfo(torch.float64).tiny)
        self.edges = _blurred_edges(mesh, spread, reach)
        lower, upper = self.edges[:-1, None], self.edges[1:, None]
        nodes, _ = legendre(PANEL_NODES, "cpu")
        m = 0.5 * (lower + upper) + 0.5 * (upper - lower) * nodes
        both = _smoothed(phi, mesh, m.flatten(), spread, far)
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


def _smoothed(phi: Activation, mesh: Mesh, mean: Tensor, spread: float, far: Range) -> tuple[Tensor, Tensor]:
    """(E[φ(m + sη)], E[φ'(m + sη)]) at means (Q,), from the panels of φ within reach of each."""
    order = mean.argsort()
    at = mean[order]
    window = (far.cut - _FAINT) * spread
    first = torch.searchsorted(mesh.edges, at - window)
    last = torch.searchsorted(mesh.edges, at + window)
    value, slope = torch.empty_like(mean), torch.empty_like(mean)
    start = 0
    while start < len(at):
        # As many at a time as fit, with the marks of the fullest window for all.
        stop = min(len(at), start + 4096)
        most = int((last - first)[start:stop].max())
        stop = min(stop, start + max(1, _LINE_CHUNK // (PANEL_NODES * (most + 9))))
        part = slice(start, stop)
        index = first[part, None] + torch.arange(most)
        held = index < last[part, None]
        marks = torch.where(held, mesh.edges[index.clamp(max=len(mesh.edges) - 1)], at[part, None])
        std = at.new_full((stop - start,), spread)
        rule = normal_rule(std, marks, mean=at[part], cut=far.cut)
        both = (rule.mean_of(far.of(function, rule.u)) for function in (phi, phi.derivative))
        value[order[part]], slope[order[part]] = both
        start = stop
    if mesh.jumps:
        place, size = torch.tensor(mesh.jumps, dtype=torch.float64).unbind(1)
        for rows in torch.arange(len(mean)).split(max(1, _LINE_CHUNK // len(place))):
            z = (place - mean[rows, None]) / spread
            slope[rows] += (size * torch.exp(-0.5 * z.square())).sum(1) / (math.sqrt(2.0 * math.pi) * spread)
    return value, slope


def smoothed(phi: Activation, mean: Tensor, std: Tensor, far: Range = _USUAL) -> tuple[Tensor, Tensor]:
    """(E[φ(mean + std·η)], E[φ'(mean + std·η)]), the jumps of φ counted in the second; linear in φ, so part by part."""
    std = std.clamp(min=_SMALLEST_STD).expand_as(mean)
    closed = _CLOSED.get(type(phi))
    if closed is not None:
        return closed(phi, mean, std)
    core, factor, offset = affine_parts(phi)
    if isinstance(core, Sum):
        values, slopes = zip(*(smoothed(part, mean, std, far) for part in core.parts), strict=True)
        value, slope = reduce(torch.add, values), reduce(torch.add, slopes)
    elif isinstance(core, Stretched):
        b = core.stretch
        value, slope = smoothed(core.inner, b * mean, b * std, Range(far.cut, b * far.end))
        slope = b * slope
    elif core is not phi:
        value, slope = smoothed(core, mean, std, far)
    else:
        return _by_quadrature(phi, mean, std, far)
    return factor * value - offset, factor * slope


def _by_quadrature(phi: Activation, mean: Tensor, std: Tensor, far: Range = _USUAL) -> tuple[Tensor, Tensor]:
    reach = min(far.end, float((mean.abs() + far.cut * std).max())) if mean.numel() else far.cut
    mesh = phi.mesh(reach).within(reach) if phi.is_found_by_looking else phi.mesh(reach)
    rule = normal_rule(std, mesh.edges.to(mean.device), mean=mean, cut=far.cut)
    value, slope = (rule.mean_of(far.of(function, rule.u)) for function in (phi, phi.derivative))
    for place, size in mesh.jumps:
        slope = slope + size * _density((place - mean) / std) / std
    return value, slope


def _hinge(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """E[max(v, 0)] and P(v > 0)."""
    z = mean / std
    above = torch.special.ndtr(z)
    return mean * above + std * _density(z), above


def _hard_tanh(phi: HardTanh, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """clip(v, −c, c) = −c + max(v + c, 0) − max(v − c, 0)."""
    low, above_low = _hinge(mean + phi.c, std)
    high, above_high = _hinge(mean - phi.c, std)
    return phi.a * (low - high - phi.c), phi.a * (above_low - above_high)


def _elu(phi: Elu, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """max(v, 0) + scale·(E[e^v; v < 0] − P(v < 0)), with E[e^v; v < 0] = e^(m + s²/2) P(ξ < −m/s − s)."""
    hinge, above = _hinge(mean, std)
    z = mean / std
    shifted = z + std
    # Two forms of one number: erfcx where the exponential could overflow, the plain product elsewhere.
    scaled = 0.5 * torch.exp(-0.5 * z.square()) * torch.special.erfcx(shifted.clamp(min=0) / math.sqrt(2.0))
    plain = torch.exp((mean + 0.5 * std.square()).clamp(max=0)) * torch.special.ndtr(-shifted)
    exponential = torch.where(shifted > 0, scaled, plain)
    return hinge + phi.scale * (exponential - torch.special.ndtr(-z)), above + phi.scale * exponential


def _density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)


_CLOSED: dict[type[Activation], Callable[..., tuple[Tensor, Tensor]]] = {HardTanh: _hard_tanh, Elu: _elu}
