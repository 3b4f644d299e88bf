"""Networks as values, their scalars, and the statistics of the data that the theorems are written in."""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep.gaussian.dual import dual_map as dual_map
    from notsodeep.gaussian.moments import Moments as Moments, moments as moments
    from notsodeep.theory.scalars import Scalars as Scalars

__getattr__, __dir__, __all__ = lazy(__name__)
