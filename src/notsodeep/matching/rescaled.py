"""The DEQ's own activation, rescaled: a family of explicit networks for any φ. Ref: docs/theory.md, section 7."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq

from notsodeep.activations import Activation, Rectifier
from notsodeep.activations.combination import combined, stretched
from notsodeep.activations.mixed import times
from notsodeep.gaussian.moments import moments_of
from notsodeep.kernels.names import Kernel
from notsodeep.matching.families import Family
from notsodeep.theory.architecture import Explicit
from notsodeep.theory.scalars import Scalars

_STRETCHES = np.geomspace(0.1, 10.0, 41)
_LARGEST_LOG = 3.0
_ROUNDING = 1e-12  # of a share
_LINE = Rectifier(1.0, 1.0)


@dataclass(frozen=True)
class RescaledFamily(Family):
    """One layer a φ(b x), or two layers a_l φ(b_l x) + c_l x; unknowns a, log b and, in two layers, c of each."""

    phi: Activation
    depth: int

    @property
    def label(self) -> str:
        return f"rescaled (depth {self.depth})"

    @property
    def starts(self) -> list[tuple[float, ...]]:
        if self.depth == 1:
            return [(1.0, 0.0)]
        own, mixed = (1.0, 0.0, 0.0), (0.3, 0.0, 0.7)
        return [(*own, *own), (*mixed, *own), (*own, *mixed)]

    def candidates(self, target: Scalars, kernel: Kernel | str) -> list[tuple[float, ...]]:
        """In one layer, those with the DEQ's γ and α1, or κ and β1: with e = E[φ'(bτ0 ξ)] and V = Var[φ(bτ0 ξ)], α1 = a²b²e²
        and γ² = a²V give b from b²e²/V, and β1 = 2a²b²e², κ² = a²(V + τ0²b²q) from b²e²/(V + τ0²b²q), q = E[φ'²]."""
        return [self._sized(b, target, kernel) for b in self._roots(target, kernel)] if self.depth == 1 else []

    def build(self, unknowns: tuple[float, ...], tau0: float) -> Explicit:
        layers, tau = [], tau0
        for start in range(0, len(unknowns), len(unknowns) // self.depth):
            a, log_b = unknowns[start : start + 2]
            stretch = math.exp(min(max(log_b, -_LARGEST_LOG), _LARGEST_LOG))
            pairs = [(a, stretched(self.phi, stretch))]
            if self.depth == 2:
                pairs.append((unknowns[start + 2], _LINE))
            layer = Explicit([combined(pairs)]).centred(tau)
            if start == 0 and self.depth == 2:  # the scale moves freely between the layers
                gain = tau0 / max(layer.deviations(tau)[-1], 1e-300)
                layer = Explicit([times(layer.layers[0], gain)])
            tau = layer.deviations(tau)[-1]
            layers.append(layer.layers[0])
        return Explicit(layers)

    def _roots(self, target: Scalars, kernel: Kernel | str) -> list[float]:
        """Stretches b with the DEQ's share of linear power."""
        conjugate = kernel == Kernel.CONJUGATE
        wanted = target.alpha1 / target.gamma**2 if conjugate else 0.5 * target.beta1 / target.kappa**2

        def excess(b: np.ndarray) -> np.ndarray:
            slope, power = self._powers(b, target.tau0, conjugate)
            return np.asarray(slope / power - wanted)

        found = excess(_STRETCHES)
        signs, known = np.sign(found), np.abs(found) > _ROUNDING / target.tau0**2
        if not known.any():  # an even φ has none, and needs none, whatever its stretch
            return [1.0]
        changes = np.flatnonzero((signs[:-1] != signs[1:]) & (known[:-1] | known[1:]))
        ends = ((_STRETCHES[k], _STRETCHES[k + 1]) for k in changes)
        return [float(brentq(lambda b: float(excess(np.array(b))), *both, xtol=1e-15, rtol=1e-14)) for both in ends]

    def _powers(self, b: np.ndarray, tau0: float, conjugate: bool) -> tuple[np.ndarray, np.ndarray]:
        """b²E[φ']² and the variance, with τ0²b²E[φ'²] for the tangent kernel, of φ(b x) at τ0, for each b."""
        at = moments_of(self.phi, torch.as_tensor(b) * tau0)
        power = at.variance.numpy() + (0.0 if conjugate else tau0**2 * b**2 * at.q.numpy())
        return b**2 * at.e1.numpy() ** 2, np.maximum(power, 1e-300)

    def _sized(self, b: float, target: Scalars, kernel: Kernel | str) -> tuple[float, float]:
        conjugate = kernel == Kernel.CONJUGATE
        _, power = self._powers(np.array(b), target.tau0, conjugate)
        return (target.gamma if conjugate else target.kappa) / math.sqrt(float(power)), math.log(b)
