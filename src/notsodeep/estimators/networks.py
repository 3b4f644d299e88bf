"""Networks with scikit-learn's manners: a DEQ, or the explicit network matched to it, that classifies or predicts numbers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.arguments import count, positive
from notsodeep.estimators.inputs import build_deq, build_matched, generator, ridges
from notsodeep.estimators.tasks import Classifies, Learner, Regresses
from notsodeep.models.training.fit import fit as train
from notsodeep.models.training.objective import Batches
from notsodeep.models.training.readout import fit_readout, in_batches, scale_to_logits


class _Network(Learner):
    """A network whose readout is fitted in closed form and which is then, if asked, trained as a whole."""

    def __init__(
        self,
        activation: Any = "relu",
        var_a: float = 0.2,
        var_b: float | None = None,
        width: int = 512,
        ridge: float | None = None,
        epochs: int = 0,
        rate: float = 1e-2,
        batch_size: int = 128,
        standardise: bool = True,
        random_state: Any = None,
    ) -> None:
        self.activation = activation
        self.var_a = var_a
        self.var_b = var_b
        self.width = width
        self.ridge = ridge
        self.epochs = epochs
        self.rate = rate
        self.batch_size = batch_size
        self.standardise = standardise
        self.random_state = random_state

    @abstractmethod
    def _build(self, x: Tensor, outputs: int, draw: torch.Generator) -> nn.Module: ...

    def _learn(self, x: Tensor, y: Tensor, outputs: int) -> None:
        draw, epochs = generator(self.random_state), count(self.epochs, "epochs", least=0)
        self.network_ = self._build(x, outputs, draw)
        self.ridge_ = fit_readout(self.network_, Batches(x, y, 1024), ridges(self.ridge)).ridge
        if epochs:
            if not y.is_floating_point():
                scale_to_logits(self.network_, Batches(x, y, 1024, draw))
            optimiser = torch.optim.AdamW(self.network_.parameters(), lr=positive(self.rate, "rate"))
            train(self.network_, Batches(x, y, self.batch_size, draw), epochs, optimiser=optimiser, progress=False)

    def _outputs(self, x: Tensor) -> Tensor:
        return in_batches(self.network_, x.to(next(self.network_.parameters()).dtype))


class _Deq(_Network):
    def _build(self, x: Tensor, outputs: int, draw: torch.Generator) -> nn.Module:
        return build_deq(self._implicit(), x, self.width, outputs, draw)


class _Matched(_Network):
    def __init__(  # scikit-learn reads the parameters off this line
        self,
        activation: Any = "relu",
        var_a: float = 0.2,
        var_b: float | None = None,
        family: str = "auto",
        width: int = 512,
        ridge: float | None = None,
        epochs: int = 0,
        rate: float = 1e-2,
        batch_size: int = 128,
        standardise: bool = True,
        random_state: Any = None,
    ) -> None:
        super().__init__(activation, var_a, var_b, width, ridge, epochs, rate, batch_size, standardise, random_state)
        self.family = family

    def _build(self, x: Tensor, outputs: int, draw: torch.Generator) -> nn.Module:
        return build_matched(self._implicit(), self.family, x, self.width, outputs, draw)


class DEQClassifier(Classifies, _Deq):
    """Classify with a DEQ: random features z*, a ridge readout of one-hot classes, then `epochs` of training on all weights.

    `ridge=None` takes the one of the smallest leave-one-out error. With `epochs=0`, the default, the features stay as drawn.
    """


class DEQRegressor(Regresses, _Deq):
    """Predict numbers with a DEQ; the parameters are those of `DEQClassifier`."""


class ExplicitClassifier(Classifies, _Matched):
    """Classify with the explicit network that is matched to the DEQ of the same parameters; `family` as in `design`."""


class ExplicitRegressor(Regresses, _Matched):
    """Predict numbers with the explicit network that is matched to the DEQ of the same parameters."""
