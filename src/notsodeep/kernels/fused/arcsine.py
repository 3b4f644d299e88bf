"""arcsin for compiled loops: a polynomial and a root, so that a loop over it becomes vector instructions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import float32
from numba.extending import overload, register_jitable


def _series(terms: int, kind: type) -> tuple[Any, ...]:
    """P, highest power first, with arcsin y = y + y z P(z) and z = y² ≤ ¼: Chebyshev interpolation of the power series."""
    taylor = [math.comb(2 * k, k) / (4.0**k * (2 * k + 1)) for k in range(1, 40)]
    nodes = 0.125 * (1.0 + np.cos((np.arange(terms) + 0.5) * math.pi / terms))
    values = np.polynomial.polynomial.polyval(nodes, taylor)
    fitted = np.polynomial.Chebyshev.fit(nodes, values, terms - 1, domain=[0.0, 0.25])
    return tuple(kind(c) for c in fitted.convert(kind=np.polynomial.Polynomial).coef[::-1])


_S, _D = _series(6, np.float32), _series(13, float)


def _polynomial(z: Any) -> Any:
    raise NotImplementedError("compiled code only")


@overload(_polynomial, inline="always")
def _typed_polynomial(z: Any) -> Callable[[Any], Any]:
    # Spelt out term by term: a loop over the coefficients would keep the loop over values from being vectorised.
    def single(z: Any) -> Any:
        return ((((_S[0] * z + _S[1]) * z + _S[2]) * z + _S[3]) * z + _S[4]) * z + _S[5]

    def double(z: Any) -> Any:
        p = ((((_D[0] * z + _D[1]) * z + _D[2]) * z + _D[3]) * z + _D[4]) * z + _D[5]
        p = ((((p * z + _D[6]) * z + _D[7]) * z + _D[8]) * z + _D[9]) * z + _D[10]
        return (p * z + _D[11]) * z + _D[12]

    return single if z == float32 else double


@register_jitable
def arcsine(x: Any, half: Any, one: Any, right: Any) -> Any:
    """arcsin x for |x| < 1, to round-off; ½, 1 and π/2 come in the precision of x.

    Beyond ½ it is π/2 − 2 arcsin √((1 − |x|)/2), whose argument is exact.
    """
    size = abs(x)
    beyond = size > half
    z = half * (one - size) if beyond else size * size
    y = math.sqrt(z) if beyond else size
    angle = y + y * z * _polynomial(z)
    angle = right - (angle + angle) if beyond else angle
    return angle if x >= 0 else -angle
