"""Activations by name, and whatever a person passes turned into one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from torch import Tensor

from notsodeep.activations.base import Activation
from notsodeep.activations.custom import custom
from notsodeep.activations.formula import expression
from notsodeep.activations.piecewise import Abs, Elu, HardTanh, LeakyRelu, Linear, Relu, Sign, Softsign
from notsodeep.activations.polynomial import HermiteSeries, Polynomial
from notsodeep.activations.smooth import Arctan, Cos, Erf, Gaussian, Gelu, Sigmoid, Silu, Sin, Softplus, Tanh
from notsodeep.arguments import shown
from notsodeep.errors import BadInput

ActivationLike = str | Activation | Callable[[Tensor], Tensor]

FACTORIES: dict[str, Callable[..., Activation]] = {
    "tanh": Tanh,
    "erf": Erf,
    "sigmoid": Sigmoid,
    "softplus": Softplus,
    "arctan": Arctan,
    "sin": Sin,
    "cos": Cos,
    "gelu": Gelu,
    "silu": Silu,
    "swish": Silu,
    "gaussian": Gaussian,
    "relu": Relu,
    "leaky_relu": LeakyRelu,
    "abs": Abs,
    "linear": Linear,
    "elu": Elu,
    "softsign": Softsign,
    "sign": Sign,
    "hard_tanh": HardTanh,
    "polynomial": lambda *coefficients: Polynomial(coefficients),
    "quadratic": lambda a=1.0, b=1.0, c=0.0: Polynomial((c, b, a)),
    "hermite": lambda *coefficients: HermiteSeries(coefficients),
}

# x, X or 3x as a word of its own, in a text that is more than words.
_VARIABLE = re.compile(r"(?<![A-Za-z_])[xX](?![A-Za-z0-9_])")
_MORE_THAN_WORDS = re.compile(r"[^\w\s:]|\d\s*[xX]|[^\x00-\x7f]")


def activation(spec: ActivationLike) -> Activation:
    """The activation that `spec` describes.

    Args:
        spec: A name ("relu", "hard_tanh:0.76,1.2"), an expression in x ("x*tanh(x)"), an `Activation`, or a torch function.

    Returns:
        The activation.

    Raises:
        BadInput: There is no such name, or `spec` is none of these.
    """
    if isinstance(spec, Activation):
        return spec
    if isinstance(spec, str):
        return _named(spec)
    if callable(spec):
        return custom(spec)
    raise BadInput(f"{shown(spec)} is not an activation; pass a name, an expression in x, an Activation or a function.")


def _named(spec: str) -> Activation:
    name, _, arguments = spec.partition(":")
    name = name.strip().lower().replace("-", "_")
    if name not in FACTORIES:
        if spec.strip() == "x" or (_VARIABLE.search(spec) and _MORE_THAN_WORDS.search(spec)):
            return expression(spec)
        near = difflib.get_close_matches(name, FACTORIES, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known names: {', '.join(sorted(FACTORIES))}."
        raise BadInput(f"There is no activation named {name!r}; {hint}", nearest=near)
    try:
        values = [float(value) for value in arguments.split(",") if value.strip()]
        return FACTORIES[name](*values)
    except BadInput:
        raise
    except ValueError:
        raise BadInput(f"The parameters of {spec!r} are not numbers; write for example leaky_relu:0.1.") from None
    except TypeError:
        raise BadInput(f"{name} does not take {len(values)} parameters ({spec!r}).") from None
