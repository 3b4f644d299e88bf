"""Tiles by a fused solver; pairs that it leaves open are solved by the pair equation in float64."""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from notsodeep.activations import Activation, Cos, Rectifier, Sin
from notsodeep.activations.mixed import Units, kinds_of
from notsodeep.activations.wrappers import affine_parts
from notsodeep.gaussian import Moments, Rows, rows
from notsodeep.kernels.exact.images.pairs import ExplicitImages, ImplicitImages
from notsodeep.kernels.exact.pairs import ExplicitPairs, Pairs
from notsodeep.tolerances import FUSED_CAP, FUSED_HALLEY, FUSED_NEWTON, FUSED_TRUNCATION

_LISTED_AT_ONCE = 1 << 22, 1 << 26  # numbers of the samples gathered for a list of pairs, on a CPU and on CUDA
_WORTH_COMPILING = 1 << 19  # pairs
_SMALLEST, _LARGEST = 1e-9, 1e9
"""Deviations whose products and their inverses are far within the range of float32."""
_FLAT = 1e-8
"""Variance over squared mean of φ below which quadrature loses digits that a closed form keeps."""
_WIDEST_WAVE = 12.0
"""Deviation up to which quadrature follows every Hermite polynomial times a sine; beyond, only the closed form does."""


@dataclass(frozen=True, eq=False)
class Tile:
    """One or two kernels of the pairs `left` × `right`, and the tensors that they are written to; no mirrors: whole tiles."""

    left: slice
    right: slice
    kernels: tuple[str, ...]
    outputs: Any
    mirrors: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.stop - self.left.start, self.right.stop - self.right.start


