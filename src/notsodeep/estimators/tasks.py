"""What an estimator is asked for: classes, or numbers. How it learns them is its own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from notsodeep.arrays import real
from notsodeep.estimators.inputs import Standardised


class Learner(Standardised):
    """Learns outputs (n, K) for samples x: `_learn` from class numbers (n,) or real targets (n, K), `_outputs` for new ones."""

    @abstractmethod
    def _learn(self, x: Tensor, y: Tensor, outputs: int) -> None: ...

    @abstractmethod
    def _outputs(self, x: Tensor) -> Tensor: ...


class Classifies(ClassifierMixin, Learner):
    """The class of the largest output."""

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to samples X (n, p) of classes y (n,)."""
        x, labels = self._fit_inputs_with(X, y)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        self._learn(x, torch.from_numpy(numbers), len(self.classes_))
        return self

    def decision_function(self, X: Any) -> Any:
        """The outputs, (n, K); for two classes the second less the first, (n,)."""
        out = self._outputs(self._inputs(X)).numpy()
        return out[:, 1] - out[:, 0] if out.shape[1] == 2 else out

    def predict(self, X: Any) -> Any:
        """One class a sample, of those that `fit` saw."""
        chosen = self._outputs(self._inputs(X)).argmax(1).numpy()
        return self.classes_[chosen]


class Regresses(RegressorMixin, Learner):
    """The outputs themselves, in the units of y; they are learnt about the mean of y, and with size 1."""

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to samples X (n, p) with numbers y, (n,) or (n, K)."""
        x, numbers = self._fit_inputs_with(X, y, y_numeric=True, multi_output=True)
        targets = real(numbers, "y", dtype=torch.float64).numpy()
        self.target_shape_ = targets.shape[1:]
        targets = targets.reshape(len(targets), -1)
        self.target_mean_ = targets.mean(0)
        self.target_scale_ = float(targets.std()) or 1.0
        scaled = torch.from_numpy((targets - self.target_mean_) / self.target_scale_)
        self._learn(x, scaled.to(x.dtype), targets.shape[1])
        return self

    def predict(self, X: Any) -> Any:
        """(n,) or (n, K), as y was."""
        learnt = self._outputs(self._inputs(X)).numpy()
        out = (learnt * self.target_scale_ + self.target_mean_).astype(learnt.dtype)
        return out.reshape(len(out), *self.target_shape_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
