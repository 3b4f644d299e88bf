"""Exact infinite-width kernels of a DEQ or an explicit network, for any data. Ref: docs/theory.md, sections 2 and 5."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from notsodeep._types import Array
from notsodeep.architecture import Explicit, Implicit, Network
from notsodeep.data.statistics import tau0 as root_mean_square_norm
from notsodeep.errors import BadInput, NotContractive, NumericsWarning
from notsodeep.kernels.pairs import ExplicitPairs, ImplicitPairs, PairEquation, PairKernels
from notsodeep.kernels.tiles import fill
from notsodeep.numerics.safe import like, refuse_if_too_large, samples

READOUTS = ("features", "preactivation")


@dataclass(frozen=True)
class ExactKernels:
    """Both kernels of one pass over the pairs."""

    conjugate: Any
    tangent: Any


def conjugate_kernel(net: Network, x: Array, x2: Array | None = None, tau0: float | None = None) -> Any:
    """G_ij = E[z(x_i)·z(x_j)] of the infinitely wide network: (n, n), or (n, n2) against `x2`.

    A DEQ with `centre=True` is centred at τ* of τ0, the root mean square norm of `x` unless given.
    """
    return _compute(net, x, x2, tau0, ("conjugate",))[0]


def tangent_kernel(
    net: Network, x: Array, x2: Array | None = None, tau0: float | None = None, readout: str = "features"
) -> Any:
    """Θ_ij = ⟨∂f(x_i), ∂f(x_j)⟩ over all weights of the infinitely wide f = aᵀz: (n, n), or (n, n2) against `x2`.

    ``readout="preactivation"`` gives the kernel that [ling2024] calls Implicit-NTK, K = Λ/(1 − σ_a² Q).
    """
    if readout not in READOUTS:
        raise BadInput(f"There is no readout {readout!r}; choose {' or '.join(READOUTS)}.")
    return _compute(net, x, x2, tau0, ("tangent" if readout == "features" else "preactivation",))[0]


def exact_kernels(net: Network, x: Array, x2: Array | None = None, tau0: float | None = None) -> ExactKernels:
    """`conjugate_kernel` and `tangent_kernel` for the price of one."""
    return ExactKernels(*_compute(net, x, x2, tau0, ("conjugate", "tangent")))


@torch.no_grad()
def _compute(net: Network, x: Array, x2: Array | None, tau0: float | None, wanted: tuple[str, ...]) -> list[Any]:
    rows = samples(x)
    columns = rows if x2 is None else samples(x2, "x2").to(rows)
    refuse_other_features(rows, columns)
    n, n2 = len(rows), len(columns)
    refuse_if_too_large(
        n * len(wanted),
        n2,
        rows.dtype,
        rows.device,
        "sharp_kernel or equivalent_kernel, or row blocks (x2=…)",
    )
    wide = rows.to(torch.float64)
    wide2 = wide if x2 is None else columns.to(torch.float64)
    both = wide if x2 is None else torch.cat([wide, wide2])
    equation = pair_equation(net, both, tau0, of=wide)
    if wanted != ("conjugate",):
        _refuse_without_tangent(net, equation.diagonal(slice(None)))
    outputs = tuple(torch.empty(n, n2, dtype=rows.dtype, device=rows.device) for _ in wanted)

    def tile(left: slice, right: slice) -> tuple[Tensor, ...]:
        shifted = right if x2 is None else slice(n + right.start, n + right.stop)
        gram = wide[left] @ wide2[right].T
        if x2 is None and left == right:
            gram.fill_diagonal_(0.0)  # ρ = 1 there is the hardest pair, and the diagonal has its own exact formula
        kernels = equation.tile(left, shifted, gram)
        return tuple(getattr(kernels, name) for name in wanted)

    fill(outputs, symmetric=x2 is None, tile=tile)
    if x2 is None:
        exact = equation.diagonal(slice(None))
        for output, name in zip(outputs, wanted, strict=True):
            output.diagonal().copy_(getattr(exact, name))
    hand_back = like(x)
    return [hand_back(output) for output in outputs]


def refuse_other_features(x: Tensor, x2: Tensor) -> None:
    if x.shape[1] != x2.shape[1]:
        raise BadInput(f"x has {x.shape[1]} features and x2 has {x2.shape[1]}; they must agree.")


def pair_equation(net: Network, x: Tensor, tau0: float | None, of: Tensor | None = None) -> PairEquation:
    """The equation of `net` on samples (n, p) in float64, with a DEQ centred at τ0, or at that of the samples `of`."""
    norms2 = x.square().sum(1)
    if isinstance(net, Explicit):
        return ExplicitPairs(net, norms2)
    if not isinstance(net, Implicit):
        raise BadInput(f"Expected an Implicit or an Explicit network, got {type(net).__name__}.")
    if net.centre and tau0 is None:
        tau0 = root_mean_square_norm(x if of is None else of)
    equation = ImplicitPairs(net if tau0 is None else net.centred(tau0), norms2)
    net.warn_unless_contractive()
    if equation.several_roots:
        power = net.var_a * float(equation.moments.q.max())
        warnings.warn(
            f"σ_a² E[φ'²(τξ)] = {power:.4g} ≥ 1 for {net}: inputs that differ by however little drift apart on the way to the "
            f"equilibrium, so the conjugate kernel jumps between equal and nearly equal samples. Lower var_a for a smooth one.",
            NumericsWarning,
            stacklevel=4,
        )
    return equation


def _refuse_without_tangent(net: Network, diagonal: PairKernels) -> None:
    """Raise where E[φ'²] makes a gradient infinite: a jump of φ, or σ_a² E[φ'²] ≥ 1."""
    slope = float(diagonal.slope.max())
    if slope == math.inf or not bool(torch.isfinite(diagonal.tangent).all()):
        raise BadInput(
            f"{net} has no tangent kernel: an activation that jumps has E[φ'²] = ∞. Its conjugate kernel exists."
        )
    if isinstance(net, Implicit) and net.var_a * slope >= 1.0:
        raise NotContractive(
            f"The tangent kernel of {net} does not exist: σ_a² E[φ'²(τξ)] = {net.var_a * slope:.4g} ≥ 1 on this data, so a "
            f"gradient grows at every step towards the equilibrium. Take var_a below {1.0 / slope:.4g}.",
            left=net.var_a * slope,
            right=1.0,
            largest_var_a=1.0 / slope,
        )
