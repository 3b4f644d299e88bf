"""Every tolerance of the package, by name."""

from __future__ import annotations

VARIANCE_RTOL = 1e-11
"""Relative Newton step on a variance fixed point after which the next one is below round-off."""

PAIR_RTOL = 1e-8
"""Newton step on a pair equation, relative to τ_i τ_j, after which the next one is below round-off."""

SERIES_RTOL = 1e-12
"""Largest proven truncation error of a Hermite series, relative to the scale of the kernel entry."""

SERIES_TRUNCATION = 1e-15
"""Where a shorter series provably misses no more than this, the rest of it is not summed."""

FUSED_TRUNCATION = {"float64": 1e-15, "float32": 5e-8}
"""The same for a fused solver, by the dtype it works in."""

FUSED_CAP = {"float64": 1.0 - 1e-6, "float32": 1.0 - 1e-3}
"""|ρ| from which on a pair with a kinked φ is left to the careful path: Q is steep there, and ρ known to round-off."""

FUSED_HALLEY = {"float64": 1e-7, "float32": 3e-4}
"""Step over √(1 − ρ²) whose square, what is left of the slope after Taylor's formula, is below round-off."""

FUSED_NEWTON = {"float64": 1e-15, "float32": 3e-8}
"""Product of two successive steps below which the slope, carried over the last one with a secant's curvature, is exact."""

TABLE_RTOL = 2e-14
"""Largest error, relative to the largest entry, of a function of a sample's norm that is read off a table."""

MESH_RTOL = 1e-13
"""What the polynomial of a panel may miss of an unknown function or its slope, relative to the largest one up to there."""

STEEP_RTOL = 1e-9
"""What φ'² may integrate to next to a place where φ' has no bound, on what no panel covers, before that is said."""

PATCH_RTOL = 1e-13
"""Residual of an equation of patches, relative to the size of its solution, at which it counts as solved."""

FUSED_PATCH = {"float64": 1e-13, "float32": 5e-7}
"""The same for compiled loops, by the dtype they work in."""

FUSED_PATCH_DOUBT = {"float64": 1.0, "float32": 1e-6}
"""What round-off may change of gradients, relative to them, before compiled loops leave a block of images to float64; float64
itself is as exact as the plain path."""

FUSED_PATCH_TRUNCATION = 1e-9
"""What a series of compiled loops may miss of E[φ'²] in float64 where two patches agree, as many of images do."""

COLLINEAR = 4e-15
"""1 − |ρ| below which two unit vectors in float64 count as parallel."""

MATCH_RTOL = 1e-8
"""Relative gap of every matched scalar below which a design counts as a match."""

CONSTANT_RTOL = 1e-12
"""Var[φ] relative to E[φ²] up to which an activation counts as constant: the variance is then its rounding."""

CENTRED_ATOL = 1e-9
"""|E φ(τ*ξ)|, relative to its root mean square, up to which an activation counts as centred."""

SEPARABLE_RTOL = 1e-3
"""Relative size of the terms left out when a smooth function of two variances is written as a sum of products.

Each term costs p columns; what this leaves out is below what the second-order expansion misses (measured: 3.3e-4 instead
of 2.8e-4 for tanh at n = 1600, no change for ReLU, ELU and digits)."""

DENSE_SPECTRUM = 600
"""Up to this size the norm of a matrix comes from its full spectrum; beyond, from Lanczos."""

SYMMETRY_RTOL = 1e-6
"""Relative asymmetry up to which a matrix is taken for symmetric with round-off."""

EQUILIBRIUM_RTOL = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
"""Relative residual ‖f(z) − z‖/‖f(z)‖ of a fixed point, where none is asked for, by the dtype of its state."""

DIVERGED_GROWTH, GROWING = 1e6, 10.0
"""A residual that many times its first one will not come back; one past the second had begun to go."""

CHANGED_FACTOR = 10.0
"""A map evaluated again at its fixed point moves it by no more than this many tolerances, or is another map."""

COUPLED_GROWTH = 2.0
"""A sample that was within tolerance, and is this many tolerances away with other rows in its batch, depends on them."""

STALL_STEPS, STALL_SHRINK, STALL_LOOK = 80, 0.99, 20
"""A best residual that shrinks by less than this factor in so many steps has stalled; how often one looks."""

BFLOAT16_ROUNDING, TF32_ROUNDING = 2.0**-9, 2.0**-11
"""Relative rounding of one number in these formats."""

REFINEMENT_SHARE = 0.1
"""The part of a tolerance that products of differences in less than full precision may use up."""

BFLOAT16_FLOOR, TF32_FLOOR = 6e-3, 5e-4
"""Relative residuals at which a step in this precision gains less than one in the next."""

RADIUS_RTOL = 2e-3
"""Relative change of a spectral radius over twenty products after which it is taken; the error is then well below 1 %."""
