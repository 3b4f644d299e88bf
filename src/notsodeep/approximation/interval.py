"""Student's interval, for the mean of a few numbers."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit  # scipy.stats takes most of a second to import

LEVEL = 0.95


def student(degrees: int) -> float:
    """t with P(|T| ≤ t) = 95 % for Student's T with this many degrees of freedom."""
    return float(stdtrit(degrees, 0.5 + LEVEL / 2.0))


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of two numbers or more."""
    n = len(values)
    return student(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
