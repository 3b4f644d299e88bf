"""A network and its samples, prepared once for any tile of their exact kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import norm
from notsodeep.arrays import Array, check_range, images, samples, unwritten
from notsodeep.errors import BadInput, NotContractive
from notsodeep.kernels.exact.compiled.engine import Engine, engine_for
from notsodeep.kernels.exact.images.prepared import PreparedImages, prepare_images
from notsodeep.kernels.exact.pairs import ExplicitPairs, ImplicitPairs, Pairs
from notsodeep.kernels.exact.refusals import check_tangent, no_equilibrium, warn_of_implicit
from notsodeep.kernels.exact.tiles import fill, on_diagonal
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.convolution import Convolutional
from notsodeep.theory.statistics import root_mean_square, squared_norms


@dataclass(frozen=True, eq=False)
class Prepared:
    """The samples of both sides in their own dtype, and their pair equation in float64."""

    rows: Tensor
    columns: Tensor
    equation: Pairs
    symmetric: bool
    fused: bool = True
    """Whether a fused solver may be used, for speed alone."""
    eager: bool = False
    """Whether it is used for any number of samples, although the first call compiles it."""
    paired: bool = False
    """Whether sample i of the rows is sample i of the columns: a symmetric kernel, or x2 equal to x"""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)

    @cached_property
    def engine(self) -> Engine | None:
        return engine_for(self.equation, self.rows, self.columns, self.symmetric, self.eager) if self.fused else None

    def tile(self, left: slice, right: slice, kernels: tuple[str, ...]) -> tuple[Tensor, ...]:
        """These kernels of the pairs in `left` × `right`, in the samples' dtype."""
        if self.engine is None:
            values = self._plain_tile(left, right, kernels)
        else:
            shape = left.stop - left.start, right.stop - right.start
            values = tuple(unwritten(*shape, self.rows) for _ in kernels)
            self.engine.tile(left, right, kernels, values)
        own = self._own(left, right)
        if own is not None:
            exact = self.equation.diagonal(slice(left.start + int(own[0][0]), left.start + int(own[0][-1]) + 1))
            for value, name in zip(values, kernels, strict=True):
                value[own] = getattr(exact, name).to(value.dtype)
        return values

    def fill(self, outputs: tuple[Any, ...], kernels: tuple[str, ...]) -> None:
        """Write these kernels whole; of a symmetric one a triangle is computed, and both are written."""
        direct = all(self._direct(output, outputs[0]) for output in outputs)
        if self.engine is None or not direct:
            fill(outputs, self.symmetric, lambda left, right: self.tile(left, right, kernels))
            return
        self.engine.fill(outputs, kernels)
        if self.paired:
            exact = self.equation.diagonal(slice(len(self.rows)))
            for output, name in zip(outputs, kernels, strict=True):
                output.diagonal().copy_(getattr(exact, name))

    def _direct(self, output: Any, first: Any) -> bool:
        """Whether an engine may write there: contiguous rows, and all outputs laid out alike."""
        if not isinstance(output, Tensor) or output.dtype != self.rows.dtype or output.device != self.rows.device:
            return False
        return output.stride() == first.stride() and output.stride(1) == 1

    def diagonal(self, kernel: str) -> Tensor:
        """The kernel of every sample of the rows with itself, (n,)."""
        exact: Tensor = getattr(self.equation.diagonal(slice(len(self.rows))), kernel)
        return exact.to(self.rows)

    def _plain_tile(self, left: slice, right: slice, kernels: tuple[str, ...]) -> tuple[Tensor, ...]:
        n = len(self.rows)
        shifted = right if self.symmetric else slice(n + right.start, n + right.stop)
        gram = self.rows[left].to(torch.float64) @ self.columns[right].to(torch.float64).T
        own = self._own(left, right)
        if own is not None:
            gram[own] = 0.0  # the diagonal has its own exact formula, and ρ = 1 is the hardest pair
        found = self.equation.tile(left, shifted, gram)
        return tuple(getattr(found, name).to(self.rows.dtype) for name in kernels)

    def _own(self, left: slice, right: slice) -> tuple[Tensor, Tensor] | None:
        return on_diagonal(left, right, self.rows.device) if self.paired else None


