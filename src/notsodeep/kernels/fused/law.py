"""What a fused solver needs to know of a network and its samples, in the precision it works in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.activations import Activation, Cos, Rectifier, Sin
from notsodeep.gaussian import Moments, Rows, rows
from notsodeep.gaussian.affine import affine_parts
from notsodeep.kernels.pairs import ExplicitPairs, ImplicitPairs
from notsodeep.tolerances import FUSED_CAP, FUSED_HALLEY, FUSED_NEWTON, FUSED_TRUNCATION

_SMALLEST, _LARGEST = 1e-9, 1e9
"""Deviations whose products and their inverses are far within the range of float32."""
_FLAT = 1e-8
"""Variance over squared mean of a φ with a closed form, below which quadrature has lost digits, and the closed form has not."""
_WIDEST_WAVE = 12.0
"""Deviation up to which quadrature follows every Hermite polynomial times a sine; beyond, there is the closed form alone."""


@dataclass(frozen=True, eq=False)
class PairLaw:
    """ρ = s + σ_a² h(ρ), s = (σ_b² S + σ_a² m_i m_j)/(τ_i τ_j), of every pair of a DEQ, or of a layer, whose σ_a² is 0.

    `stride` 0: a rectifier, h = α²ρ + c(ρ arcsin ρ − ρ²/(1 + √(1 − ρ²))), form = (α², c). Else a series,
    h = ρ Σ_l b_l(τ_i) b_l(τ_j) ρ^(l·stride), of which 1, 2, … terms are enough for |ρ| up to `limits`; the last limit bounds
    what a fused solver may answer for.
    """

    var_a: float
    var_b: float
    stride: int
    form: tuple[float, float]
    tol: float
    limits: Tensor
    tau: Tensor
    mean: Tensor
    coefficients: Tensor
    """(terms, n)"""

    @property
    def inverse(self) -> Tensor:
        return self.tau.reciprocal()


def pair_laws(equation: ImplicitPairs | ExplicitPairs, dtype: torch.dtype) -> tuple[PairLaw, ...] | None:
    """The law of a DEQ, or those of the layers of an explicit network; None where one is not safe."""
    if isinstance(equation, ExplicitPairs):
        parts = zip(equation.net.layers, equation.rows, equation.moments, strict=True)
        found = [_law(phi, samples, at, 0.0, 1.0, dtype) for phi, samples, at in parts]
    elif equation.several_roots:
        return None
    else:
        net = equation.net
        found = [_law(net.phi, equation.rows, equation.moments, net.var_a, net.var_b, dtype)]
    laws = tuple(law for law in found if law is not None)
    return laws if len(laws) == len(found) else None


def _law(phi: Activation, samples: Rows, at: Moments, var_a: float, var_b: float, dtype: torch.dtype) -> PairLaw | None:
    """None where it is not safe: a jump of φ, many waves, hardly any variation, or norms of wildly different size."""
    tau = samples.tau
    if not _SMALLEST <= float(tau.min()) <= float(tau.max()) <= _LARGEST or not bool(torch.isfinite(at.q).all()):
        return None
    core, factor, _ = affine_parts(phi)
    if isinstance(core, Sin | Cos) and float(tau.max()) > _WIDEST_WAVE:
        return None
    flat = at.variance < _FLAT * (factor * samples.mean).square()
    if samples.coefficients is None and bool(flat.any()):
        return None
    name = str(dtype).removeprefix("torch.")
    stride, form, tol = 0, (0.0, 0.0), FUSED_HALLEY[name]
    if isinstance(core, Rectifier):
        form = (factor**2 * core.alpha**2, factor**2 * 2.0 / math.pi * core.beta**2)
        limits, coefficients = tau.new_tensor([FUSED_CAP[name]]), tau.new_zeros(1, len(tau))
    else:
        series = samples if samples.coefficients is not None else rows(core, tau, series=True)
        stride, limits, coefficients = _series(series, factor, FUSED_TRUNCATION[name])
        tol = FUSED_NEWTON[name]
    parts = (part.to(dtype).contiguous() for part in (limits, tau, at.mean, coefficients))
    return PairLaw(var_a, var_b, stride, form, tol, *parts)


def _series(series: Rows, factor: float, truncation: float) -> tuple[int, Tensor, Tensor]:
    """(stride, limits, b): |ρ|^l times what l + 1 terms miss is at most `truncation` up to |ρ| = limit."""
    assert series.coefficients is not None and series.decay is not None  # noqa: PT018
    b = (factor * series.coefficients / series.tau[:, None]).T
    degrees = torch.arange(len(b), dtype=b.dtype, device=b.device)
    limits = (truncation / series.decay).log().div(degrees.clamp(min=1.0)).exp().clamp(max=1.0).cummax(0).values
    odd = not bool(b[::2].any())
    stride = 2 if odd else 1
    if len(b) == 1:  # a constant
        return stride, torch.ones_like(limits), torch.zeros_like(b)
    b, limits = b[1::stride], limits[1::stride]
    enough = int((limits < 1.0).sum()) + 1
    return stride, limits[:enough], b[:enough]
