"""notsodeep: turn a deep equilibrium model into an equivalent explicit network, and measure how close they are.

    >>> import notsodeep as nsd
    >>> print(nsd.design(nsd.Implicit("relu", var_a=0.2)).explicit)

Samples are rows. `var_a` and `var_b` are σ_a² and σ_b², always the variance.
"""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep import (
        activations as activations,
        advice as advice,
        data as data,
        errors as errors,
        estimators as estimators,
        fixed_points as fixed_points,
        kernels as kernels,
        matching as matching,
        models as models,
        separation as separation,
        theory as theory,
    )
    from notsodeep.activations.custom import custom as custom
    from notsodeep.activations.registry import activation as activation
    from notsodeep.activations.wrappers import Centred as Centred
    from notsodeep.advice.advise import advise as advise
    from notsodeep.errors import (
        BadInput as BadInput,
        NoMatch as NoMatch,
        NotContractive as NotContractive,
        NotConverged as NotConverged,
        NotSoDeepError as NotSoDeepError,
        NumericsWarning as NumericsWarning,
    )
    from notsodeep.fixed_points.adjoint import ImplicitAdjoint as ImplicitAdjoint
    from notsodeep.fixed_points.fixed_point import fixed_point as fixed_point
    from notsodeep.fixed_points.solvers import Anderson as Anderson, Broyden as Broyden, Picard as Picard
    from notsodeep.kernels.compare import relative_gap as relative_gap
    from notsodeep.kernels.empirical import empirical_kernels as empirical_kernels
    from notsodeep.kernels.exact.kernels import (
        conjugate_kernel as conjugate_kernel,
        exact_kernels as exact_kernels,
        tangent_kernel as tangent_kernel,
    )
    from notsodeep.kernels.structured.equivalent import equivalent_kernel as equivalent_kernel
    from notsodeep.kernels.structured.sharp import sharp_kernel as sharp_kernel
    from notsodeep.matching.design import design as design
    from notsodeep.models import training as training
    from notsodeep.models.compiler.compile import compile_deq as compile_deq
    from notsodeep.models.convolutional import ConvDEQ as ConvDEQ, ConvENN as ConvENN
    from notsodeep.models.deq import DEQ as DEQ
    from notsodeep.models.enn import ENN as ENN
    from notsodeep.models.files.save import load as load, save as save
    from notsodeep.models.training.fit import fit as fit
    from notsodeep.models.training.readout import fit_readout as fit_readout
    from notsodeep.theory.architecture import Explicit as Explicit, Implicit as Implicit
    from notsodeep.theory.convolution import Convolutional as Convolutional
    from notsodeep.theory.mixture import GaussianMixture as GaussianMixture
    from notsodeep.theory.scalars import scalars as scalars
    from notsodeep.theory.statistics import MixtureStatistics as MixtureStatistics, tau0 as tau0

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy(__name__)
