"""Layers that are sums of stretched activations, as functions of their weights and stretches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import least_squares, nnls
from torch import Tensor

from notsodeep.activations import Activation, Rectifier
from notsodeep.activations.combination import combined, stretched
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Kernel
from notsodeep.matching.pairs import Pairs
from notsodeep.matching.series import Line, Series, entries, slopes
from notsodeep.theory.architecture import Explicit
from notsodeep.tolerances import CONSTANT_RTOL

LINE = Rectifier(1.0, 1.0)
_STRETCHES, _SPREAD = (0.2, 5.0), (0.5, 2.0)  # the second: how far a layer's deviations may go beyond its inputs' norms
_LARGEST = 8.0  # weight: layers of larger ones cancel
_MOST_STEPS, _SETTLED = 100, 1e-7
_SMOOTH_TERMS, _KINKED_TERMS = 32, 64
TANGENT_WEIGHT = 0.25  # of a tangent kernel's error beside that of the conjugate one, which is smaller by its nature


@dataclass(frozen=True, eq=False)
class Atom:
    """An activation ψ that a layer may hold, as weight·ψ(stretch·x)."""

    phi: Activation
    series: Series | Line
    free: bool
    """Whether the stretch is free; 1 otherwise"""


def atoms(phis: Sequence[Activation], pairs: Pairs, free: bool = False) -> tuple[Atom, ...]:
    """Atoms for the deviations of these pairs, with free stretches on request; of a homogeneous ψ it is never free."""
    low, high = (float(end) * slack for end, slack in zip(pairs.norms.aminmax(), _STRETCHES if free else _SPREAD, strict=True))
    terms = _KINKED_TERMS if any(phi.kinks for phi in phis if not is_line(phi)) else _SMOOTH_TERMS
    found = tuple(
        Atom(phi, Line(terms), False)
        if is_line(phi)
        else Atom(phi, Series(phi, low, high, terms), free and not isinstance(phi, Rectifier))
        for phi in phis
    )
    for one in found:
        mean, *power = one.series(pairs.taus[-1:])[0, :-1].square().tolist()
        if sum(power) <= CONSTANT_RTOL * mean:
            raise BadInput(f"{one.phi} is constant on the data, so it cannot stand in a dictionary.")
    return found


def is_line(phi: Activation) -> bool:
    """Whether φ is x."""
    return phi == LINE


@dataclass(frozen=True, eq=False)
class Layers:
    """Networks of `depth` layers σ_l = Σ_k w_lk ψ_k(b_lk x), each centred at its deviation of τ0; all but the last keep τ0.

    Their unknowns are, layer by layer, the weights w_l and the logarithms of the free stretches.
    """

    parts: tuple[Atom, ...]
    depth: int
    pairs: Pairs

    def start(self, *layers: Sequence[float]) -> np.ndarray:
        """Unknowns of layers with these weights, unstretched."""
        free = [0.0] * sum(part.free for part in self.parts)
        return np.array([number for weights in layers for number in (*weights, *free)])

    def fit(self, start: np.ndarray, steps: int = _MOST_STEPS) -> tuple[np.ndarray, float]:
        """The unknowns nearest to the pairs' kernels, by least squares from a start, and their error."""
        edges = [_LARGEST] * len(self.parts) + [math.log(_STRETCHES[1])] * sum(part.free for part in self.parts)
        bounds = np.array(edges * self.depth)
        start = np.clip(start, -0.99 * bounds, 0.99 * bounds)
        found = least_squares(
            self.errors, start, bounds=(-bounds, bounds), x_scale="jac", max_nfev=steps, xtol=1e-12, ftol=_SETTLED
        )
        return found.x, math.sqrt(2.0 * found.cost)

    def errors(self, unknowns: np.ndarray) -> np.ndarray:
        """The weighted differences of the network's kernels from the pairs' ones, of the tangent kernel with the best gains.

        As Θ = Σ_l g_l² Θ_l, these are its non-negative least squares.
        """
        conjugate, parts = self._kernels(unknowns, tangent=Kernel.TANGENT in self.pairs.targets)
        found = []
        for kernel, target in self.pairs.targets.items():
            weights = self.pairs.weights[kernel]
            if kernel == Kernel.CONJUGATE:
                found.append((conjugate * weights - target).numpy())
            else:
                columns = torch.stack([part * weights for part in parts], dim=1).numpy()
                if not np.isfinite(columns).all():
                    raise BadInput(
                        "An activation of the dictionary jumps or is too steep to have a tangent kernel; leave it out."
                    )
                squares, _ = nnls(columns, target.numpy())
                found.append((columns @ squares - target.numpy()) * (TANGENT_WEIGHT if len(self.pairs.targets) > 1 else 1.0))
        return np.concatenate(found)

    def _kernels(self, unknowns: np.ndarray, tangent: bool) -> tuple[Tensor, list[Tensor]]:
        """The conjugate kernel at the pairs and on the diagonal, (N + n,), and the parts Θ_1 … Θ_{L+1} of the tangent one."""
        i, j, taus = self.pairs.first, self.pairs.second, self.pairs.taus
        kernel = torch.cat([self.pairs.rho * taus[i] * taus[j], taus[:-1].square()])
        parts: list[Tensor] = []
        for one in self._split(unknowns):
            columns = self._centred(one, taus)[0].T.contiguous()
            at = columns[:, i], columns[:, j], (kernel[: len(i)] / (taus[i] * taus[j])).clamp(-1.0, 1.0)
            if tangent:
                steep = slopes(columns, columns, 1.0)[:-1] / taus[:-1].square()
                slope = torch.cat([slopes(*at) / (taus[i] * taus[j]), steep])
                parts = [part * slope for part in (*parts, kernel)]
            power = columns[:-1].square().sum(0)
            kernel, taus = torch.cat([entries(*at), power[:-1]]), power.sqrt()
        return kernel, [*parts, kernel]

    def network(self, unknowns: np.ndarray) -> Explicit:
        """The network, centred."""
        taus, layers = self.pairs.taus[-1:], []
        for one in self._split(unknowns):
            numbers, gain = self._centred(one, taus)
            taus = numbers[:, :-1].square().sum(1).sqrt()
            weighted = zip(gain * one.weights, one.stretches, self.parts, strict=True)
            layers.append(combined((float(w), stretched(part.phi, float(b))) for w, b, part in weighted))
        return Explicit(layers).centred(self.pairs.tau0)

    def _split(self, unknowns: np.ndarray) -> list[_Layer]:
        layers = []
        free = np.array([part.free for part in self.parts])
        for number, one in enumerate(np.split(unknowns, self.depth)):
            stretches = np.ones(len(self.parts))
            stretches[free] = np.exp(one[len(self.parts) :])
            layers.append(_Layer(one[: len(self.parts)], stretches, number + 1 == self.depth))
        return layers

    def _centred(self, layer: _Layer, taus: Tensor) -> tuple[Tensor, float]:
        """The numbers of `Series` of a layer at deviations whose last is that of τ0, and the gain with which it keeps τ0."""
        numbers = torch.zeros(())
        for weight, stretch, part in zip(layer.weights, layer.stretches, self.parts, strict=True):
            numbers = numbers + weight * part.series(stretch * taus)
        numbers[:, 0] -= numbers[-1, 0].clone()
        power = float(numbers[-1, :-1].square().sum().sqrt())
        gain = 1.0 if layer.last or power == 0.0 else self.pairs.tau0 / power
        return gain * numbers, gain


class _Layer(NamedTuple):
    """Of one layer."""

    weights: np.ndarray
    stretches: np.ndarray
    last: bool
