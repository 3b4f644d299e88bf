"""Networks as scikit-learn estimators: a DEQ, or the explicit network matched to it, to classify, regress or transform."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_random_state
from torch import Tensor

from notsodeep.arguments import count, positive
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.estimators.base import Classifies, Learner, Regresses, Standardised, radius, ridges
from notsodeep.kernels.names import Match, as_match
from notsodeep.matching.design import design
from notsodeep.matching.fitted import Fitted
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.predictor import Predictor
from notsodeep.models.training.fit import fit as train
from notsodeep.models.training.objective import Batches
from notsodeep.models.training.readout import fit_readout, in_batches, scale_to_logits
from notsodeep.theory.architecture import Explicit, Implicit

_TRIAL_SAMPLES = 300


class _Built(Standardised):
    """An estimator with a network of its own."""

    width: int

    @abstractmethod
    def _build(self, x: Tensor, outputs: int | None, draw: torch.Generator) -> Predictor:
        """The network for samples x; without `outputs`, of its features."""


class _Deq(_Built):
    def _build(self, x: Tensor, outputs: int | None, draw: torch.Generator) -> Predictor:
        bias, net = outputs is not None, self._implicit()
        return DEQ(net, x.shape[1], self.width, outputs, readout_bias=bias, generator=draw, dtype=x.dtype, tau0=radius(x))


@dataclass(eq=False, repr=False)
class _Matched(_Built):
    family: Any = "matched"
    match: str = "conjugate"

    def _build(self, x: Tensor, outputs: int | None, draw: torch.Generator) -> Predictor:
        bias, net = outputs is not None, _design(self._implicit(), self.family, as_match(self.match), x)
        return ENN(net, x.shape[1], self.width, outputs, readout_bias=bias, generator=draw, dtype=x.dtype)


@dataclass(eq=False, repr=False)
class _Network(Learner, _Built):
    """A network whose readout is fitted in closed form; with `epochs`, all weights are trained afterwards."""

    activation: Any = "relu"
    var_a: float = 0.2
    var_b: float | None = None
    width: int = 512
    ridge: float | None = None
    epochs: int = 0
    rate: float = 1e-2
    batch_size: int = 128
    standardise: bool = True
    random_state: Any = None

    def _learn(self, x: Tensor, y: Tensor, outputs: int) -> None:
        draw, epochs = _generator(self.random_state), count(self.epochs, "epochs", least=0)
        self.network_ = self._build(x, outputs, draw)
        self.network_.preprocessing = self.preprocessing_
        self.ridge_ = fit_readout(self.network_, Batches(x, y, 1024), ridges(self.ridge)).ridge
        if epochs:
            if not y.is_floating_point():
                scale_to_logits(self.network_, Batches(x, y, 1024, draw))
            optimiser = torch.optim.AdamW(self.network_.parameters(), lr=positive(self.rate, "rate"))
            train(self.network_, Batches(x, y, self.batch_size, draw), epochs, optimiser=optimiser, progress=False)

    def _outputs(self, x: Tensor) -> Tensor:
        return in_batches(self.network_, x.to(next(self.network_.parameters()).dtype))


class DEQClassifier(Classifies, _Deq, _Network):
    """Classify with a DEQ: random features z*, a ridge readout of one-hot classes, then `epochs` of training on all weights.

    Args:
        activation: φ: a name, an `Activation`, or any torch callable.
        var_a: σ_a².
        var_b: σ_b²; 1 − σ_a² by default.
        width: The number of units.
        ridge: The ridge of the readout, over the mean square of a feature; None takes the one of least leave-one-out error.
        epochs: Epochs of training; with 0 the features stay as they were drawn.
        rate: The learning rate of AdamW.
        batch_size: Samples per step of training.
        standardise: Whether to centre X and divide it by its root mean square norm.
        random_state: The seed of the weights and of the order of samples.
    """


class DEQRegressor(Regresses, _Deq, _Network):
    """Predict numbers with a DEQ: random features z*, a ridge readout, then `epochs` of training on all weights.

    Args:
        activation, var_a, var_b, width, ridge, epochs, rate, batch_size, standardise, random_state: As in
            `DEQClassifier`.
    """


@dataclass(eq=False, repr=False)
class ExplicitClassifier(Classifies, _Matched, _Network):
    """Classify with the explicit network that is matched to the DEQ of the same parameters.

    Args:
        activation, var_a, var_b: φ, σ_a² and σ_b² of the DEQ, as in `DEQClassifier`.
        width, ridge, epochs, rate, batch_size, standardise, random_state: As in `DEQClassifier`.
        family: The family of the explicit network, as in `design`: "matched", or "auto" for the nearest on the data,
            which takes a second or two longer.
        match: The kernel that must agree, "conjugate", "tangent" or "both", as in `design`: of both, gains of the layers match
            the tangent one, which counts where `epochs` of training follow.
    """


@dataclass(eq=False, repr=False)
class ExplicitRegressor(Regresses, _Matched, _Network):
    """Predict numbers with the explicit network that is matched to the DEQ of the same parameters.

    Args:
        activation, var_a, var_b: φ, σ_a² and σ_b² of the DEQ, as in `DEQClassifier`.
        width, ridge, epochs, rate, batch_size, standardise, random_state: As in `DEQClassifier`.
        family, match: As in `ExplicitClassifier`.
    """


@dataclass(eq=False, repr=False)
class _Features(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Built):
    """A transformer to the features of a network with random weights."""

    activation: Any = "relu"
    var_a: float = 0.2
    var_b: float | None = None
    width: int = 512
    standardise: bool = True
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> Any:  # noqa: ARG002 (scikit-learn passes it)
        """Take the mean and scale of samples X (n, p), draw the weights, and return the estimator."""
        x, _ = self._fit_inputs(X)
        self.network_ = self._build(x, None, _generator(self.random_state))
        self.network_.preprocessing = Preprocessing(self.standardiser_)
        self._n_features_out = self.width
        return self

    def transform(self, X: Any) -> Any:
        """The features of samples X (n, p), (n, width)."""
        x = self._inputs(X)
        features = in_batches(self.network_, x.to(next(self.network_.parameters()).dtype))
        return features.to(x.dtype).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class DEQFeatures(_Deq, _Features):
    """z* of a DEQ with random weights: features whose inner products approach its conjugate kernel as the width grows.

    Args:
        activation, var_a, var_b, standardise, random_state: As in `DEQClassifier`.
        width: The number of features.
    """


@dataclass(eq=False, repr=False)
class ExplicitFeatures(_Matched, _Features):
    """Features of the explicit network that is matched to a DEQ: nearly the same kernel, without the DEQ's iterations.

    Args:
        activation, var_a, var_b: φ, σ_a² and σ_b² of the DEQ, as in `DEQFeatures`.
        width, standardise, random_state: As in `DEQFeatures`.
        family, match: As in `ExplicitClassifier`.
    """


def _design(net: Implicit, family: str | Fitted, match: Match, x: Tensor) -> Explicit:
    if isinstance(family, str) and not family.startswith(("auto", "fitted")) and match is not Match.BOTH:
        known = _design_by_radius(net, family, match, radius(x))
        if known is not None:
            return known
    some = x[:_TRIAL_SAMPLES] if bool(x.any()) else None  # equal samples, centred, have nothing to fit to
    return design(net, x=some, tau0=radius(x), family=family, match=match).explicit


@lru_cache(maxsize=256)
def _design_by_radius(net: Implicit, family: str, match: Match, tau0: float) -> Explicit | None:
    """The design if it depends on τ0 alone, for cross-validation; the length of a Hermite design depends on the data."""
    found = design(net, tau0=tau0, family=family, match=match)
    return None if found.family.startswith("hermite") and ":" not in family else found.explicit


def _generator(random_state: Any) -> torch.Generator:
    """A torch generator from scikit-learn's `random_state`."""
    return torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
