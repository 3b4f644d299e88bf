"""A ReLU network of one input as units that read one another, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from notsodeep.activations import activation
from notsodeep.errors import BadInput
from notsodeep.models.explicit import ENN
from notsodeep.separation.relu_deq import ReluDEQ

Array = np.ndarray[Any, np.dtype[np.float64]]
ROUND_OFF = 64.0 * float(np.finfo(np.float64).eps)
"""A sum smaller than this times the sum of its terms' moduli is taken for 0."""


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
