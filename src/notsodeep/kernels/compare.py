"""The gap between two kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from notsodeep.arrays import Array, real
from notsodeep.errors import BadInput
from notsodeep.linalg.eigen import extreme_eigenvectors, is_symmetric, spectral_norm
from notsodeep.linalg.operators import SymmetricOperator

Matrix = Array | SymmetricOperator
_LARGEST = 1e140
_SAME = 1e-14
_MOST_STEPS, _AGREE = 20, 1e-4


def relative_gap(reference: Matrix, other: Matrix) -> float:
    """The relative gap ‖A − B‖/‖A‖ in operator norm.

    Args:
        reference: A, an array (n, n2) or an operator such as `LowRankPlusDiagonal`.
        other: B, of the same shape.

    Returns:
        The gap, a number ≥ 0.

    Raises:
        BadInput: Shapes that differ, entries that are not finite, or A = 0.
    """
    a, b = _dense_pair(reference, other)
    norm = spectral_norm(a)
    if norm == 0.0:
        raise BadInput("The reference kernel is zero, so no gap is relative to it.")
    return spectral_norm(a - b) / norm


def best_scaled_gap(reference: Matrix, other: Matrix) -> tuple[float, float]:
    """The gap that is left by the best scalar factor, min over c of ‖A − cB‖/‖A‖, and that c.

    Args:
        reference, other: A and B, as for `relative_gap`.

    Returns:
        (gap, c).

    Raises:
        BadInput: Shapes that differ, entries that are not finite, or a kernel that is zero.
    """
    a, b = _dense_pair(reference, other)
    if not (bool(a.any()) and bool(b.any())):
        raise BadInput("One of the kernels is zero, so no factor takes one to the other.")
    middle = float((a * b).sum() / b.square().sum())
    norm = spectral_norm(a)
    gap = spectral_norm(a - middle * b) / norm
    # The norm is convex in c, and ‖A − cB‖ ≤ ‖A − mB‖ keeps |c − m| ‖B‖ below twice that.
    reach = 2.0 * gap * norm / spectral_norm(b)
    if reach <= _SAME * abs(middle):
        return gap, middle
    within = (middle - reach, middle + reach)
    if not is_symmetric(a) or not is_symmetric(b):
        found = _least(lambda c: spectral_norm(a - c * b) / norm, within)
    else:
        found = _least_symmetric(a / norm, b / norm, middle, within)
    return found if found[0] < gap else (gap, middle)


def _least(norm_at: Callable[[float], float], within: tuple[float, float]) -> tuple[float, float]:
    """The minimum of a convex function of one number, and where it is."""
    accuracy = 5e-4 * (within[1] - within[0])
    found = minimize_scalar(norm_at, bounds=within, method="bounded", options={"xatol": accuracy})
    return float(found.fun), float(found.x)


def _least_symmetric(a: Tensor, b: Tensor, start: float, within: tuple[float, float]) -> tuple[float, float]:
    """min over c of ‖A − cB‖ for symmetric A and B, and that c.

    On a subspace the norm is never larger: its minimum on the span of the extreme eigenvectors met so far is a lower bound, and
    where it lies is where the next ones are taken, until both agree.
    """
    basis = extreme_eigenvectors(a - start * b)
    least, best = math.inf, start
    for _ in range(_MOST_STEPS):
        span = torch.linalg.qr(basis).Q
        small_a, small_b = ((span.T @ (part @ span)).cpu().numpy() for part in (a, b))
        bound, factor = _least(partial(_norm_at, small_a, small_b), within)
        ends = extreme_eigenvectors(a - factor * b)
        reached = spectral_norm(ends.T @ ((a - factor * b) @ ends))
        if reached < least:
            least, best = reached, factor
        if least - bound <= _AGREE * least:
            break
        basis = torch.cat([span, ends], dim=1)
    return least, best


def _norm_at(a: np.ndarray, b: np.ndarray, c: float) -> float:
    return float(np.linalg.norm(a - c * b, 2))


def _dense_pair(reference: Matrix, other: Matrix) -> tuple[Tensor, Tensor]:
    a, b = _dense(reference, "The reference kernel"), _dense(other, "The other kernel")
    if a.shape != b.shape:
        raise BadInput(f"The kernels have shapes {tuple(a.shape)} and {tuple(b.shape)}; they must agree.")
    return a, b.to(a.device)


def _dense(kernel: Matrix, name: str) -> Tensor:
    if isinstance(kernel, SymmetricOperator):
        kernel = kernel.to_dense()
    dense = real(kernel, name, (None, None), torch.float64)
    if dense.numel() == 0:
        raise BadInput(f"{name} is empty: shape {tuple(dense.shape)}.")
    largest = float(dense.abs().max())
    if largest and not 1.0 / _LARGEST <= largest <= _LARGEST:
        raise BadInput(
            f"The largest entry of {name[0].lower()}{name[1:]} is {largest:.1e}; beyond {_LARGEST:.0e} (or all below "
            f"{1.0 / _LARGEST:.0e}) its square leaves the range of float64. Divide both kernels by one number."
        )
    return dense
