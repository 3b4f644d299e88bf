"""The number of linear pieces of a ReLU network on a line, found breakpoint by breakpoint, not on a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from notsodeep.activations import activation
from notsodeep.arguments import number
from notsodeep.errors import BadInput, NotContractive
from notsodeep.models.enn import ENN
from notsodeep.models.relu_deq import ReluDEQ

Array = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

ROUND_OFF = 64.0 * float(np.finfo(np.float64).eps)
"""A sum smaller than this times the sum of its terms' moduli counts as 0."""
_ROUNDS = 4  # two suffice, unless the sets on both sides of a breakpoint differ much in their round-off
_PATIENCE = 5  # block steps without progress before single ones


def count_pieces(module: nn.Module, low: float, high: float) -> int:
    """The number of linear pieces on [low, high] of a network of one input; neighbouring pieces differ in slope.

    Each unit is an affine function of x until some unit turns on or off; the nearest zero of a unit is the next breakpoint.
    Where W is not strictly lower triangular the equilibrium must be unique, that is, I − W must be a P-matrix (‖W‖₂ < 1
    suffices). Its minors of one and of two units are checked, and those of every active set on the way.

    Args:
        module: a `ReluDEQ`, a ReLU `ENN`, or a Sequential of Linear, ReLU, …, Linear.
        low: the left end of the interval.
        high: the right end.

    Returns:
        The number of pieces.

    Raises:
        BadInput: the interval is empty, or the module is another one, has more than one input, or weights that are not finite.
        NotContractive: a minor of I − W is not positive.
    """
    low, high = number(low, "low"), number(high, "high")
    if not high > low:
        raise BadInput(f"The interval [{low!r}, {high!r}] is empty or endless; low must lie below high, both finite.")
    units = Units.of(module)
    return _different(OrderedUnits(units) if units.in_order else EquilibriumPath(units), low, high)


def _different(path: Path, low: float, high: float) -> int:
    """The number of pieces whose slope differs from that of the piece before."""
    pieces = 0
    before: Array = np.array([np.inf])
    blur_before: Array = np.zeros(1)
    for slope, blur in _slopes(path, low, high):
        if (np.abs(slope - before) > np.maximum(blur, blur_before)).any():
            pieces += 1
        before, blur_before = slope, blur
    return pieces


def _slopes(path: Path, low: float, high: float) -> Iterator[tuple[Array, Array]]:
    """The slopes of the outputs between one breakpoint and the next, and their round-off."""
    x, end = low, high - ROUND_OFF * max(abs(low), abs(high))
    while x < end or x == low:
        slope, blur, ahead = path.right_of(x)
        yield slope, blur
        # A breakpoint nearer than the spacing of numbers at x would be found again and again.
        x = max(x + ahead, math.nextafter(x, math.inf))


@dataclass(frozen=True, eq=False)
class Units:
    """z = relu(W z + u x + b), and outputs A z + v x, up to a constant."""

    W: Array
    u: Array
    b: Array
    A: Array
    v: Array

    def __post_init__(self) -> None:
        if not all(np.isfinite(weight).all() for weight in (self.W, self.u, self.b, self.A, self.v)):
            raise BadInput("The weights hold NaN or infinity: there are no pieces to count. Did the training diverge?")

    @property
    def in_order(self) -> bool:
        """Whether each unit reads earlier ones only."""
        return np.array_equal(self.W, np.tril(self.W, -1))

    @classmethod
    def of(cls, module: nn.Module) -> Units:
        """The units of a `ReluDEQ`, a ReLU `ENN` or a Sequential of Linear, ReLU, …, Linear."""
        if isinstance(module, ReluDEQ):
            _check_one_input(module.in_features)
            W, U, b, A = (_array(weight) for weight in (module.W, module.U, module.b, module.A))
            return cls(W, U[:, 0], b, A, np.zeros(len(A)) if module.V is None else _array(module.V)[:, 0])
        return _stacked(_layers(module))


