"""Activations: frozen values that know what a Gaussian integral needs to know of them."""

from notsodeep.activations.base import Activation
from notsodeep.activations.combination import Stretched, Sum, combined, stretched
from notsodeep.activations.custom import Custom, custom
from notsodeep.activations.formula import Formula, expression
from notsodeep.activations.mixed import Mixed
from notsodeep.activations.piecewise import Abs, Elu, HardTanh, LeakyRelu, Linear, Rectifier, Relu, Sign, Softsign
from notsodeep.activations.polynomial import HermiteSeries, Polynomial
from notsodeep.activations.registry import FACTORIES, ActivationLike, activation
from notsodeep.activations.smooth import Arctan, Cos, Erf, Gaussian, Gelu, Sigmoid, Silu, Sin, Softplus, Tanh
from notsodeep.activations.wrappers import Centred, Scaled

__all__ = [
    "FACTORIES",
    "Abs",
    "Activation",
    "ActivationLike",
    "Arctan",
    "Centred",
    "Cos",
    "Custom",
    "Elu",
    "Erf",
    "Formula",
    "Gaussian",
    "Gelu",
    "HardTanh",
    "HermiteSeries",
    "LeakyRelu",
    "Linear",
    "Mixed",
    "Polynomial",
    "Rectifier",
    "Relu",
    "Scaled",
    "Sigmoid",
    "Sign",
    "Silu",
    "Sin",
    "Softplus",
    "Softsign",
    "Stretched",
    "Sum",
    "Tanh",
    "activation",
    "combined",
    "custom",
    "expression",
    "stretched",
]
