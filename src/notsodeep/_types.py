"""The axis legend, and the two array types that the package accepts.

Axes, one letter each, the same in every docstring:

    n  samples (rows)        p  features            K  classes
    L  hidden layers         m  width of a layer    r  rank of a low-rank factor
    q  quadrature nodes      k  Hermite degree

Samples are rows: ``x`` is (n, p), the transpose of the papers' X.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array: TypeAlias = Tensor | npt.NDArray[np.floating[Any]]
"""What people pass in, and get back in kind."""
