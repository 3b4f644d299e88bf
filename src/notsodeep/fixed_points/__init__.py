"""Fixed points z = f(z) of any f: solvers, the loop that they run in, and exact gradients."""

from notsodeep.fixed_points.adjoint import ImplicitAdjoint, OneStepAdjoint, PhantomAdjoint, UnrolledAdjoint
from notsodeep.fixed_points.exported import Exporting, Loop, Steps, Written, exporting
from notsodeep.fixed_points.fixed_point import fixed_point, implicit_gradient
from notsodeep.fixed_points.jacobian import jacobian_penalty, spectral_radius
from notsodeep.fixed_points.linear import CircularConvolution, Dense, Linear, Operator
from notsodeep.fixed_points.plan import FullPrecision, MixedPrecision
from notsodeep.fixed_points.solution import Reason, Solution
from notsodeep.fixed_points.solvers import Anderson, Broyden, Picard, Preconditioned, Solver
from notsodeep.fixed_points.splitting import Activated, ForwardBackward, PeacemanRachford, Splitting

__all__ = [
    "Activated",
    "Anderson",
    "Broyden",
    "CircularConvolution",
    "Dense",
    "Exporting",
    "ForwardBackward",
    "FullPrecision",
    "ImplicitAdjoint",
    "Linear",
    "Loop",
    "MixedPrecision",
    "OneStepAdjoint",
    "Operator",
    "PeacemanRachford",
    "PhantomAdjoint",
    "Picard",
    "Preconditioned",
    "Reason",
    "Solution",
    "Solver",
    "Splitting",
    "Steps",
    "UnrolledAdjoint",
    "Written",
    "exporting",
    "fixed_point",
    "implicit_gradient",
    "jacobian_penalty",
    "spectral_radius",
]
