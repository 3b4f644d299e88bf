"""What a network is trained for: the loss of a batch, and its score."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.arguments import shown
from notsodeep.arrays import check_dense
from notsodeep.data.targets import class_indices, regression_targets
from notsodeep.errors import BadInput

Loss = Callable[[Tensor, Tensor], Tensor]


def usual_loss(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy where y is classes (n,), the mean square where it is real numbers, (n,) or (n, K)."""
    if y.is_floating_point():
        return functional.mse_loss(out, y if out.shape == y.shape else regression_targets(y, out.shape[-1]))
    return functional.cross_entropy(out, class_indices(y, out.shape[-1]))


def score(outputs: Tensor, y: Tensor) -> float:
    """Of outputs (n, K): the accuracy where y is classes (n,), R² where it is real numbers (n, K)."""
    if not y.is_floating_point():
        return float((outputs.argmax(1) == y.to(outputs.device)).double().mean())
    wanted = regression_targets(y, outputs.shape[1]).to(outputs.device, torch.float64)
    missed, spread = (outputs.double() - wanted).square().mean(), (wanted - wanted.mean(0)).square().mean()
    return float(1.0 - missed / spread)


def measure(y: Tensor) -> str:
    """What `score` is called."""
    return "R²" if y.is_floating_point() else "accuracy"


def require_batches(loader: Any, name: str) -> None:
    """`BadInput` for what gives no batches: anything but an iterable, and a tensor, whose rows are none."""
    if not isinstance(loader, Iterable) or isinstance(loader, Tensor | np.ndarray | str | bytes):
        raise BadInput(
            f"{name} must give batches: a DataLoader, Batches(x, y) or a list of them, [(x, y)]; got {shown(loader)}."
        )


def pair(batch: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """(x, y) of a loader's batch, on the device of `like`, real numbers in its dtype."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise BadInput(
            f"A batch must be a pair of tensors (x, y); the loader gave {_what(batch)}. Pass a DataLoader of samples and "
            "labels, or a list of batches, [(x, y)]."
        )
    x, y = batch
    for name, part in (("x", x), ("y", y)):
        check_dense(part, f"{name} of a batch")
    if x.ndim == 0 or y.ndim == 0 or len(x) == 0:
        raise BadInput(
            f"A batch has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}; expected at least one sample, and a "
            "label for each. Pass a DataLoader of samples and labels, or a list of batches, [(x, y)]."
        )
    if len(x) != len(y):
        raise BadInput(f"A batch has {len(x)} samples and {len(y)} labels; they must be as many.")
    move = (part.to(like) if part.is_floating_point() else part.to(like.device) for part in (x, y))
    return next(move), next(move)


@torch.no_grad()
def evaluate(module: nn.Module, loader: Any, loss: Loss) -> tuple[float, float | None]:
    """The mean loss over a loader and, where y is classes, the accuracy."""
    like, was = next(module.parameters()), module.training
    module.eval()
    total, right, n, classes = 0.0, 0, 0, True
    for batch in loader:
        x, y = pair(batch, like)
        out = module(x)
        total += float(loss(out, y)) * len(x)
        n += len(x)
        classes = classes and not y.is_floating_point() and y.ndim == 1 and out.ndim == 2
        right += int((out.argmax(1) == y).sum()) if classes else 0
    module.train(was)
    if n == 0:
        raise BadInput("The validation loader gave no batch.")
    return total / n, right / n if classes else None


def _what(batch: Any) -> str:
    if not isinstance(batch, tuple | list):
        return type(batch).__name__
    return f"{type(batch).__name__} of {', '.join(type(part).__name__ for part in batch[:4])}"
