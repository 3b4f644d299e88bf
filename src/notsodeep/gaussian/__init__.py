"""Gaussian calculus of activations: moments, Hermite coefficients, dual maps."""

from notsodeep.gaussian.dual import Rows, dual, dual_map, rows
from notsodeep.gaussian.hermite import hermite_coefficients
from notsodeep.gaussian.moments import Moments, moments

__all__ = ["Moments", "Rows", "dual", "dual_map", "hermite_coefficients", "moments", "rows"]
