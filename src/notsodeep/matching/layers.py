"""Layers whose units are sums of stretched activations, as functions of their weights and stretches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import approx_fprime, least_squares, nnls
from torch import Tensor

from notsodeep.activations import Activation, Polynomial, Rectifier
from notsodeep.activations.combination import combined, stretched
from notsodeep.activations.mixed import units_of
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Kernel
from notsodeep.matching import tangents
from notsodeep.matching.pairs import Pairs
from notsodeep.matching.series import Line, Series, entries, products_at, slopes
from notsodeep.matching.solve import compare_scalars, matched_names
from notsodeep.theory.architecture import Explicit
from notsodeep.theory.scalars import Means, Scalars, after_layer, of_inputs, scalars
from notsodeep.tolerances import CONSTANT_RTOL, MATCH_RTOL

LINE = Rectifier(1.0, 1.0)
_STRETCHES, _SPREAD = (0.2, 5.0), (0.5, 2.0)  # the second: how far a layer's deviations may go beyond its inputs' norms
_LARGEST = 8.0  # weight: layers of larger ones cancel
_FIRST_STEPS, _MOST_STEPS, _SETTLED = 15, 40, 1e-7
# Measures of a step: by what it changes in the errors, which is nothing yet in some unknowns, and by itself.
_RELATIVE: float | str = "jac"
_PLAIN: float | str = 1.0
_PENALTY, _NEAR, _MOST_CORRECTIONS = 100.0, 1e-2, 8  # of a scalar's gap; beyond the second no correction is tried
_MOST_KEPT = 60  # series, and signals
_SMALL = 1e-5  # a step in log τ and in an unknown
_TERMS, _NEGLIGIBLE = (32, 64, 128, 256, 512), 1e-6  # of series: as many as leave so little, relative to an atom's kernel
TANGENT_WEIGHT = 0.25  # of a tangent kernel's error beside that of the conjugate one, which is smaller by its nature


@dataclass(frozen=True, eq=False)
class Atom:
    """An activation ψ that a layer may hold, as weight·ψ(stretch·x)."""

    phi: Activation
    series: Series | Line
    free: bool
    """Whether the stretch is free, about τ*/τ0; 1 otherwise"""


def atoms(phis: Sequence[Activation], pairs: Pairs, free: bool = False) -> tuple[Atom, ...]:
    """Atoms for the deviations of these pairs, with free stretches on request; of a homogeneous ψ it is never free."""
    ends = [pairs.stretch * slack for slack in _STRETCHES] if free else _SPREAD
    low, high = (float(end) * slack for end, slack in zip(pairs.norms.aminmax(), ends, strict=True))
    for terms in _TERMS:
        found = tuple(
            Atom(phi, Line(terms), False)
            if is_line(phi)
            else Atom(phi, Series(phi, low, high, terms), free and not _is_homogeneous(phi))
            for phi in phis
        )
        if are_exact(found, pairs):
            break
    for one in found:
        mean, *power = one.series(pairs.taus[-1:])[0, :-1].square().tolist()
        if sum(power) <= CONSTANT_RTOL * mean:
            raise BadInput(f"{one.phi} is constant on the data, so it cannot stand in a dictionary.")
    return found


def are_exact(parts: Sequence[Atom], pairs: Pairs) -> bool:
    """Whether the series of all atoms are long enough for the pairs: no longer ones are tried where samples point one way."""
    return all(_missed(one, pairs) <= _NEGLIGIBLE for one in parts)


def _missed(one: Atom, pairs: Pairs) -> float:
    """What the series may be off the atom's kernel, relative to that, in the norm in which fits are judged."""
    numbers = one.series((pairs.stretch if one.free else 1.0) * pairs.taus)
    i, j, rest = pairs.first, pairs.second, numbers[:, -2]
    powers = numbers[:-1, 1:-1].square().sum(1)
    off = rest[i] * rest[j] * pairs.rho.abs().pow(numbers.shape[1] - 2)
    weights = next(iter(pairs.weights.values()))
    return float(torch.linalg.vector_norm(off * weights[: len(i)]) / torch.linalg.vector_norm(powers * weights[len(i) :]))


