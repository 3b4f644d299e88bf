"""From scikit-learn's arrays to tensors of root mean square norm 1, and back."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor, nn

from notsodeep.arguments import flag, instance, not_negative
from notsodeep.data.standardiser import Standardiser
from notsodeep.errors import BadInput
from notsodeep.matching.design import design
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.training.readout import RIDGES
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.statistics import tau0

_DTYPES = [np.float64, np.float32]
_TRIAL_SAMPLES = 300


class Standardised(BaseEstimator):
    """What every estimator here does to X unless told not to: less its mean, over its root mean square norm, so that τ0 = 1."""

    activation: Any
    var_a: float
    var_b: float | None
    standardise: bool

    def _fit_inputs(self, X: Any) -> Tensor:
        """X, scaled; the mean and the scale are remembered."""
        return self._remember(_tensor(validate_data(self, X, dtype=_DTYPES)))

    def _fit_inputs_with(self, X: Any, y: Any, **checks: Any) -> tuple[Tensor, Any]:
        """The same, with y of as many samples."""
        rows, labels = validate_data(self, X, y, dtype=_DTYPES, **checks)
        return self._remember(_tensor(rows)), labels

    def _remember(self, rows: Tensor) -> Tensor:
        self.standardiser_ = Standardiser(torch.zeros(rows.shape[1], dtype=torch.float64), 1.0)
        if flag(self.standardise, "standardise"):
            try:
                self.standardiser_ = Standardiser.of(rows)
            except BadInput:  # equal samples have no scale of their own
                self.standardiser_ = Standardiser(rows[0].double(), 1.0)
        return self.standardiser_(rows)

    def _inputs(self, X: Any) -> Tensor:
        """X as `fit` scaled its own."""
        check_is_fitted(self)
        return self.standardiser_(_tensor(validate_data(self, X, dtype=_DTYPES, reset=False)))

    def _implicit(self) -> Implicit:
        return Implicit(self.activation, self.var_a, self.var_b)


def generator(random_state: Any) -> torch.Generator:
    """A torch generator from what scikit-learn takes for random_state."""
    return torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))


def ridges(ridge: Any) -> tuple[float, ...]:
    """The one given, or all those to choose from."""
    if ridge is None:
        return RIDGES
    return (not_negative(ridge, "ridge", ", or None to have it chosen"),)


def radius(x: Tensor) -> float:
    """τ0 of x, without the last digits, which are rounding: 1 for standardised data, and where every sample is zero."""
    return float(f"{tau0(x):.6g}") if bool(x.any()) else 1.0


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array, order="C"))  # a copy: arrays may be read-only


def build_deq(net: Implicit, x: Tensor, width: int, outputs: int | None, draw: torch.Generator) -> nn.Module:
    """A DEQ for data like x."""
    return DEQ(net, x.shape[1], width, outputs, **_options(x, outputs, draw), tau0=radius(x))


def build_matched(
    net: Implicit, family: str, x: Tensor, width: int, outputs: int | None, draw: torch.Generator
) -> nn.Module:
    """The explicit network matched to that DEQ."""
    instance(
        family, str, "family", "a word, as in design(family='auto')"
    )  # what cannot be hashed is no key of the cache
    explicit = _designed(net, family, radius(x))
    if explicit is None:  # a Hermite design of unknown length: the data chooses
        explicit = design(net, x=x[:_TRIAL_SAMPLES], tau0=radius(x), family=family).explicit
    return ENN(explicit, x.shape[1], width, outputs, **_options(x, outputs, draw))


@lru_cache(maxsize=256)
def _designed(net: Implicit, family: str, tau0: float) -> Explicit | None:
    """The design, where it depends on the data's τ0 alone: cross-validation asks for the same one again and again."""
    found = design(net, tau0=tau0, family=family)
    return None if found.family.startswith("hermite") and ":" not in family else found.explicit


def _options(x: Tensor, outputs: int | None, draw: torch.Generator) -> dict[str, Any]:
    return {"readout_bias": outputs is not None, "generator": draw, "dtype": x.dtype}
