"""How many linear pieces a ReLU network has on a line: its breakpoints one after another, not a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from notsodeep.activations import activation
from notsodeep.arguments import number
from notsodeep.errors import BadInput, NotContractive
from notsodeep.models.enn import ENN
from notsodeep.models.relu_deq import ReluDEQ

ROUND_OFF = 64.0 * float(np.finfo(np.float64).eps)
"""A sum smaller than this times the sum of its terms' moduli is taken for 0."""
_ROUNDS = 4  # two do, but where the sets on both sides differ much in what round-off leaves open
_PATIENCE = 5  # block steps that may bring no progress, before single ones


def count_pieces(module: nn.Module, low: float, high: float) -> int:
    """The number of linear pieces on [low, high] of a network of one input: neighbours differ in slope.

    `module` is a `ReluDEQ`, a ReLU `ENN`, or a Sequential of Linear and ReLU. Each of its units is an affine function of x as
    long as none turns on or off; the nearest zero of one is the next breakpoint.

    Where W is not strictly lower triangular the equilibrium must be unique, that is I − W a P-matrix (‖W‖₂ < 1 suffices).
    Its minors of one unit and of two are looked at, and those of every active set on the way; `NotContractive` where one is
    not positive.
    """
    low, high = number(low, "low"), number(high, "high")
    if not high > low:
        raise BadInput(f"The interval [{low!r}, {high!r}] is empty or endless; low must lie below high, both finite.")
    units = Units.of(module)
    return _different(OrderedUnits(units) if units.in_order else EquilibriumPath(units), low, high)


def _different(path: Path, low: float, high: float) -> int:
    """How many slopes in a row differ from the one before."""
    pieces = 0
    before: Array = np.array([np.inf])
    blur_before: Array = np.zeros(1)
    for slope, blur in _slopes(path, low, high):
        if (np.abs(slope - before) > np.maximum(blur, blur_before)).any():
            pieces += 1
        before, blur_before = slope, blur
    return pieces


def _slopes(path: Path, low: float, high: float) -> Iterator[tuple[Array, Array]]:
    """The slopes of the outputs between one breakpoint and the next, and what round-off leaves open of them."""
    x, end = low, high - ROUND_OFF * max(abs(low), abs(high))
    while x < end or x == low:
        slope, blur, ahead = path.right_of(x)
        yield slope, blur
        # A breakpoint nearer than the spacing of numbers at x would be found again and again.
        x = max(x + ahead, math.nextafter(x, math.inf))


Array = np.ndarray[Any, np.dtype[np.float64]]


class Path(Protocol):
    """The outputs of a network along x, a piece at a time."""

    def right_of(self, x: float) -> tuple[Array, Array, float]:
        """The slopes of the outputs just right of x, what round-off leaves open of them, and how far the next unit turns."""
        ...


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
            raise BadInput("The weights hold NaN or infinity: there are no pieces to count. Did its training diverge?")

    @property
    def in_order(self) -> bool:
        """Whether each unit reads earlier ones only."""
        return np.array_equal(self.W, np.tril(self.W, -1))

    @classmethod
    def of(cls, module: nn.Module) -> Units:
        """Of a `ReluDEQ`, a ReLU `ENN` or a Sequential of Linear, ReLU, …, Linear."""
        if isinstance(module, ReluDEQ):
            _refuse_more_inputs(module.in_features)
            W, U, b, A = (_array(weight) for weight in (module.W, module.U, module.b, module.A))
            return cls(W, U[:, 0], b, A, np.zeros(len(A)) if module.V is None else _array(module.V)[:, 0])
        return _stacked(_layers(module))


def _layers(module: nn.Module) -> list[tuple[Array, Array]]:
    """(weight, bias) of each layer, the last one linear."""
    if isinstance(module, ENN):
        last = module.readout.weight
        if any(layer != activation("relu") for layer in module.net.layers) or last is None:
            raise BadInput(
                "Pieces are counted for ReLU networks with a readout; this ENN has other activations, or none."
            )
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
    """Layers as units that follow one another: W block lower triangular, the input to the first block only."""
    _refuse_more_inputs(layers[0][0].shape[1])
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
    found: Array = weight.detach().double().cpu().numpy()
    return found


def _bias(bias: Tensor | None, length: int) -> Array:
    return np.zeros(length) if bias is None else _array(bias)


def _refuse_more_inputs(inputs: int) -> None:
    if inputs != 1:
        raise BadInput(f"Pieces are counted along a line, for a network of one input; this one has {inputs}.")


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


Mask = np.ndarray[Any, np.dtype[np.bool_]]


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
