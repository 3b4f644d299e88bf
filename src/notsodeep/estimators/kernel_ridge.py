"""Kernel ridge regression with the infinite-width kernel of a DEQ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import choice
from notsodeep.estimators.inputs import radius, ridges
from notsodeep.estimators.tasks import Classifies, Learner, Regresses
from notsodeep.kernels.exact.kernels import conjugate_kernel, tangent_kernel
from notsodeep.kernels.names import OF_OUTPUTS, as_kernel
from notsodeep.kernels.structured.equivalent import equivalent_cross, equivalent_kernel
from notsodeep.kernels.structured.sharp import sharp_cross, sharp_kernel
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.linalg.ridge import kernel_ridge
from notsodeep.models.training.objective import targets_of
from notsodeep.models.training.readout import in_batches
from notsodeep.theory.architecture import Implicit
from notsodeep.theory.statistics import MixtureStatistics

Gram = Tensor | LowRankPlusDiagonal


@dataclass(frozen=True)
class _Form:
    """A kernel of x with itself, and of new samples with x; both centred at τ0 of x."""

    square: Callable[[Implicit, Tensor, str, float], Gram]
    cross: Callable[[Implicit, Tensor, Tensor, str, float], Tensor]


def _exact(net: Implicit, x: Tensor, x2: Tensor | None, kernel: str, at: float) -> Tensor:
    compute = conjugate_kernel if kernel == "conjugate" else tangent_kernel
    found: Tensor = compute(net, x, x2, tau0=at)
    return found


_FORMS = {
    "exact": _Form(
        square=lambda net, x, kernel, at: _exact(net, x, None, kernel, at),
        cross=_exact,
    ),
    "sharp": _Form(
        square=lambda net, x, kernel, at: sharp_kernel(net, x, kernel, tau0=at),
        cross=lambda net, new, x, kernel, at: sharp_cross(net, new, x, kernel, tau0=at),
    ),
    "equivalent": _Form(
        square=lambda net, x, kernel, _: equivalent_kernel(net, x, MixtureStatistics.from_data(x), kernel),
        cross=lambda net, new, x, kernel, _: equivalent_cross(net, new, x, kernel),
    ),
}


class _KernelRidge(Learner):
    """α = (K + λI)⁻¹ (y − ȳ), λ = ridge·tr K/n; new samples get k·α + ȳ."""

    def __init__(
        self,
        activation: Any = "relu",
        var_a: float = 0.2,
        var_b: float | None = None,
        kernel: str = "conjugate",
        form: str = "exact",
        ridge: float | None = None,
        standardise: bool = True,
    ) -> None:
        self.activation = activation
        self.var_a = var_a
        self.var_b = var_b
        self.kernel = kernel
        self.form = form
        self.ridge = ridge
        self.standardise = standardise

    def _learn(self, x: Tensor, y: Tensor, outputs: int) -> None:
        choice(self.form, "form", _FORMS)
        as_kernel(self.kernel, OF_OUTPUTS)
        targets = targets_of(y, outputs).to(x.dtype)
        self.tau0_ = radius(x)
        gram = _FORMS[self.form].square(self._implicit(), x, self.kernel, self.tau0_)
        alpha, self.ridge_ = kernel_ridge(gram, targets - targets.mean(0), ridges(self.ridge))
        self.X_fit_, self.dual_coef_, self.intercept_ = (part.numpy() for part in (x, alpha, targets.mean(0)))

    def _outputs(self, x: Tensor) -> Tensor:
        old, alpha, mean = (torch.from_numpy(part).to(x) for part in (self.X_fit_, self.dual_coef_, self.intercept_))
        cross, net = _FORMS[self.form].cross, self._implicit()
        return in_batches(lambda rows: cross(net, rows, old, self.kernel, self.tau0_) @ alpha + mean, x)


class ImplicitKernelRidge(Regresses, _KernelRidge):
    """Predict numbers by kernel ridge regression with the kernel of an infinitely wide DEQ.

    `kernel` is "conjugate" or "tangent"; `form` is "exact", "sharp" or "equivalent" (see `sharp_kernel`, `equivalent_kernel`).
    `ridge` is relative to the kernel's mean diagonal; None takes the one of the smallest leave-one-out error.
    """


class ImplicitKernelClassifier(Classifies, _KernelRidge):
    """Classify by kernel ridge regression on one-hot classes; the parameters are those of `ImplicitKernelRidge`."""
