"""The equilibrium of units that read one another, followed along x.

With the units S active, z_S = (I − W_SS)⁻¹ (u_S x + b_S) and z = 0 elsewhere. That S is the right one is a linear
complementarity problem: z ≥ 0, h = W z + u x + b ≤ 0 where z = 0. It has one solution for every x, b and u if and only if
I − W is a P-matrix: every principal minor is positive.

Ref: Cottle, Pang and Stone, The Linear Complementarity Problem (1992), theorem 3.3.7; Júdice and Pires (1994).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from notsodeep.errors import NotContractive
from notsodeep.separation.units import ROUND_OFF, Array, Units

Mask = np.ndarray[Any, np.dtype[np.bool_]]
_ROUNDS = 4  # two do, but where the sets on both sides differ much in what round-off leaves open
_PATIENCE = 5  # block steps that may bring no progress, before single ones


class EquilibriumPath:
    """The equilibrium right of one x after another, each search starting from the last active set."""

    def __init__(self, units: Units) -> None:
        self.units, self.x = units, np.nan
        self._moduli = np.abs(units.W)
        self._active = np.zeros(len(units.b), dtype=np.bool_)
        self._inverse: tuple[bytes, Array] | None = None
        self._require_pairs()

    def right_of(self, x: float) -> tuple[Array, Array, float]:
        """Slopes of the outputs, their round-off and the distance to the next breakpoint (see `Path`).

        Units whose value is 0 at x turn there, several perhaps: their slopes are a complementarity problem of their own.
        """
        A, v = self.units.A, self.units.v
        self.x = x
        for _ in range(_ROUNDS):
            before = self._active
            values, turning, slopes, slope_blur = self._turned(x)
            if np.array_equal(before, self._active):
                break  # what the set of the piece itself says of its values, not the one before, which may be less exact
        active = self._active
        # A unit that turns here moves away from 0, or stays.
        nearing = ~turning & (values * slopes < 0.0) & (np.abs(slopes) > slope_blur)
        ahead = float((-values[nearing] / slopes[nearing]).min(initial=np.inf))
        on, on_blur = np.where(active, slopes, 0.0), np.where(active, slope_blur, 0.0)
        size = np.abs(A) @ np.abs(on) + np.abs(v)
        return A @ on + v, ROUND_OFF * size + np.abs(A) @ on_blur, ahead

    def _turned(self, x: float) -> tuple[Array, Mask, Array, Array]:
        """The values at x, which units turn there, and the slopes right of it; the active set becomes the one right of x."""
        u, b = self.units.u, self.units.b
        everyone = np.ones(len(b), dtype=np.bool_)
        active, values, blur = self._settled(u * x + b, np.abs(u * x) + np.abs(b), self._active, everyone)
        turning = np.abs(values) <= blur
        self._active, slopes, slope_blur = self._settled(u, np.abs(u), active, turning)
        return values, turning, slopes, slope_blur

    def _settled(self, q: Array, size: Array, active: Mask, free: Mask) -> tuple[Mask, Array, Array]:
        """The active set S for which no `free` unit contradicts z = relu(W z + q), its values and their round-off.

        Block principal pivoting: every unit that contradicts S changes sides, and where that does not help, the first one alone
        (Murty's rule, which ends for any P-matrix and any q).
        """
        fewest, patience = len(q) + 1, _PATIENCE
        seen: set[bytes] = set()
        while True:
            values, blur = self._values(q, size, active)
            wrong = free & (np.where(active, -values, values) > blur)
            count = int(wrong.sum())
            if count == 0:
                return active, values, blur
            if count < fewest:
                fewest, patience = count, _PATIENCE
                seen.clear()
            elif patience > 0:
                patience -= 1
            else:
                if active.tobytes() in seen:
                    raise self._refusal(np.nan, active)
                seen.add(active.tobytes())
                wrong &= np.cumsum(wrong) == 1
            active = active ^ wrong

    def _values(self, q: Array, size: Array, active: Mask) -> tuple[Array, Array]:
        """z_S = (I − W_SS)⁻¹ q_S on S, h = W z + q elsewhere, and what round-off leaves open of each; |q| ≤ `size`."""
        inverse = self._inverse_of(active)
        z, z_blur = np.zeros_like(q), np.zeros_like(q)
        z[active] = inverse @ q[active]
        terms = self._moduli @ np.abs(z) + size
        z_blur[active] = np.abs(inverse) @ (terms + np.abs(z))[active]
        values = np.where(active, z, self.units.W @ z + q)
        return values, ROUND_OFF * np.where(active, z_blur, terms + self._moduli @ z_blur)

    def _inverse_of(self, active: Mask) -> Array:
        """(I − W_SS)⁻¹, kept for the next question about the same S."""
        key = active.tobytes()
        if self._inverse is None or self._inverse[0] != key:
            inner = np.eye(int(active.sum())) - self.units.W[np.ix_(active, active)]
            sign, log = np.linalg.slogdet(inner)
            if not sign > 0.0:
                raise self._refusal(sign * np.exp(min(log, 700.0)), active)
            inverse: Array = np.asarray(np.linalg.inv(inner), dtype=np.float64)
            self._inverse = key, inverse
        return self._inverse[1]

    def _require_pairs(self) -> None:
        """The minors of one unit and of two, of which no walk is needed to see that two equilibria exist for some input."""
        W = self.units.W
        own = 1.0 - np.diag(W)
        minors = np.outer(own, own) - W * W.T
        np.fill_diagonal(minors, own)
        if minors.size and not minors.min() > 0.0:
            i, j = np.unravel_index(minors.argmin(), minors.shape)
            active = np.zeros(len(own), dtype=np.bool_)
            active[[i, j]] = True
            raise self._refusal(minors[i, j], active)

    def _refusal(self, minor: float, active: Mask) -> NotContractive:
        which = np.flatnonzero(active).tolist()
        norm = float(np.linalg.norm(self.units.W, 2))
        where = "for every x" if np.isnan(self.x) else f"near x = {self.x:.6g}"
        what = "no set of active units fits, from" if np.isnan(minor) else f"det(I − W) = {minor:.3g} ≤ 0 for the"
        some = ", ".join(map(str, which[:8])) + ", …" * (len(which) > 8)
        return NotContractive(
            f"The equilibrium is not unique {where}, or does not exist: {what} units {some}. Pieces are counted where I − W is "
            f"a P-matrix, as it is for ‖W‖₂ < 1; here ‖W‖₂ = {norm:.3g}. Scale W down, or keep its norm below 1 while it is "
            "trained.",
            left=float(minor),
            right=0.0,
            x=self.x,
            units=which,
            norm=norm,
        )
