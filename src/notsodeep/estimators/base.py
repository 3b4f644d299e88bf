"""Bases of the scikit-learn estimators: standardised inputs, and targets that are classes or numbers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from notsodeep.arguments import flag, not_negative
from notsodeep.arrays import real
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.data.standardiser import Standardiser, rounded_tau0
from notsodeep.errors import BadInput
from notsodeep.models.training.readout import RIDGES
from notsodeep.theory.architecture import Implicit

_DTYPES = [np.float64, np.float32]


class Standardised(BaseEstimator):
    """Base of every estimator: X is centred and divided by its root mean square norm, so τ0 = 1, unless `standardise=False`.

    Estimators are dataclasses, since scikit-learn reads their parameters from the signature of the constructor.
    """

    activation: Any
    var_a: float
    var_b: float | None
    standardise: bool

    def _fit_inputs(self, X: Any, *y: Any, **checks: Any) -> tuple[Tensor, Any]:
        """X, scaled, and y, if given; the mean and scale are kept for other data."""
        found = validate_data(self, X, *y, dtype=_DTYPES, **checks)
        rows, labels = found if y else (found, None)
        x = _tensor(rows)
        self.standardiser_ = Standardiser(torch.zeros(x.shape[1], dtype=torch.float64), 1.0)
        if flag(self.standardise, "standardise"):
            self.standardiser_ = _standardiser(x)
        return self.standardiser_(x), labels

    def _inputs(self, X: Any) -> Tensor:
        """X, scaled by the mean and scale of the data of `fit`."""
        check_is_fitted(self)
        return self.standardiser_(_tensor(validate_data(self, X, dtype=_DTYPES, reset=False)))

    def _implicit(self) -> Implicit:
        return Implicit(self.activation, self.var_a, self.var_b)


class Learner(Standardised):
    """Base of classifiers and regressors: outputs (n, K) are learnt from classes (n,) or from real targets (n, K)."""

    @abstractmethod
    def _learn(self, x: Tensor, y: Tensor, outputs: int) -> None: ...

    @abstractmethod
    def _outputs(self, x: Tensor) -> Tensor: ...


class Classifies(ClassifierMixin, Learner):
    """A learner that predicts the class of the largest output."""

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to samples X (n, p) of classes y (n,), and return the estimator."""
        x, labels = self._fit_inputs(X, y)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        self.preprocessing_ = Preprocessing(self.standardiser_, classes=tuple(self.classes_.tolist()))
        self._learn(x, torch.from_numpy(numbers), len(self.classes_))
        return self

    def decision_function(self, X: Any) -> Any:
        """The outputs of samples X (n, p): (n, K), or for two classes the second minus the first, (n,)."""
        out = self._outputs(self._inputs(X)).numpy()
        return out[:, 1] - out[:, 0] if out.shape[1] == 2 else out

    def predict(self, X: Any) -> Any:
        """The classes of samples X (n, p), (n,), among those of `fit`."""
        chosen = self._outputs(self._inputs(X)).argmax(1).numpy()
        return self.classes_[chosen]


class Regresses(RegressorMixin, Learner):
    """A learner that predicts numbers; it learns y about its mean, divided by the root mean square norm about it."""

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to samples X (n, p) with numbers y, (n,) or (n, K), and return the estimator."""
        x, numbers = self._fit_inputs(X, y, y_numeric=True, multi_output=True)
        targets = real(numbers, "y", dtype=torch.float64)
        self.target_shape_ = tuple(targets.shape[1:])
        targets = targets.reshape(len(targets), -1)
        units = _standardiser(targets)
        self.preprocessing_ = Preprocessing(self.standardiser_, targets=units)
        self._learn(x, units(targets).to(x.dtype), targets.shape[1])
        return self

    def predict(self, X: Any) -> Any:
        """The numbers of samples X (n, p): (n,) or (n, K), as y of `fit`."""
        learnt = self._outputs(self._inputs(X))
        out = self.preprocessing_.answers(learnt)
        return np.asarray(out).reshape(len(out), *self.target_shape_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def ridges(ridge: Any) -> tuple[float, ...]:
    """The given ridge, or the candidates to choose from."""
    return RIDGES if ridge is None else (not_negative(ridge, "ridge", ", or None to have it chosen"),)


def radius(x: Tensor) -> float:
    """τ0 of x to six digits; 1 if every sample is zero."""
    return rounded_tau0(x) if bool(x.any()) else 1.0


def _standardiser(x: Tensor) -> Standardiser:
    """The statistics of samples; equal ones have no scale."""
    try:
        return Standardiser.of(x)
    except BadInput:
        return Standardiser(x[0].double(), 1.0)


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array, order="C"))  # a copy, as arrays may be read-only
