"""Piecewise polynomials, recognised by looking: what is needed of one to integrate it in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.polynomial import legendre

from notsodeep.activations.mesh import legendre_transform
from notsodeep.activations.slopes import Function
from notsodeep.approximation.quadrature import PANEL_NODES

_HIGHEST = 4  # degree
_MOST = 8  # kinks: every two of them are a term
_ROUNDING = 1e-12  # of a coefficient, relative to the largest
_BEYOND = 8.0  # how far past the outermost kinks a polynomial is read off
_FAR = np.concatenate([-np.geomspace(1e4, 10.0, 40), np.linspace(-9.9, 9.9, 397), np.geomspace(10.0, 1e4, 40)])
_LOOKED_AT = _FAR + 1e-3 / np.pi  # not at round numbers, which may be kinks


@dataclass(frozen=True)
class Pieces:
    """A function that is a polynomial between its kinks, and no polynomial as a whole."""

    degree: int
    """of the highest piece, at least 1"""
    places: tuple[float, ...]
    jumps: tuple[tuple[float, ...], ...]
    """for each kink, by how much φ, φ', … φ^(degree) jump there"""


def pieces_of(function: Function, kinks: tuple[float, ...]) -> Pieces | None:
    """The pieces of `function`, whose `kinks` are known; None where it is not a piecewise polynomial of low degree."""
    if not 0 < len(kinks) <= _MOST:
        return None
    ends = np.array([kinks[0] - _BEYOND, *kinks, kinks[-1] + _BEYOND])
    points, _ = legendre.leggauss(PANEL_NODES)
    half, middle = 0.5 * np.diff(ends), 0.5 * (ends[1:] + ends[:-1])
    values = _at(function, middle[:, None] + half[:, None] * points)
    series = values @ legendre_transform().numpy().T
    scale = np.abs(values).max(1)
    series[np.abs(series) <= _ROUNDING * scale[:, None]] = 0.0
    degree = max(1, int(np.nonzero(series.any(0))[0].max(initial=0)))
    if degree > _HIGHEST or not _fits(function, kinks, series, scale, half, middle):
        return None
    jumps = np.zeros((len(kinks), degree + 1))
    for order in range(degree + 1):
        # Of the piece on the right at its left end, less that of the piece on the left at its right end.
        after, before = (
            np.array([legendre.legval(end, legendre.legder(c, order)) for c in series]) / half**order for end in (-1.0, 1.0)
        )
        step = after[1:] - before[:-1]
        # What the rounding of the coefficients beside a kink can be at its ends.
        noise = _ROUNDING * scale * (2.0 * degree**2 / half) ** order
        jumps[:, order] = np.where(np.abs(step) <= np.maximum(noise[1:], noise[:-1]), 0.0, step)
    real = jumps.any(1)
    first = legendre.legval((_LOOKED_AT - middle[0]) / half[0], series[0])
    if not real.any() or not _add_up(function, kinks, jumps, first, scale.max()):
        return None
    return Pieces(degree, tuple(np.array(kinks)[real].tolist()), tuple(tuple(row) for row in jumps[real].tolist()))


def _fits(
    function: Function, kinks: tuple[float, ...], series: np.ndarray, scale: np.ndarray, half: np.ndarray, middle: np.ndarray
) -> bool:
    """Whether the pieces are the function wherever it is looked at, far out too."""
    x = _LOOKED_AT
    at = np.searchsorted(kinks, x)
    found = np.array([legendre.legval((v - middle[k]) / half[k], series[k]) for v, k in zip(x, at, strict=True)])
    wanted = _at(function, x)
    size = np.maximum.accumulate(np.abs(wanted)[np.argsort(np.abs(x))])[np.argsort(np.argsort(np.abs(x)))]
    return bool((np.abs(found - wanted) <= 1e2 * _ROUNDING * size + 0.1 * _ROUNDING * scale[at]).all())


def _add_up(function: Function, kinks: tuple[float, ...], jumps: np.ndarray, first: np.ndarray, scale: float) -> bool:
    """Whether the first piece and the jumps make the function, far out too: the piece between two kinks close together is a
    polynomial to rounding for many a smooth function, but what such a one jumps by does not add up to the other pieces."""
    found, size = first, np.abs(first) + 1e-3 * scale
    for place, row in zip(kinks, jumps, strict=True):
        for order, jump in enumerate(row):
            term = jump * np.maximum(_LOOKED_AT - place, 0.0) ** order / math.factorial(order) * (place < _LOOKED_AT)
            found, size = found + term, size + np.abs(term)
    return bool((np.abs(found - _at(function, _LOOKED_AT)) <= 1e2 * _ROUNDING * size).all())


def _at(function: Function, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return function(torch.from_numpy(x)).numpy()
