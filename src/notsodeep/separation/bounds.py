"""Bounds on linear pieces, weights and sizes of networks. Ref: [wu2024]."""

from __future__ import annotations

import math
from collections.abc import Sequence

from notsodeep.arguments import count, counts, not_negative, number, shown
from notsodeep.errors import BadInput

_MOST = 2**20  # bits of a number of pieces
_LARGEST_EXPONENT = 1000
_SMALLEST_ERROR = 1e-300


def max_pieces_deq(width: int) -> int:
    """2^m, the most linear pieces on a line of a ReLU DEQ of m units; `sawtooth_deq` has as many.

    Ref: [wu2024], expressivity.

    Args:
        width: m, the number of units.

    Returns:
        The number of pieces, exactly.

    Raises:
        BadInput: `width` is not a whole number from 1 to 2^20.
    """
    return 1 << count(width, "width", most=_MOST)


def max_pieces_fnn(depth: int, width: int, activation_pieces: int = 2) -> int:
    """(p k)^(L − 1), the most linear pieces on a line of a feed-forward network.

    Ref: [wu2024], expressivity.

    Args:
        depth: L; the network has L − 1 hidden layers.
        width: k, the units of each hidden layer.
        activation_pieces: p, the linear pieces of the activation; 2 for ReLU.

    Returns:
        The number of pieces, exactly.

    Raises:
        BadInput: an argument is not a whole number from 1 on.
    """
    each = count(activation_pieces, "activation_pieces") * count(width, "width")
    power: int = each ** (count(depth, "depth", most=_MOST) - 1)
    return power


def min_weight_fnn(dimension: int, depth: int) -> float:
    """2^(d/2C): a feed-forward network of depth ≤ C and width ≤ 2^(d/2C) that is within 1/16 of the steep function of dimension
    d has some weight of at least this modulus.

    Ref: [wu2024], steep functions.

    Args:
        dimension: d of the steep function.
        depth: C, the largest depth.

    Returns:
        The bound.

    Raises:
        BadInput: an argument is not a whole number from 1 on, or the bound exceeds double precision.
    """
    exponent = count(dimension, "dimension") / (2 * count(depth, "depth"))
    if exponent > _LARGEST_EXPONENT:
        raise BadInput(f"2^(d/2C) = 2^{exponent:.4g} exceeds double precision; take a smaller dimension.")
    return float(2.0**exponent)


def min_weight_steep_fnn(dimension: int, widths: Sequence[int], loss: float) -> float:
    """(Λ 2^d/∏ widths)^(1/(H + 1)), Λ = (1 + δ)(9 ln 2 − 6) − √(24 loss), or 0 where Λ < 0: a ReLU network of H hidden
    layers of these widths, whose mean squared error over the law of `Steep.sample` is at most `loss`, has a weight of at
    least this modulus.

    With weights of at most B each of the ∏ widths paths from x_1 has a slope of at most B^(H + 1), so that f has, along s
    with x_1 = 1 − δs, |f'| ≤ L = δ ∏ widths B^(H + 1). Half of the samples have s ~ U(0, 1); with w = ½ − s, ‖w‖² = 1/12,
    √(2 loss)‖w‖ ≥ E w(g − f) = E wg + ∫ f' s(1 − s)/2 ds ≥ E wg − L/12, and E wg = (1 + δ)(3 ln 2 − 2)/4: so L ≥ Λ.
    Step by step: docs/separation.md.

    Args:
        dimension: d of the steep function; δ = 2^(−d).
        widths: the units of each hidden layer.
        loss: a bound on the mean squared error.

    Returns:
        The bound.

    Raises:
        BadInput: `dimension` or a width is not a whole number from 1 on, or `loss` is negative.
    """
    loss = not_negative(loss, "loss", ", a mean of squares")
    shape = counts(widths, "widths")
    steepness = 2.0 ** count(dimension, "dimension", most=_LARGEST_EXPONENT)
    lipschitz = (1.0 + 1.0 / steepness) * (9.0 * math.log(2.0) - 6.0) - math.sqrt(24.0 * loss)
    return float((max(lipschitz, 0.0) * steepness / math.prod(shape)) ** (1.0 / (len(shape) + 1)))


def steep_deq_size(error: float) -> tuple[int, float]:
    """(5/ε, 2/ε): a DEQ of at most this width and with weights of at most this modulus is within ε of any steep function.

    Ref: [wu2024], steep functions.

    Args:
        error: ε, in (0, 1].

    Returns:
        The width, rounded down, and the bound on the weights.

    Raises:
        BadInput: `error` is not in (0, 1].
    """
    if not _SMALLEST_ERROR <= number(error, "error") <= 1.0:
        raise BadInput(f"The error must be in (0, 1], and not below {_SMALLEST_ERROR:g}, got {shown(error)}.")
    return int(5.0 / error), 2.0 / error
