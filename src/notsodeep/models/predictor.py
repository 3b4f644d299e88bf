"""Networks that answer for raw rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from notsodeep.arguments import instance
from notsodeep.arrays import Array, like, samples
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.data.standardiser import Standardiser, once
from notsodeep.data.targets import Targets
from notsodeep.errors import BadInput
from notsodeep.models.training.readout import in_batches


class Predictor(nn.Module):
    """Base of the networks: their preprocessing, where it is known, which files and exports carry.

    A network itself takes rows as it was trained on them; `predict` and its exports take raw ones.
    """

    in_features: int
    out_features: int | None
    _preprocessing: Preprocessing | None = None  # of the class, as networks of older pickles have none

    @property
    def preprocessing(self) -> Preprocessing | None:
        """What leads from raw rows to the inputs and from the outputs to answers; None where it is not known."""
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, given: Preprocessing | None) -> None:
        if given is not None:
            instance(given, Preprocessing, "preprocessing", "a Preprocessing, or None")
            given.check(self.in_features, self.out_features)
        self._preprocessing = given

    @property
    def standardiser(self) -> Standardiser | None:
        """Mean and scale of the raw rows, where they are known."""
        return None if self._preprocessing is None else self._preprocessing.standardiser

    @property
    def classes(self) -> tuple[str, ...] | tuple[int, ...] | None:
        """Names or numbers of the classes, where they are known."""
        return None if self._preprocessing is None else self._preprocessing.classes

    def predict(self, x: Array) -> Any:
        """The answers for raw rows.

        Args:
            x: Samples as they were measured, (n, p).

        Returns:
            The names of their classes, in a numpy array, or their numbers, (n,); or the numbers that the network predicts, in
            their own units, (n,), or (n, K) for K outputs.

        Raises:
            BadInput: `x` does not fit the network, or its preprocessing is not known.
        """
        if self._preprocessing is None:
            raise BadInput(
                "The preprocessing of this network is not known, so it cannot answer for raw rows. Set it, with x as it was "
                "before training: network.preprocessing = nsd.data.Preprocessing(nsd.data.Standardiser.of(x), "
                "classes=('no', 'yes')); a network trained on raw rows has Preprocessing()."
            )
        rows = samples(x)
        if rows.shape[1] != self.in_features:
            raise BadInput(
                f"x has {rows.shape[1]} features, and the network takes {self.in_features}: give the columns of its data."
            )
        weight = next(self.parameters())
        inputs = self._preprocessing.inputs(rows.to(weight.device), weight.dtype)
        answers = self._preprocessing.answers(in_batches(self, inputs))
        return like(x)(answers) if isinstance(answers, Tensor) else answers


def taken(network: Predictor, x: Tensor) -> Tensor:
    """Samples x as the network takes them: raw ones are standardised, where it is known how."""
    known = network.standardiser
    return x if known is None or x.shape[1] != known.features else once(known, x)


def learnt(network: Predictor, labels: Targets) -> Targets:
    """Labels as the network learnt them: numbers in their own units are scaled, where it is known how."""
    known = None if network.preprocessing is None else network.preprocessing.targets
    if known is None or labels.classes is not None or labels.outputs != known.features:
        return labels
    return replace(labels, source=once(known, labels.read()))
