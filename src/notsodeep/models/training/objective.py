"""Batches of (x, y), the loss of a network on them, and its score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.arguments import count, generator as checked_generator, instance, shown
from notsodeep.arrays import check_dense
from notsodeep.data.targets import class_indices, regression_targets
from notsodeep.errors import BadInput

Loss = Callable[[Tensor, Tensor], Tensor]


class Batches:
    """Batches (x, y) of tensors in memory: a DataLoader that does not gather samples one by one.

    Args:
        x: Samples, (n, …).
        y: One label or one row of numbers per sample, (n, …).
        size: Samples per batch; the last batch may be smaller.
        generator: Draws a new order for every pass over the batches; None keeps the order of x.

    Raises:
        BadInput: x or y is not a tensor, or they differ in length.
    """

    def __init__(self, x: Tensor, y: Tensor, size: int = 128, generator: torch.Generator | None = None) -> None:
        for name, given in (("x", x), ("y", y)):
            instance(given, Tensor, name, "a tensor")
            check_dense(given, name)
            if given.ndim == 0:
                raise BadInput(f"{name} has shape (); expected one row, or one label, per sample.")
        if len(x) != len(y):
            raise BadInput(f"There are {len(x)} samples and {len(y)} labels; they must be as many.")
        self.x, self.y, self.size, self.generator = x, y, count(size, "size"), checked_generator(generator)

    def __len__(self) -> int:
        return -(-len(self.x) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.generator is None:
            yield from zip(self.x.split(self.size), self.y.split(self.size), strict=True)
            return
        order = torch.randperm(len(self.x), generator=self.generator, device=self.generator.device)
        for chosen in order.split(self.size):
            yield self.x[chosen.to(self.x.device)], self.y[chosen.to(self.y.device)]


def usual_loss(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy for classes y (n,); mean square error for real numbers y, (n,) or (n, K)."""
    if y.is_floating_point():
        return functional.mse_loss(out, y if out.shape == y.shape else regression_targets(y, out.shape[-1]))
    return functional.cross_entropy(out, class_indices(y, out.shape[-1]))


def score(outputs: Tensor, y: Tensor) -> float:
    """Score of outputs (n, K): accuracy for classes y (n,), R² for real numbers y (n, K), the mean of those of the columns."""
    if not y.is_floating_point():
        return float((outputs.argmax(1) == y.to(outputs.device)).double().mean())
    wanted = regression_targets(y, outputs.shape[1]).to(outputs.device, torch.float64)
    missed, squares = (outputs.double() - wanted).square().mean(0), spread(wanted)
    return float((1.0 - missed / squares).mean())


def spread(numbers: Tensor) -> Tensor:
    """The mean square of numbers (…, K) about their mean sample, of each column, and at least 1e-6 of the largest."""
    columns = (numbers - numbers.mean(0)).square().flatten(0, -2).mean(0)
    return columns.clamp(min=max(1e-6 * float(columns.max()), torch.finfo(numbers.dtype).tiny))


def measure(y: Tensor) -> str:
    """Name of what `score` returns."""
    return "R²" if y.is_floating_point() else "accuracy"


def require_batches(loader: Any, name: str) -> None:
    """Raise `BadInput` unless `loader` is an iterable of batches; a tensor's rows are not batches."""
    if not isinstance(loader, Iterable) or isinstance(loader, Tensor | np.ndarray | str | bytes):
        raise BadInput(f"{name} must give batches: a DataLoader, Batches(x, y) or a list, [(x, y)]; got {shown(loader)}.")


def pair(batch: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """(x, y) of a batch on the device of `like`, real numbers in its dtype."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise BadInput(
            f"A batch must be a pair of tensors (x, y); the loader gave {_kind(batch)}. Pass a DataLoader of samples and "
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
    x, y = (part.to(like) if part.is_floating_point() else part.to(like.device) for part in (x, y))
    return x, y


@torch.no_grad()
def evaluate(module: nn.Module, loader: Any, loss: Loss) -> tuple[float, float | None]:
    """Mean loss over a loader and, for classes, the accuracy."""
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


def _kind(batch: Any) -> str:
    if not isinstance(batch, tuple | list):
        return type(batch).__name__
    return f"{type(batch).__name__} of {', '.join(type(part).__name__ for part in batch[:4])}"
