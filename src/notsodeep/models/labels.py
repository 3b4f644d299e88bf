"""Labels to score a network by: classes, or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.arrays import Array, label_array
from notsodeep.errors import BadInput
from notsodeep.models.training.objective import measure, score


@dataclass(frozen=True, eq=False)
class Labels:
    """``targets`` (n, K) to regress on, and how an answer is scored: accuracy of classes, R² of numbers."""

    targets: Tensor
    classes: Tensor | None

    @staticmethod
    def of(y: Array, n: int) -> Labels:
        """Whole numbers or words (n,) are classes; real numbers, (n,) or (n, K), are to be predicted as they are."""
        values = _as_tensor(y)
        if values.ndim not in (1, 2) or len(values) != n:
            raise BadInput(f"x has {n} samples and y has shape {tuple(values.shape)}; give one label a sample.")
        if values.is_floating_point():
            if not bool(torch.isfinite(values).all()):
                raise BadInput("y holds NaN or infinity; drop these samples first.")
            if bool((values == values[0]).all()):
                raise BadInput("y is the same number for every sample: there is nothing to predict.")
            return Labels(values.double().reshape(n, -1), None)
        if values.ndim == 2:
            raise BadInput(
                f"y holds whole numbers of shape {tuple(values.shape)}: classes are one number a sample, (n,)."
            )
        present, classes = values.unique(return_inverse=True)
        # Labels 0 … K − 1 stay what they are, so that they fit a network's K outputs even where a class is absent.
        if int(present[0]) >= 0 and int(present[-1]) < 2 * len(present) + 2:
            classes = values.long()
        return Labels(functional.one_hot(classes).double(), classes)

    @property
    def y(self) -> Tensor:
        return self.targets if self.classes is None else self.classes

    @property
    def measure(self) -> str:
        return measure(self.y)

    def score(self, outputs: Tensor, chosen: Tensor) -> float:
        """Of outputs (k, K) on the chosen k of the samples."""
        return score(outputs, self.y[chosen])


def _as_tensor(y: Any) -> Tensor:
    """Numbers as they are, words as whole numbers in alphabetical order."""
    if isinstance(y, Tensor) and y.is_complex():
        raise BadInput(f"y holds {y.dtype}; expected classes, or real numbers.")
    array = label_array(y)
    if array.dtype.kind in "USO":
        array = np.unique(array.astype(str), return_inverse=True)[1].reshape(array.shape)
    values = torch.from_numpy(np.array(array, dtype=np.float64 if array.dtype.kind == "f" else np.int64, order="C"))
    return values.to(torch.int64) if values.dtype == torch.bool else values