PreparedKernel = Prepared | PreparedImages
"""What gives tiles, whole kernels and diagonals."""


def prepare(
    net: Network,
    x: Array,
    x2: Array | None = None,
    tau0: float | None = None,
    *,
    tangent: bool = True,
    fused: bool = True,
    eager: bool = False,
) -> PreparedKernel:
    """The O(n) part of a kernel: variances, moments and coefficients of every sample.

    Args:
        net: An `Implicit` or an `Explicit` network, or a `Convolutional` one.
        x: Samples (n, p), or images.
        x2: Other samples; x itself by default.
        tau0: The norm at which a DEQ is centred; that of x by default.
        tangent: Whether a network without a tangent kernel is an error.
        fused, eager: As in `Prepared`.
    """
    if isinstance(net, Convolutional):
        given, others = images(x), None if x2 is None else images(x2, "x2")
        if given[0, 0].numel() > 1 or net.patches(given.shape[2:]).size > 1:
            return prepare_images(net, given, others, tau0, tangent=tangent)
        net, x, x2 = net.net, given.flatten(1), None if others is None else others.flatten(1)
    rows = samples(x)
    columns = rows if x2 is None else samples(x2, "x2").to(rows)
    check_features(rows, columns)
    norms2 = squared_norms(rows)
    both = norms2 if x2 is None else torch.cat([norms2, squared_norms(columns)])
    equation = equation_of_norms(net, both, tau0, norms2, tangent)
    diagonal = equation.diagonal(slice(None))
    check_range(diagonal.conjugate, rows.dtype, f"The conjugate kernel of {net}")
    if tangent:
        check_tangent(net, diagonal, both, tau0)
        check_range(diagonal.tangent, rows.dtype, f"The tangent kernel of {net}")
    paired = x2 is None or (rows.shape == columns.shape and torch.equal(rows, columns))
    if isinstance(equation, ImplicitPairs) and equation.several_roots:
        equation.tell_apart(rows if x2 is None else torch.cat([rows, columns]))
    return Prepared(rows, columns, equation, x2 is None, fused, eager, paired)


def check_features(x: Tensor, x2: Tensor) -> None:
    if x.shape[1] != x2.shape[1]:
        raise BadInput(f"x has {x.shape[1]} features and x2 has {x2.shape[1]}; they must agree.")


def equation_of_norms(
    net: Network, norms2: Tensor, tau0: float | None, of: Tensor | None = None, tangent: bool = False
) -> Pairs:
    """The equation of `net` on samples with these ‖x_i‖² in float64, with a DEQ centred at τ0.

    Args:
        net: An `Implicit` or an `Explicit` network.
        norms2: ‖x_i‖², (n,).
        tau0: The norm at which a DEQ is centred.
        of: The squared norms that give τ0 unless it is given; `norms2` by default.
        tangent: Whether the remedy in an error must have a tangent kernel too.
    """
    if isinstance(net, Explicit):
        return ExplicitPairs(net, norms2)
    if not isinstance(net, Implicit):
        raise BadInput(f"Expected an Implicit or an Explicit network, got {type(net).__name__}.")
    if tau0 is not None:
        tau0 = norm(tau0)
    elif net.centre:
        tau0 = root_mean_square(norms2 if of is None else of)
    try:
        equation = ImplicitPairs(net if tau0 is None else net.centred(tau0), norms2)
    except NotContractive as error:
        if not net.centre:
            raise
        # The bound in `error` holds for the present offset, which is another one for every σ_a².
        raise no_equilibrium(net, norms2, tau0, tangent, error.data) from None
    warn_of_implicit(net, float(equation.moments.q.max()))
    return equation
