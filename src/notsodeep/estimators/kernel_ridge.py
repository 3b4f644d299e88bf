"""Kernel ridge regression with the infinite-width kernel of a DEQ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from notsodeep.arguments import choice, instance
from notsodeep.data.targets import regression_targets
from notsodeep.estimators.base import Classifies, Learner, Regresses, radius, ridges
from notsodeep.kernels.exact.kernels import exact_kernel
from notsodeep.kernels.names import OF_OUTPUTS, as_kernel
from notsodeep.kernels.structured.equivalent import equivalent_cross, equivalent_kernel
from notsodeep.kernels.structured.sharp import sharp_cross, sharp_kernel
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.linalg.ridge import kernel_ridge
from notsodeep.models.training.readout import in_batches
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.statistics import MixtureStatistics

Gram = Tensor | LowRankPlusDiagonal


@dataclass(frozen=True)
class _Form:
    """Functions for the kernel of x with itself and of new samples with x, centred at τ0 of x."""

    square: Callable[[Network, Tensor, str, float], Gram]
    cross: Callable[[Network, Tensor, Tensor, str, float], Tensor]


_FORMS = {
    "exact": _Form(square=lambda net, x, kernel, at: exact_kernel(net, x, None, kernel, at), cross=exact_kernel),
    "sharp": _Form(
        square=lambda net, x, kernel, at: sharp_kernel(net, x, kernel, tau0=at),
        cross=lambda net, new, x, kernel, at: sharp_cross(net, new, x, kernel, tau0=at),
    ),
    "equivalent": _Form(
        square=lambda net, x, kernel, _: equivalent_kernel(net, x, MixtureStatistics.from_data(x), kernel),
        cross=lambda net, new, x, kernel, _: equivalent_cross(net, new, x, kernel),
    ),
}


@dataclass(eq=False, repr=False)
class _KernelRidge(Learner):
    """Kernel ridge regression of centred targets."""

    activation: Any = "relu"
    var_a: float = 0.2
    var_b: float | None = None
    kernel: str = "conjugate"
    form: str = "exact"
    ridge: float | None = None
    standardise: bool = True
    net: Any = None

    def _learn(self, x: Tensor, y: Tensor, outputs: int) -> None:
        choice(self.form, "form", _FORMS)
        as_kernel(self.kernel, OF_OUTPUTS)
        targets = regression_targets(y, outputs).to(x.dtype)
        self.tau0_ = radius(x)
        gram = _FORMS[self.form].square(self._network(), x, self.kernel, self.tau0_)
        alpha, self.ridge_ = kernel_ridge(gram, targets - targets.mean(0), ridges(self.ridge))
        self.X_fit_, self.dual_coef_, self.intercept_ = (part.numpy() for part in (x, alpha, targets.mean(0)))

    def _outputs(self, x: Tensor) -> Tensor:
        old, alpha, mean = (torch.from_numpy(part).to(x) for part in (self.X_fit_, self.dual_coef_, self.intercept_))
        cross, net = _FORMS[self.form].cross, self._network()
        return in_batches(lambda rows: cross(net, rows, old, self.kernel, self.tau0_) @ alpha + mean, x)

    def _network(self) -> Network:
        if self.net is None:
            return self._implicit()
        instance(self.net, (Implicit, Explicit), "net", "an Explicit or an Implicit network, or None")
        return cast(Network, self.net)


class ImplicitKernelRidge(Regresses, _KernelRidge):
    """Predict numbers by kernel ridge regression with the kernel of an infinitely wide DEQ.

    α = (K + λI)⁻¹ (y − ȳ) with λ = ridge·tr K/n; a new sample gets k·α + ȳ.

    Args:
        activation: φ: a name, an `Activation`, or any torch callable.
        var_a: σ_a².
        var_b: σ_b²; 1 − σ_a² by default.
        kernel: "conjugate" or "tangent".
        form: "exact", "sharp" (see `sharp_kernel`) or "equivalent" (see `equivalent_kernel`).
        ridge: λ relative to the mean diagonal of K; None takes the one of the smallest leave-one-out error.
        standardise: Whether to centre X and divide it by its root mean square norm.
        net: An `Implicit` or an `Explicit` whose kernel is taken in place of that of activation, var_a and var_b: that of a
            design, with gains, with layers of several kinds of units.
    """


class ImplicitKernelClassifier(Classifies, _KernelRidge):
    """Classify by kernel ridge regression on one-hot classes, with the kernel of an infinitely wide DEQ.

    Args:
        activation, var_a, var_b, kernel, form, ridge, standardise, net: As in `ImplicitKernelRidge`.
    """
