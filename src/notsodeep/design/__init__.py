"""Designing the explicit network that is equivalent to a DEQ."""

from notsodeep.design.designer import FAMILIES, choose, design
from notsodeep.design.result import Design, Measured

__all__ = ["FAMILIES", "Design", "Measured", "choose", "design"]