def _layers(module: nn.Module) -> list[tuple[Array, Array]]:
    """Weight and bias of each layer, the last one linear."""
    if isinstance(module, ENN):
        last = module.readout.weight
        if any(layer != activation("relu") for layer in module.net.layers) or last is None:
            raise BadInput("Pieces are counted for ReLU networks with a readout; this ENN has other activations, or none.")
        biases = [None] * len(module.weights) if module.biases is None else list(module.biases)
        layers = []
        for weight, bias in zip(module.weights, biases, strict=True):
            scale = 1.0 / np.sqrt(len(weight))  # relu(h)/√m = relu(h/√m)
            layers.append((scale * _array(weight), scale * _bias(bias, len(weight))))
        return [*layers, (_array(last), _bias(module.readout.bias, len(last)))]
    if isinstance(module, nn.Sequential):
        kinds = [type(part) for part in module]
        if kinds == [nn.Linear, nn.ReLU] * (len(kinds) // 2) + [nn.Linear]:
            linear = [part for part in module if isinstance(part, nn.Linear)]
            return [(_array(part.weight), _bias(part.bias, part.out_features)) for part in linear]
    raise BadInput(
        f"Pieces are counted for a ReluDEQ, a ReLU ENN or a Sequential of Linear, ReLU, …, Linear; got {type(module).__name__}."
    )


def _stacked(layers: list[tuple[Array, Array]]) -> Units:
    """The units of all layers: W is block lower triangular, and the first block alone reads the input."""
    _check_one_input(layers[0][0].shape[1])
    widths = [len(weight) for weight, _ in layers[:-1]]
    total, starts = sum(widths), np.cumsum([0, *widths])
    W, u = np.zeros((total, total)), np.zeros(total)
    u[: widths[0] if widths else 0] = layers[0][0][:, 0] if widths else 0.0
    for block in range(1, len(widths)):
        W[starts[block] : starts[block + 1], starts[block - 1] : starts[block]] = layers[block][0]
    b = np.concatenate([bias for _, bias in layers[:-1]]) if widths else np.zeros(0)
    last = layers[-1][0]
    A = np.zeros((len(last), total))
    if widths:
        A[:, starts[-2] :] = last
    return Units(W, u, b, A, last[:, 0] if not widths else np.zeros(len(last)))


def _array(weight: Tensor) -> Array:
    return weight.detach().double().cpu().numpy()


def _bias(bias: Tensor | None, length: int) -> Array:
    return np.zeros(length) if bias is None else _array(bias)


def _check_one_input(inputs: int) -> None:
    if inputs != 1:
        raise BadInput(f"Pieces are counted along a line, for a network of one input; this one has {inputs}.")


class OrderedUnits:
    """s_t = relu(w_tᵀ s + u_t x + b_t) with w_t reading earlier units only: affine in x until one of those turns on or off."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self._both = np.stack([units.W, np.abs(units.W)], axis=1)

    def right_of(self, x: float) -> tuple[Array, Array, float]:
        """Slopes of the outputs just right of x, their round-off, and the distance to the next breakpoint."""
        u, b, A, v = self.units.u, self.units.b, self.units.A, self.units.v
        state = np.zeros((len(b), 2))  # a unit's value and its slope
        drives, sizes = (u * x + b).tolist(), (np.abs(u * x) + np.abs(b)).tolist()
        ahead = math.inf
        for t, (drive, size) in enumerate(zip(drives, sizes, strict=True)):
            # Values of active units are not negative: |W| times values is the sum of the moduli.
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


class EquilibriumPath:
    """The equilibrium right of one x after another, each search starting from the last active set."""

    def __init__(self, units: Units) -> None:
        self.units, self.x = units, np.nan
        self._moduli = np.abs(units.W)
        self._active = np.zeros(len(units.b), dtype=np.bool_)
        self._inverse: tuple[bytes, Array] | None = None
        self._check_pairs()

    def right_of(self, x: float) -> tuple[Array, Array, float]:
        """Slopes of the outputs just right of x, their round-off, and the distance to the next breakpoint.

        Several units may have the value 0 at x and turn there: their slopes are a complementarity problem of their own.
        """
        A, v = self.units.A, self.units.v
        self.x = x
        for _ in range(_ROUNDS):
            before = self._active
            values, turning, slopes, slope_blur = self._turned(x)
            if np.array_equal(before, self._active):
                break  # the values are those of the piece's own set; the set before it may be less exact
        active = self._active
        # A unit that turns here moves away from 0, or stays.
        nearing = ~turning & (values * slopes < 0.0) & (np.abs(slopes) > slope_blur)
        ahead = float((-values[nearing] / slopes[nearing]).min(initial=np.inf))
        on, on_blur = np.where(active, slopes, 0.0), np.where(active, slope_blur, 0.0)
        size = np.abs(A) @ np.abs(on) + np.abs(v)
        return A @ on + v, ROUND_OFF * size + np.abs(A) @ on_blur, ahead

    def _turned(self, x: float) -> tuple[Array, Mask, Array, Array]:
        """The values at x, the units that turn there, and the slopes right of x; the active set becomes the one right of x."""
        u, b = self.units.u, self.units.b
        everyone = np.ones(len(b), dtype=np.bool_)
        active, values, blur = self._settled(u * x + b, np.abs(u * x) + np.abs(b), self._active, everyone)
        turning = np.abs(values) <= blur
        self._active, slopes, slope_blur = self._settled(u, np.abs(u), active, turning)
        return values, turning, slopes, slope_blur

    def _settled(self, q: Array, size: Array, active: Mask, free: Mask) -> tuple[Mask, Array, Array]:
        """The active set S for which no `free` unit contradicts z = relu(W z + q), its values and their round-off.

        Block principal pivoting: every unit that contradicts S changes sides; where that does not help, only the first one
        does (Murty's rule, which ends for any P-matrix and any q).
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
                    raise self._not_unique(np.nan, active)
                seen.add(active.tobytes())
                wrong &= np.cumsum(wrong) == 1
            active = active ^ wrong

    def _values(self, q: Array, size: Array, active: Mask) -> tuple[Array, Array]:
        """z_S = (I − W_SS)⁻¹ q_S on S, h = W z + q elsewhere, and the round-off of each; |q| ≤ `size`."""
        inverse = self._inverse_of(active)
        z, z_blur = np.zeros_like(q), np.zeros_like(q)
        z[active] = inverse @ q[active]
        terms = self._moduli @ np.abs(z) + size
        z_blur[active] = np.abs(inverse) @ (terms + np.abs(z))[active]
        values = np.where(active, z, self.units.W @ z + q)
        return values, ROUND_OFF * np.where(active, z_blur, terms + self._moduli @ z_blur)

    def _inverse_of(self, active: Mask) -> Array:
        """(I − W_SS)⁻¹, kept for the next call with the same S."""
        key = active.tobytes()
        if self._inverse is None or self._inverse[0] != key:
            inner = np.eye(int(active.sum())) - self.units.W[np.ix_(active, active)]
            sign, log = np.linalg.slogdet(inner)
            if not sign > 0.0:
                raise self._not_unique(sign * np.exp(min(log, 700.0)), active)
            inverse: Array = np.asarray(np.linalg.inv(inner), dtype=np.float64)
            self._inverse = key, inverse
        return self._inverse[1]

    def _check_pairs(self) -> None:
        """Raise NotContractive where a minor of one or two units is not positive: some input then has two equilibria."""
        W = self.units.W
        own = 1.0 - np.diag(W)
        minors = np.outer(own, own) - W * W.T
        np.fill_diagonal(minors, own)
        if minors.size and not minors.min() > 0.0:
            i, j = np.unravel_index(minors.argmin(), minors.shape)
            active = np.zeros(len(own), dtype=np.bool_)
            active[[i, j]] = True
            raise self._not_unique(minors[i, j], active)

    def _not_unique(self, minor: float, active: Mask) -> NotContractive:
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


Path = OrderedUnits | EquilibriumPath
"""The outputs of a network along x, one piece at a time."""
