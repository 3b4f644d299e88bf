"""notsodeep: turn a deep equilibrium model into an equivalent explicit network, and measure how close they are.

    >>> import notsodeep as nsd
    >>> print(nsd.design(nsd.Implicit("relu", var_a=0.2)).explicit)

Samples are rows. `var_a` and `var_b` are σ_a² and σ_b², always the variance.
"""

from notsodeep.activations import Activation, Centred, Scaled, activation, custom
from notsodeep.advice import Advice, advise
from notsodeep.data import GaussianMixture, MixtureStatistics, tau0
from notsodeep.errors import BadInput, NoMatch, NotContractive, NotConverged, NotSoDeepError, NumericsWarning
from notsodeep.fixed_points.adjoint import ImplicitAdjoint, OneStepAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.fixed_points.fixed_point import fixed_point
from notsodeep.fixed_points.precision import FullPrecision, MixedPrecision
from notsodeep.fixed_points.solution import Reason, Solution
from notsodeep.fixed_points.solvers import Anderson, Broyden, Picard, Solver
from notsodeep.gaussian import Moments, dual_map, moments
from notsodeep.kernels.compare import best_scaled_gap, relative_gap
from notsodeep.kernels.empirical import EmpiricalKernels, empirical_kernels
from notsodeep.kernels.exact.kernels import (
    ExactKernels,
    KernelTile,
    conjugate_kernel,
    exact_kernels,
    kernel_tiles,
    tangent_kernel,
)
from notsodeep.kernels.exact.operator import TiledKernel
from notsodeep.kernels.exact.preconditioners import Nystrom, Plain, Sharp, SharpNystrom
from notsodeep.kernels.stored.write import WrittenKernels, write_kernels
from notsodeep.kernels.structured.equivalent import equivalent_kernel
from notsodeep.kernels.structured.fit import StreamedFit, streamed_fit
from notsodeep.kernels.structured.sharp import SharpStatistics, sharp_entries, sharp_kernel
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.matching import Design, design
from notsodeep.models.certificate import Certificate
from notsodeep.models.compile import Compiled, compile_deq
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.export.onnx import to_onnx
from notsodeep.models.files.save import load, save
from notsodeep.models.jacobian import jacobian_penalty, spectral_radius
from notsodeep.models.training.batches import Batches
from notsodeep.models.training.fit import History, fit
from notsodeep.models.training.readout import fit_readout
from notsodeep.models.universal import to_deq, to_explicit
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.scalars import Scalars, scalars

__version__ = "0.1.0"

__all__ = [
    "DEQ",
    "ENN",
    "Activation",
    "Advice",
    "Anderson",
    "BadInput",
    "Batches",
    "Broyden",
    "Centred",
    "Certificate",
    "Compiled",
    "Design",
    "EmpiricalKernels",
    "ExactKernels",
    "Explicit",
    "FullPrecision",
    "GaussianMixture",
    "History",
    "Implicit",
    "ImplicitAdjoint",
    "KernelTile",
    "LowRankPlusDiagonal",
    "MixedPrecision",
    "MixtureStatistics",
    "Moments",
    "NoMatch",
    "NotContractive",
    "NotConverged",
    "NotSoDeepError",
    "NumericsWarning",
    "Nystrom",
    "OneStepAdjoint",
    "PhantomAdjoint",
    "Picard",
    "Plain",
    "Reason",
    "Scalars",
    "Scaled",
    "Sharp",
    "SharpNystrom",
    "SharpStatistics",
    "Solution",
    "Solver",
    "StreamedFit",
    "TiledKernel",
    "UnrolledAdjoint",
    "WrittenKernels",
    "activation",
    "advise",
    "best_scaled_gap",
    "compile_deq",
    "conjugate_kernel",
    "custom",
    "design",
    "dual_map",
    "empirical_kernels",
    "equivalent_kernel",
    "errors",
    "exact_kernels",
    "fit",
    "fit_readout",
    "fixed_point",
    "fixed_points",
    "jacobian_penalty",
    "kernel_tiles",
    "load",
    "moments",
    "relative_gap",
    "save",
    "scalars",
    "sharp_entries",
    "sharp_kernel",
    "spectral_radius",
    "streamed_fit",
    "tangent_kernel",
    "tau0",
    "to_deq",
    "to_explicit",
    "to_onnx",
    "write_kernels",
]
