"""The path of units that read earlier ones only: each in its turn, exactly."""

from __future__ import annotations

import math

import numpy as np

from notsodeep.separation.units import ROUND_OFF, Array, Units


class OrderedUnits:
    """s_t = relu(w_tᵀ s + u_t x + b_t), w_t using earlier units only: affine in x as long as none before it turns on or off."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self._both = np.stack([units.W, np.abs(units.W)], axis=1)

    def right_of(self, x: float) -> tuple[Array, Array, float]:
        """Slopes of the outputs, their round-off and the distance to the next breakpoint (see `Path`)."""
        u, b, A, v = self.units.u, self.units.b, self.units.A, self.units.v
        state = np.zeros((len(b), 2))  # a unit's value and its slope
        drives, sizes = (u * x + b).tolist(), (np.abs(u * x) + np.abs(b)).tolist()
        ahead = math.inf
        for t, (drive, size) in enumerate(zip(drives, sizes, strict=True)):
            # No value of an active unit is negative: |W| times values is the sum of the moduli.
            (value, slope), (moduli, _) = (self._both[t, :, :t] @ state[:t]).tolist()
            value, slope = value + drive, slope + float(u[t])
            if abs(value) <= ROUND_OFF * (moduli + size):
                value = 0.0  # at a breakpoint: the slope decides
            elif value * slope < 0.0:
                ahead = min(ahead, -value / slope)
            if value > 0.0 or (value == 0.0 and slope > 0.0):
                state[t] = value, slope
        slopes = state[:, 1]
        return A @ slopes + v, ROUND_OFF * (np.abs(A) @ np.abs(slopes) + np.abs(v)), ahead
