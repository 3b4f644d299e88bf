"""Designing the explicit network that is equivalent to a DEQ."""

from notsodeep.matching.design import FAMILIES, choose, design
from notsodeep.matching.result import Design, Measured

__all__ = ["FAMILIES", "Design", "Measured", "choose", "design"]
