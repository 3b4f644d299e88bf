"""Fixed points z = f(z) of any f: solvers, the loop they run in, exact gradients, and exported graphs."""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep.fixed_points.adjoint import (
        OneStepAdjoint as OneStepAdjoint,
        PhantomAdjoint as PhantomAdjoint,
        UnrolledAdjoint as UnrolledAdjoint,
    )
    from notsodeep.fixed_points.exported import (
        Exporting as Exporting,
        Loop as Loop,
        Steps as Steps,
        Written as Written,
        exporting as exporting,
    )
    from notsodeep.fixed_points.fixed_point import implicit_gradient as implicit_gradient
    from notsodeep.fixed_points.jacobian import jacobian_penalty as jacobian_penalty, spectral_radius as spectral_radius
    from notsodeep.fixed_points.linear import (
        CircularConvolution as CircularConvolution,
        Dense as Dense,
        Linear as Linear,
        Operator as Operator,
    )
    from notsodeep.fixed_points.plan import FullPrecision as FullPrecision, MixedPrecision as MixedPrecision
    from notsodeep.fixed_points.solution import Reason as Reason, Solution as Solution
    from notsodeep.fixed_points.solvers import Preconditioned as Preconditioned, Solver as Solver
    from notsodeep.fixed_points.splitting import (
        Activated as Activated,
        ForwardBackward as ForwardBackward,
        PeacemanRachford as PeacemanRachford,
        Splitting as Splitting,
    )

__getattr__, __dir__, __all__ = lazy(__name__)
