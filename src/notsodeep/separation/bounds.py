"""What the theorems of [wu2024] allow."""

from __future__ import annotations

import math

from notsodeep.errors import BadInput
from notsodeep.models.checks import count


def max_pieces_deq(width: int) -> int:
    """2^m: the most linear pieces on a line of a ReLU DEQ of m units; `sawtooth_deq` has as many.

    Ref: [wu2024], expressivity.
    """
    return 1 << count(width, "width")


def max_pieces_fnn(depth: int, width: int, activation_pieces: int = 2) -> int:
    """(p k)^(L − 1): the most linear pieces on a line of a feed-forward network of depth L (L − 1 hidden layers), width k, and
    an activation of p pieces.

    Ref: [wu2024], expressivity.
    """
    each = count(activation_pieces, "activation_pieces") * count(width, "width")
    return math.prod([each] * (count(depth, "depth") - 1))


def min_weight_fnn(dimension: int, depth: int) -> float:
    """2^(d/2C): a feed-forward network of depth ≤ C and width ≤ 2^(d/2C) that is within 1/16 of the steep function of dimension
    d has some weight of at least this modulus.

    Ref: [wu2024], steep functions.
    """
    return float(2.0 ** (count(dimension, "dimension") / (2 * count(depth, "depth"))))


def steep_deq_size(error: float) -> tuple[int, float]:
    """(5/ε, 2/ε): a DEQ of at most this width, with weights of at most this modulus, is within ε of the steep function,
    whatever its dimension.

    Ref: [wu2024], steep functions.
    """
    if not 0.0 < error <= 1.0:
        raise BadInput(f"The error must be in (0, 1], got {error!r}.")
    return int(5.0 / error), 2.0 / error