class Engine(ABC):
    """Kernels of the samples `rows` against `columns`; of one set against itself, without the diagonal.

    A DEQ has one law, an explicit network one for each layer.
    """

    def __init__(self, laws: tuple[PairLaw, ...], equation: Pairs, rows: Tensor, columns: Tensor, symmetric: bool) -> None:
        self.laws, self.equation, self.symmetric = laws, equation, symmetric
        self.rows, self.columns = rows.contiguous(), columns.contiguous()
        self.offset = 0 if symmetric else len(rows)

    @abstractmethod
    def solve(self, tile: Tile) -> Tensor | None:
        """Write the kernels of a tile (of a mirrored one, the part above the diagonal to both places), and return the indices
        (pairs, 2) within the tile of the pairs left open, or None."""

    @property
    @abstractmethod
    def sides(self) -> tuple[int, int]:
        """(rows, columns) of a tile that suits the device."""

    def tile(self, left: slice, right: slice, kernels: tuple[str, ...], outputs: Any, mirrors: Any = None) -> None:
        """Write a tile, open pairs included."""
        for start in range(0, len(kernels), 2):
            part = slice(start, start + 2)
            tile = Tile(left, right, kernels[part], outputs[part], None if mirrors is None else mirrors[part])
            open_pairs = self.solve(tile)
            if open_pairs is not None:
                self._finish(tile, open_pairs)

    def fill(self, outputs: tuple[Tensor, ...], kernels: tuple[str, ...]) -> None:
        """Write whole kernels in strips of rows; of a symmetric one, from the diagonal on."""
        n, n2 = outputs[0].shape
        height, width = self.sides
        for top in range(0, n, height):
            left = slice(top, min(top + height, n))
            for start in range(top if self.symmetric else 0, n2, width):
                right = slice(start, min(start + width, n2))
                mirrors = [output[right, left] for output in outputs] if self.symmetric else None
                self.tile(left, right, kernels, [output[left, right] for output in outputs], mirrors)

    def _finish(self, tile: Tile, open_pairs: Tensor) -> None:
        at_once = max(1, _LISTED_AT_ONCE[self.rows.is_cuda] // self.rows.shape[1])
        for part in open_pairs.split(at_once):
            i, j = part[:, 0] + tile.left.start, part[:, 1] + tile.right.start
            gram = (self.rows[i].to(torch.float64) * self.columns[j].to(torch.float64)).sum(1)
            exact = self.equation.pairs(i, j + self.offset, gram)
            for index, name in enumerate(tile.kernels):
                values = getattr(exact, name).to(tile.outputs[index].dtype)
                tile.outputs[index][part[:, 0], part[:, 1]] = values
                if tile.mirrors is not None:
                    tile.mirrors[index][part[:, 1], part[:, 0]] = values


def engine_for(equation: Pairs, rows: Tensor, columns: Tensor, symmetric: bool, eager: bool = False) -> Engine | None:
    """The fused solver for the samples' device; None where there is none, or for a small kernel unless `eager`."""
    if len(rows) * len(columns) < _WORTH_COMPILING and not eager:
        return None
    needed = "triton" if rows.is_cuda else "numba"
    if rows.device.type not in ("cpu", "cuda") or importlib.util.find_spec(needed) is None:
        return None
    laws = pair_laws(equation, rows.dtype)
    if laws is None or (rows.is_cuda and any(len(law.mean) > 1 for law in laws)):
        return None
    if rows.is_cuda:
        from notsodeep.kernels.exact.compiled.triton_engine import GpuEngine

        return GpuEngine(laws, equation, rows, columns, symmetric)
    from notsodeep.kernels.exact.compiled.numba_engine import CpuEngine

    return CpuEngine(laws, equation, rows, columns, symmetric)


@dataclass(frozen=True, eq=False)
class PairLaw:
    """ρ = s + σ_a² h(ρ), s = (σ_b² S + σ_a² m_i m_j)/(τ_i τ_j), of every pair of a DEQ, or of a layer, whose σ_a² is 0.

    `stride` 0: a rectifier, h = α²ρ + c(ρ arcsin ρ − ρ²/(1 + √(1 − ρ²))), form = (α², c). Else a series,
    h = ρ Σ_l b_l(τ_i) b_l(τ_j) ρ^(l·stride); 1, 2, … terms are enough for |ρ| up to `limits`, the last of them the largest |ρ|
    that a fused solver answers for.
    """

    var_a: float
    var_b: float
    stride: int
    form: tuple[float, float]
    tol: float
    limits: Tensor
    tau: Tensor
    mean: Tensor
    """(kinds of units, n)"""
    coefficients: Tensor
    """(terms·kinds, n), term by term"""
    gain: float = 1.0
    """The square of the gain of the weights after it: Θ = gain·G + Q K"""
    start: float = 1.0
    """The square of the gain of its own weights, for a first layer: K = start·Λ/(1 − σ_a² Q)"""
    kinds: int = 1
    """How many series are summed: those of a layer's kinds of units; only the compiled loops of a CPU know several"""

    @property
    def inverse(self) -> Tensor:
        return self.tau.reciprocal()


def pair_laws(
    equation: Pairs | ImplicitImages | ExplicitImages, dtype: torch.dtype, truncation: float | None = None
) -> tuple[PairLaw, ...] | None:
    """The law of a DEQ, or those of the layers of an explicit network; None where one is not safe. A series may miss
    `truncation`, by default what is round-off in `dtype`."""
    missed = truncation or FUSED_TRUNCATION[_name(dtype)]
    if isinstance(equation, ExplicitPairs | ExplicitImages):
        parts = zip(equation.net.layers, equation.rows, equation.moments, strict=True)
        found = [_layer_law(units, samples, moments, dtype, missed) for units, samples, moments in parts]
        first, *gains = (gain**2 for gain in equation.net.gains)
        found = [law and replace(law, gain=gain, start=first) for law, gain in zip(found, gains, strict=True)]
    elif equation.several_roots:
        return None
    else:
        net = equation.net
        found = [_law(net.phi, equation.rows, equation.moments, (net.var_a, net.var_b), dtype, missed)]
    laws = tuple(law for law in found if law is not None)
    return laws if len(laws) == len(found) else None


def _layer_law(
    units: Units, samples: list[Rows], moments: list[Moments], dtype: torch.dtype, truncation: float
) -> PairLaw | None:
    """The law of a layer: of several kinds of units the mean of theirs, all rectifiers or all series in one power of ρ."""
    kinds, odd = kinds_of(units), None
    cores = [affine_parts(kind)[0] for kind in kinds]
    if len(kinds) > 1 and not all(isinstance(core, Rectifier) for core in cores):
        known = zip(cores, samples, strict=True)
        samples = [one if one.coefficients is not None else rows(core, one.tau, series=True) for core, one in known]
        odd = all(_is_odd(one) for one in samples)
    parts = zip(kinds, samples, moments, strict=True)
    laws = [_law(kind, one, at, (0.0, 1.0), dtype, truncation, odd) for kind, one, at in parts]
    safe = [law for law in laws if law is not None]
    return None if len(safe) < len(laws) else _mean_law(safe)


def _mean_law(laws: list[PairLaw]) -> PairLaw:
    """(1/r) Σ_q h_q: coefficients and means over √r, each series as long as the longest, and safe where all are."""
    first, r = laws[0], len(laws)
    if r == 1:
        return first
    mean = torch.cat([law.mean for law in laws]) * r**-0.5
    if first.stride == 0:
        form = sum(law.form[0] for law in laws) / r, sum(law.form[1] for law in laws) / r
        return replace(first, form=form, mean=mean)
    terms = max(len(law.coefficients) for law in laws)
    limits = torch.stack([torch.cat([law.limits, law.limits[-1:].expand(terms - len(law.limits))]) for law in laws]).amin(0)
    series = torch.stack([pad(law.coefficients, (0, 0, 0, terms - len(law.coefficients))) for law in laws], dim=1)
    return replace(first, mean=mean, limits=limits, coefficients=series.flatten(0, 1) * r**-0.5, kinds=r)


def _law(
    phi: Activation,
    samples: Rows,
    at: Moments,
    variances: tuple[float, float],
    dtype: torch.dtype,
    truncation: float,
    odd: bool | None = None,
) -> PairLaw | None:
    """None where it is not safe: a jump of φ, many waves, hardly any variation, or very different norms. A rectifier whose
    `samples` have coefficients is taken as its series; `odd` says whether a series goes in powers of ρ², if φ does not."""
    tau = samples.tau
    if not _SMALLEST <= float(tau.min()) <= float(tau.max()) <= _LARGEST or not bool(torch.isfinite(at.q).all()):
        return None
    core, factor, _ = affine_parts(phi)
    if isinstance(core, Sin | Cos) and float(tau.max()) > _WIDEST_WAVE:
        return None
    flat = at.variance < _FLAT * (factor * samples.mean).square()
    if samples.coefficients is None and bool(flat.any()):
        return None
    name = _name(dtype)
    stride, form, tol = 0, (0.0, 0.0), FUSED_HALLEY[name]
    if isinstance(core, Rectifier) and samples.coefficients is None:
        form = (factor**2 * core.alpha**2, factor**2 * 2.0 / math.pi * core.beta**2)
        limits, coefficients = tau.new_tensor([FUSED_CAP[name]]), tau.new_zeros(1, len(tau))
    else:
        series = samples if samples.coefficients is not None else rows(core, tau, series=True)
        stride, limits, coefficients = _series(series, factor, truncation, odd)
        tol = FUSED_NEWTON[name]
    parts = [part.to(dtype).contiguous() for part in (limits, tau, at.mean[None], coefficients)]
    return PairLaw(*variances, stride, form, tol, parts[0], parts[1], parts[2], parts[3])


def _series(series: Rows, factor: float, truncation: float, odd: bool | None) -> tuple[int, Tensor, Tensor]:
    """(stride, limits, b): |ρ|^l times the remainder after l + 1 terms is at most `truncation` up to |ρ| = limit."""
    assert series.coefficients is not None and series.decay is not None  # noqa: PT018
    b = (factor * series.coefficients / series.tau[:, None]).T
    degrees = torch.arange(len(b), dtype=b.dtype, device=b.device)
    limits = (truncation / series.decay).log().div(degrees.clamp(min=1.0)).exp().clamp(max=1.0).cummax(0).values
    stride = 2 if (_is_odd(series) if odd is None else odd) else 1
    if len(b) == 1:  # a constant
        return stride, torch.ones_like(limits), torch.zeros_like(b)
    b, limits = b[1::stride], limits[1::stride]
    enough = int((limits < 1.0).sum()) + 1
    return stride, limits[:enough], b[:enough]


def _is_odd(series: Rows) -> bool:
    assert series.coefficients is not None
    return not bool(series.coefficients[..., ::2].any())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
