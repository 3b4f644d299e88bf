"""Random features of a DEQ, or of the explicit network matched to it, as a scikit-learn transformer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from torch import Tensor, nn

from notsodeep.estimators.inputs import Standardised, build_deq, build_matched, generator
from notsodeep.models.training.readout import in_batches


class _Features(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Standardised):
    def __init__(
        self,
        activation: Any = "relu",
        var_a: float = 0.2,
        var_b: float | None = None,
        width: int = 512,
        standardise: bool = True,
        random_state: Any = None,
    ) -> None:
        self.activation = activation
        self.var_a = var_a
        self.var_b = var_b
        self.width = width
        self.standardise = standardise
        self.random_state = random_state

    @abstractmethod
    def _build(self, x: Tensor, draw: torch.Generator) -> nn.Module: ...

    def fit(self, X: Any, y: Any = None) -> Any:  # noqa: ARG002 (scikit-learn passes it)
        """Take the mean and scale of X, and draw the weights."""
        x = self._fit_inputs(X)
        self.network_ = self._build(x, generator(self.random_state))
        self._n_features_out = self.width
        return self

    def transform(self, X: Any) -> Any:
        """(n, width): z* of each sample."""
        x = self._inputs(X)
        features = in_batches(self.network_, x.to(next(self.network_.parameters()).dtype))
        return features.to(x.dtype).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class DEQFeatures(_Features):
    """z* of a DEQ with random weights: features whose inner products approach its conjugate kernel as the width grows."""

    def _build(self, x: Tensor, draw: torch.Generator) -> nn.Module:
        return build_deq(self._implicit(), x, self.width, None, draw)


class ExplicitFeatures(_Features):
    """The features of the explicit network that is matched to that DEQ: nearly the same kernel, without its iterations."""

    def __init__(
        self,
        activation: Any = "relu",
        var_a: float = 0.2,
        var_b: float | None = None,
        family: str = "auto",
        width: int = 512,
        standardise: bool = True,
        random_state: Any = None,
    ) -> None:
        super().__init__(activation, var_a, var_b, width, standardise, random_state)
        self.family = family

    def _build(self, x: Tensor, draw: torch.Generator) -> nn.Module:
        return build_matched(self._implicit(), self.family, x, self.width, None, draw)