def is_line(phi: Activation) -> bool:
    """Whether φ is x."""
    return phi == LINE


def _is_homogeneous(phi: Activation) -> bool:
    """Whether stretches of φ are its multiples: of rectifiers and powers of x."""
    return isinstance(phi, Rectifier) or (isinstance(phi, Polynomial) and np.count_nonzero(phi.coefficients) == 1)


@dataclass(frozen=True, eq=False)
class Layers:
    """Networks whose layer l has `kinds[l]` kinds of units σ_lq = Σ_k w_lqk ψ_k(b_lqk x), each centred at its deviation of τ0.

    All layers but the last keep τ0. The unknowns are, layer by layer and kind by kind, the weights w_lq and the logarithms of
    the free stretches, as multiples of τ*/τ0.
    """

    parts: tuple[Atom, ...]
    kinds: tuple[int, ...]
    pairs: Pairs
    kept: Scalars | None = None
    """Scalars of which the conjugate kernel's four are to be kept"""

    def start(self, *layers: np.ndarray) -> np.ndarray:
        """Unknowns of layers whose kinds have these weights, a row a kind, all stretched by τ*/τ0."""
        weights = np.concatenate(layers)
        free = np.zeros((len(weights), sum(part.free for part in self.parts)))
        return np.hstack([weights, free]).ravel()

    def fit(self, *starts: np.ndarray) -> tuple[np.ndarray, float]:
        """The unknowns nearest to the pairs' kernels, by least squares from the start that leads nearest in a few steps, and
        their error."""
        best, measure = starts[0], _RELATIVE
        if callable(self._slopes):  # by differences a step costs as much as one for each unknown
            begun = [(starts[0], _RELATIVE), *((start, _PLAIN) for start in starts)]
            tried = [(*self._descended(*each, _FIRST_STEPS), each[1]) for each in begun]
            best, _, measure = min(tried, key=itemgetter(1))
        best, error = self._descended(best, measure, _MOST_STEPS)
        return (best if self.kept is None else self._matched(best, self.kept)), error

    @property
    def _slopes(self) -> Callable[[np.ndarray], np.ndarray] | str:
        """Those of the errors; by differences where the tangent kernel's gains or scalars are among them."""
        return self.error_slopes if list(self.pairs.targets) == [Kernel.CONJUGATE] and self.kept is None else "2-point"

    def _descended(self, start: np.ndarray, measure: float | str, steps: int) -> tuple[np.ndarray, float]:
        """Where so many steps of least squares lead, and the error there; `measure` is that of a step in each unknown."""
        edges = [_LARGEST] * len(self.parts) + [math.log(_STRETCHES[1])] * sum(part.free for part in self.parts)
        bounds = np.array(edges * sum(self.kinds))
        found = least_squares(
            self.errors,
            np.clip(start, -0.99 * bounds, 0.99 * bounds),
            self._slopes,
            bounds=(-bounds, bounds),
            x_scale=measure,
            max_nfev=steps,
            xtol=1e-12,
            ftol=_SETTLED,
        )
        return found.x, math.sqrt(2.0 * found.cost)

    def _matched(self, unknowns: np.ndarray, kept: Scalars) -> np.ndarray:
        """The nearest unknowns with these scalars, by Gauss and Newton; the given ones where there are none near them."""
        best, least = unknowns, np.inf
        for _ in range(_MOST_CORRECTIONS):
            gaps = _gaps(kept, scalars(self.network(unknowns), self.pairs.tau0))
            if not (largest := np.abs(gaps).max()) < least:
                break
            best, least = unknowns, largest
            if least <= 0.1 * MATCH_RTOL or least > _NEAR:
                break
            steep = approx_fprime(unknowns, lambda u: _gaps(kept, self.scalars(u)), _SMALL)
            unknowns = unknowns - np.linalg.lstsq(steep, gaps, rcond=1e-9)[0]
        return best

    def errors(self, unknowns: np.ndarray) -> np.ndarray:
        """The weighted differences of the network's kernels from the pairs' ones, of the tangent kernel with the best gains.

        As Θ = Σ_l g_l² Θ_l, these are its non-negative least squares.
        """
        conjugate, parts = self.kernels(unknowns, tangent=Kernel.TANGENT in self.pairs.targets)
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
        if self.kept is not None:
            found.append(_PENALTY * _gaps(self.kept, self.scalars(unknowns)))
        return np.concatenate(found)

    def error_slopes(self, unknowns: np.ndarray) -> np.ndarray:
        """The slopes of the conjugate kernel's `errors` in the unknowns: (errors, unknowns)."""
        signal, free = tangents.of_inputs(self.pairs), [part.free for part in self.parts]
        for layer in self._split(unknowns):
            kinds = []
            for weights, stretches in zip(layer.weights, layer.stretches, strict=True):
                both = (part.series.with_slopes(signal.taus * b) for b, part in zip(stretches, self.parts, strict=True))
                numbers, in_tau = zip(*both, strict=True)
                kinds.append(tangents.kind(numbers, in_tau, weights, free))
            signal = tangents.through(kinds, signal, self.pairs, None if layer.last else self.pairs.tau0)
        return (signal.kernel_slopes * self.pairs.weights[Kernel.CONJUGATE]).T.numpy()

    def scalars(self, unknowns: np.ndarray) -> Scalars:
        """The scalars of the network, by its series."""
        reached = of_inputs(self.pairs.tau0)
        for layer in self._split(unknowns):
            tau = reached.gamma
            near = tau * torch.exp(torch.tensor([_SMALL, -_SMALL, 0.0], dtype=torch.float64))
            numbers = self._centred(layer, near)[0]
            above, below, gamma2 = numbers[:, :, :-1].square().sum((0, 2)).tolist()
            at = numbers[:, -1]
            q = slopes(at.square().sum(0)[:, None], 1.0) / tau**2
            s2 = (above - below) / (2.0 * _SMALL * tau**2)  # E[(σ²)''] = 2 dE[σ²]/dτ²
            slope2, bend2 = at[:, 1].square().sum() / tau**2, 2.0 * at[:, 2].square().sum() / tau**4
            reached = after_layer(reached, Means(float(slope2), float(bend2), s2, float(q), gamma2))
        return reached

    def kernels(self, unknowns: np.ndarray, tangent: bool) -> tuple[Tensor, list[Tensor]]:
        """The conjugate kernel at the pairs and on the diagonal, (N + n,), and the parts Θ_1 … Θ_{L+1} of the tangent one."""
        i, j, taus = self.pairs.first, self.pairs.second, self.pairs.taus
        signal = _Signal(torch.cat([self.pairs.rho * taus[i] * taus[j], taus[:-1].square()]), taus, [])
        for layer in self._split(unknowns):
            key = layer.weights.tobytes(), layer.stretches.tobytes(), tangent
            # A slope of the errors in the unknowns of the last layer needs the same signal below it again and again.
            if layer.last or key not in self._below:
                signal = self._through(layer, signal, tangent)
            if not layer.last:
                signal = self._below.setdefault(key, signal)
                self._forget(self._below)
        return signal.kernel, [*signal.parts, signal.kernel]

    def _through(self, layer: _Layer, below: _Signal, tangent: bool) -> _Signal:
        i, j, taus, kernel = self.pairs.first, self.pairs.second, below.taus, below.kernel
        numbers = self._centred(layer, taus)[0]
        products = _sum(products_at(i, j, one, one) for one in numbers)
        squares = numbers.square().sum(0).T
        rho = (kernel[: len(i)] / (taus[i] * taus[j])).clamp(-1.0, 1.0)
        parts = below.parts
        if tangent:
            steep = slopes(squares, 1.0)[:-1] / taus[:-1].square()
            slope = torch.cat([slopes(products, rho) / (taus[i] * taus[j]), steep])
            parts = [part * slope for part in (*parts, kernel)]
        power = squares[:-1].sum(0)
        return _Signal(torch.cat([entries(products, rho), power[:-1]]), power.sqrt(), parts)

    def network(self, unknowns: np.ndarray) -> Explicit:
        """The network, centred."""
        taus, layers = self.pairs.taus[-1:], []
        for layer in self._split(unknowns):
            numbers, gain = self._centred(layer, taus)
            taus = numbers[:, :, :-1].square().sum((0, 2)).sqrt()
            shared = gain * math.sqrt(len(layer.weights))  # a layer's kernel is the mean of those of its kinds
            kinds = (zip(shared * w, b, self.parts, strict=True) for w, b in zip(layer.weights, layer.stretches, strict=True))
            layers.append(
                units_of(combined((float(w), stretched(part.phi, float(b))) for w, b, part in kind) for kind in kinds)
            )
        return Explicit(layers).centred(self.pairs.tau0)

    def _split(self, unknowns: np.ndarray) -> list[_Layer]:
        free, count = np.array([part.free for part in self.parts]), len(self.parts)
        rows, layers = unknowns.reshape(sum(self.kinds), -1), []
        for number, of_layer in enumerate(np.split(rows, np.cumsum(self.kinds)[:-1])):
            stretches = np.ones((len(of_layer), count))
            stretches[:, free] = self.pairs.stretch * np.exp(of_layer[:, count:])
            layers.append(_Layer(of_layer[:, :count], stretches, number + 1 == len(self.kinds)))
        return layers

    def _centred(self, layer: _Layer, taus: Tensor) -> tuple[Tensor, float]:
        """The numbers of `Series` of a layer's kinds (kinds, n, K + 2) at deviations whose last is that of τ0, and the gain
        with which it keeps τ0."""
        sums = (
            _sum(self._series(part, b, taus) * w for w, b, part in zip(weights, stretches, self.parts, strict=True))
            for weights, stretches in zip(layer.weights, layer.stretches, strict=True)
        )
        numbers = torch.stack(list(sums))
        numbers[:, :, 0] -= numbers[:, -1:, 0].clone()
        power = float(numbers[:, -1, :-1].square().sum().sqrt())
        gain = 1.0 if layer.last or power == 0.0 else self.pairs.tau0 / power
        return gain * numbers, gain

    def _series(self, part: Atom, stretch: float, taus: Tensor) -> Tensor:
        """The numbers of ψ(b x), kept: a slope of the errors needs most of them again."""
        key = part.phi, stretch, id(taus)
        known = self._kept_series.get(key)
        if known is None or known[0] is not taus:  # another tensor may have the name of one that is gone
            known = self._kept_series[key] = taus, part.series(taus * stretch)
            self._forget(self._kept_series)
        return known[1]

    @cached_property
    def _kept_series(self) -> dict[tuple[Activation, float, int], tuple[Tensor, Tensor]]:
        return {}

    @cached_property
    def _below(self) -> dict[tuple[bytes, bytes, bool], _Signal]:
        return {}

    @staticmethod
    def _forget(kept: dict[Any, Any]) -> None:
        """Keep the latest."""
        while len(kept) > _MOST_KEPT:
            del kept[next(iter(kept))]


class _Signal(NamedTuple):
    """What a layer hands on: the kernel at the pairs and on the diagonal, the deviations, the parts of the tangent kernel."""

    kernel: Tensor
    taus: Tensor
    parts: list[Tensor]


class _Layer(NamedTuple):
    """Of one layer, a row a kind."""

    weights: np.ndarray
    stretches: np.ndarray
    last: bool


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    """Their sum."""
    return reduce(torch.add, tensors)


def _gaps(kept: Scalars, reached: Scalars) -> np.ndarray:
    """The relative differences of the conjugate kernel's four scalars."""
    comparisons = compare_scalars(kept, reached, matched_names(Kernel.CONJUGATE))
    return np.array([(c.reached - c.target) / c.scale for c in comparisons])
