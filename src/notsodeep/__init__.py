"""notsodeep: turn a deep equilibrium model into an equivalent explicit network, and measure how close they are.

    >>> import notsodeep as nsd
    >>> print(nsd.design(nsd.Implicit("relu", var_a=0.2)).explicit)

Samples are rows. `var_a` and `var_b` are σ_a² and σ_b², always the variance.
"""

from notsodeep import errors
from notsodeep.activations import Activation, Centred, Scaled, activation, custom
from notsodeep.architecture import Explicit, Implicit
from notsodeep.data import GaussianMixture, MixtureStatistics, tau0
from notsodeep.design import Design, design
from notsodeep.errors import BadInput, NoMatch, NotContractive, NotConverged, NotSoDeepError, NumericsWarning
from notsodeep.gaussian import Moments, dual_map, moments
from notsodeep.kernels.compare import best_scaled_gap, relative_gap
from notsodeep.kernels.equivalent import equivalent_kernel
from notsodeep.kernels.exact import ExactKernels, conjugate_kernel, exact_kernels, tangent_kernel
from notsodeep.kernels.sharp import sharp_entries, sharp_kernel
from notsodeep.numerics.operators import LowRankPlusDiagonal
from notsodeep.scalars import Scalars, scalars

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "BadInput",
    "Centred",
    "Design",
    "ExactKernels",
    "Explicit",
    "GaussianMixture",
    "Implicit",
    "LowRankPlusDiagonal",
    "MixtureStatistics",
    "Moments",
    "NoMatch",
    "NotContractive",
    "NotConverged",
    "NotSoDeepError",
    "NumericsWarning",
    "Scalars",
    "Scaled",
    "activation",
    "best_scaled_gap",
    "conjugate_kernel",
    "custom",
    "design",
    "dual_map",
    "equivalent_kernel",
    "errors",
    "exact_kernels",
    "moments",
    "relative_gap",
    "scalars",
    "sharp_entries",
    "sharp_kernel",
    "tangent_kernel",
    "tau0",
]
