"""Labels to score a network by: classes, or numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from notsodeep._types import Array
from notsodeep.errors import BadInput


@dataclass(frozen=True, eq=False)
class Labels:
    """``targets`` (n, K) to regress on, and how an answer is scored: accuracy of classes, R² of numbers."""

    targets: Tensor
    classes: Tensor | None

    @staticmethod
    def of(y: Array, n: int) -> Labels:
        """Whole numbers (n,) are classes; real numbers, (n,) or (n, K), are to be predicted as they are."""
        values = torch.from_numpy(np.asarray(y)) if isinstance(y, np.ndarray) else torch.as_tensor(y).detach().cpu()
        if len(values) != n or values.ndim not in (1, 2):
            raise BadInput(f"x has {n} samples and y has shape {tuple(values.shape)}; give one label a sample.")
        if values.is_floating_point():
            if not bool(torch.isfinite(values).all()):
                raise BadInput("y holds NaN or infinity; drop these samples first.")
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
    def measure(self) -> str:
        return "R²" if self.classes is None else "accuracy"

    def score(self, outputs: Tensor, chosen: Tensor) -> float:
        """Of outputs (k, K) on the chosen k of the samples."""
        if self.classes is not None:
            return float((outputs.argmax(1).cpu() == self.classes[chosen]).double().mean())
        wanted = self.targets[chosen]
        missed = (outputs.cpu().double() - wanted).square().sum()
        return float(1.0 - missed / (wanted - wanted.mean(0)).square().sum())
