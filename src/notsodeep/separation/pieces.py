"""How many linear pieces a ReLU network has on a line: its breakpoints one after another, not a grid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from notsodeep.activations import activation
from notsodeep.errors import BadInput
from notsodeep.models.explicit import ENN
from notsodeep.separation.relu_deq import ReluDEQ

Array = np.ndarray[Any, np.dtype[np.float64]]
_ROUND_OFF = 64.0 * np.finfo(np.float64).eps


def count_pieces(module: nn.Module, low: float, high: float) -> int:
    """The number of linear pieces on [low, high] of a network of one input: neighbours differ in slope.

    `module` is a `ReluDEQ` whose W is strictly lower triangular, a ReLU `ENN`, or a Sequential of Linear and ReLU. Its units
    are taken in order, each an affine function of x as long as none before it turns on or off; the nearest zero of one is the
    next breakpoint.
    """
    if not high > low:
        raise BadInput(f"The interval [{low!r}, {high!r}] is empty; low must lie below high.")
    network = _Ordered.of(module)
    pieces, before = 0, np.array([np.inf])
    for slope, size in network.slopes(float(low), float(high)):
        if (np.abs(slope - before) > _ROUND_OFF * size).any():
            pieces += 1
        before = slope
    return pieces


class _Ordered:
    """Units s_t = relu(w_tᵀ s + u_t x + c_t), w_t using earlier units only, and outputs A s + v x."""

    def __init__(self, W: Array, u: Array, c: Array, A: Array, v: Array) -> None:
        if not np.array_equal(W, np.tril(W, -1)):
            raise BadInput("Pieces are counted where units follow one another: W must be strictly lower triangular.")
        self.W, self.u, self.c, self.A, self.v = W, u, c, A, v

    @classmethod
    def of(cls, module: nn.Module) -> _Ordered:
        if isinstance(module, ReluDEQ):
            _refuse_more_inputs(module.in_features)
            W, U, b, A = (weight.detach().double().numpy() for weight in (module.W, module.U, module.b, module.A))
            v = np.zeros(len(A)) if module.V is None else module.V.detach().double().numpy()[:, 0]
            return cls(W, U[:, 0], b, A, v)
        return cls(*_stacked(_layers(module)))

    def slopes(self, low: float, high: float) -> Iterator[tuple[Array, Array]]:
        """The slopes of the outputs between one breakpoint and the next, and the size of what they are sums of."""
        x = low
        while True:
            slope, size, ahead = self._right_of(x)
            yield slope, size
            x += ahead
            if not x < high - _ROUND_OFF * max(abs(low), abs(high)):
                return

    def _right_of(self, x: float) -> tuple[Array, Array, float]:
        """The slopes of the outputs just right of x, their terms' size, and how far away the next unit turns on or off."""
        values, slopes = np.zeros(len(self.c)), np.zeros(len(self.c))
        ahead = np.inf
        for t in range(len(self.c)):
            value = self.W[t, :t] @ values[:t] + self.u[t] * x + self.c[t]
            slope = self.W[t, :t] @ slopes[:t] + self.u[t]
            size = np.abs(self.W[t, :t]) @ np.abs(values[:t]) + abs(self.u[t] * x) + abs(self.c[t])
            if abs(value) <= _ROUND_OFF * size:  # at a breakpoint: the slope decides
                value = 0.0
            elif value * slope < 0.0:
                ahead = min(ahead, -value / slope)
            if value > 0.0 or (value == 0.0 and slope > 0.0):
                values[t], slopes[t] = value, slope
        return self.A @ slopes + self.v, np.abs(self.A) @ np.abs(slopes) + np.abs(self.v), float(ahead)


def _layers(module: nn.Module) -> list[tuple[Array, Array]]:
    """(weight, bias) of each layer, the last one linear."""
    if isinstance(module, ENN):
        if any(layer != activation("relu") for layer in module.net.layers) or module.out_features is None:
            raise BadInput(
                "Pieces are counted for ReLU networks with a readout; this ENN has other activations, or none."
            )
        biases = [None] * len(module.weights) if module.biases is None else list(module.biases)
        layers = []
        for weight, bias in zip(module.weights, biases, strict=True):
            scale = 1.0 / np.sqrt(len(weight))  # relu(h)/√m = relu(h/√m)
            layers.append((scale * _array(weight), scale * _bias(bias, len(weight))))
        return [*layers, (_array(module.readout.weight), _bias(module.readout.bias, module.out_features))]
    if isinstance(module, nn.Sequential):
        kinds = [type(part) for part in module]
        if kinds == [nn.Linear, nn.ReLU] * (len(kinds) // 2) + [nn.Linear]:
            linear = [part for part in module if isinstance(part, nn.Linear)]
            return [(_array(part.weight), _bias(part.bias, part.out_features)) for part in linear]
    raise BadInput(
        f"Pieces are counted for a ReluDEQ, a ReLU ENN or a Sequential of Linear, ReLU, …, Linear; got {type(module).__name__}."
    )


def _stacked(layers: list[tuple[Array, Array]]) -> tuple[Array, Array, Array, Array, Array]:
    """Layers as units that follow one another: W block lower triangular, the input to the first block only."""
    _refuse_more_inputs(layers[0][0].shape[1])
    widths = [len(weight) for weight, _ in layers[:-1]]
    total, starts = sum(widths), np.cumsum([0, *widths])
    W, u = np.zeros((total, total)), np.zeros(total)
    u[: widths[0] if widths else 0] = layers[0][0][:, 0] if widths else 0.0
    for block in range(1, len(widths)):
        W[starts[block] : starts[block + 1], starts[block - 1] : starts[block]] = layers[block][0]
    c = np.concatenate([bias for _, bias in layers[:-1]]) if widths else np.zeros(0)
    last = layers[-1][0]
    A = np.zeros((len(last), total))
    if widths:
        A[:, starts[-2] :] = last
    return W, u, c, A, last[:, 0] if not widths else np.zeros(len(last))


def _array(weight: Any) -> Array:
    found: Array = weight.detach().double().numpy()
    return found


def _bias(bias: Any, length: int) -> Array:
    return np.zeros(length) if bias is None else _array(bias)


def _refuse_more_inputs(inputs: int) -> None:
    if inputs != 1:
        raise BadInput(f"Pieces are counted along a line, for a network of one input; this one has {inputs}.")
