"""The registries that tests run over. A new activation joins here and gets every property test."""

from functools import cache

import pytest
import torch
from torch import Tensor

from notsodeep.activations import (
    Activation,
    Centred,
    Elu,
    Gelu,
    Relu,
    Scaled,
    Sign,
    Silu,
    Sin,
    Tanh,
    activation,
    combined,
    stretched,
)


def two_kinks(x: Tensor) -> Tensor:
    return torch.relu(x - 0.25) + 0.5 * (x + 2.0).abs()


def uneven_hinge(x: Tensor) -> Tensor:
    """A kink at a place that no decimal number of nine digits hits."""
    return torch.relu(x - 1.0 / 3.0)


def wavy(x: Tensor) -> Tensor:
    return 0.5 * torch.sin(2.0 * x) + torch.tanh(x - 0.5)


def lifted(x: Tensor) -> Tensor:
    """Jumps by 1.125 at 0.25, with a slope on either side."""
    return torch.where(x > 0.25, x + 1.0, 0.5 * x)


NAMED = (
    "tanh",
    "erf",
    "sigmoid",
    "softplus",
    "arctan",
    "sin",
    "cos",
    "gelu",
    "silu",
    "swish",
    "gaussian",
    "relu",
    "leaky_relu",
    "leaky_relu:0.1",
    "abs",
    "linear",
    "elu",
    "elu:0.5",
    "softsign",
    "sign",
    "hard_tanh",
    "hard_tanh:0.75,1.2",
    "polynomial:0.5,1,0.25,-0.125",
    "quadratic",
    "quadratic:0.5,-1,0.25",
    "hermite:0,1,0.3,0.1",
)
WRAPPED = {
    "relu − 0.4": Centred(Relu(), 0.4),
    "−1.5·tanh": Scaled(Tanh(), -1.5),
    "2·silu − 0.3": Centred(Scaled(Silu(), 2.0), 0.3),
    "0.5·(sign − 0.25)": Scaled(Centred(Sign(), 0.25), 0.5),
    "elu(1.4·x)": stretched(Elu(), 1.4),
    "tanh + gelu + sin + x": combined(
        [
            (0.5, stretched(Tanh(), 1.3)),
            (-0.3, stretched(Gelu(), 0.7)),
            (0.1, stretched(Sin(), 2.0)),
            (0.2, activation("linear")),
        ]
    ),
}
CUSTOM = {
    "torch.tanh": torch.tanh,
    "torch.relu": torch.relu,
    "nn.SELU": torch.nn.SELU(),
    "two_kinks": two_kinks,
    "uneven_hinge": uneven_hinge,
    "wavy": wavy,
    "lifted": lifted,
}
ACTIVATIONS = {**{name: name for name in NAMED}, **WRAPPED, **CUSTOM}

JUMPING = ("sign", "0.5·(sign − 0.25)", "lifted")
KINKED = (
    *JUMPING,
    "relu",
    "leaky_relu",
    "leaky_relu:0.1",
    "abs",
    "elu",
    "elu:0.5",
    "elu(1.4·x)",
    "softsign",
    "hard_tanh",
    "hard_tanh:0.75,1.2",
    "relu − 0.4",
    "torch.relu",
    "nn.SELU",
    "two_kinks",
    "uneven_hinge",
)
SMOOTH = tuple(name for name in ACTIVATIONS if name not in KINKED)
CONTINUOUS = tuple(name for name in ACTIVATIONS if name not in JUMPING)
POLYNOMIAL = tuple(name for name in ACTIVATIONS if name.startswith(("polynomial", "quadratic", "hermite")))
OSCILLATING = ("sin", "cos", "wavy", "tanh + gelu + sin + x")
"""No panel rule follows these where the Gaussian is much wider than a period."""


@cache
def build(name: str) -> Activation:
    """The activation of a registry key. Made on demand, so that one broken activation does not hide the others."""
    return activation(ACTIVATIONS[name])


def each(names: tuple[str, ...] = tuple(ACTIVATIONS)) -> pytest.MarkDecorator:
    """Run a test once for every activation, as its argument `name`."""
    return pytest.mark.parametrize("name", names)


def away_from_kinks(phi: Activation, reach: float = 6.0, points: int = 4001, margin: float = 1e-3) -> Tensor:
    """A fine grid on [−reach, reach] without the neighbourhoods of the kinks."""
    x = torch.linspace(-reach, reach, points, dtype=torch.float64) + 1e-4
    for kink in phi.kinks:
        x = x[(x - kink).abs() > margin]
    return x
