"""Data with labels, as a network is trained and judged on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.data.sources import Dataset, load_split
from notsodeep.errors import BadInput


@dataclass(frozen=True, eq=False)
class Task:
    """Both parts in float32; y is class numbers 0 … K − 1, real numbers (n, K), or None."""

    x: Tensor
    y: Tensor | None
    test_x: Tensor
    test_y: Tensor | None
    outputs: int
    description: str


def load_task(spec: str, standardise: bool | None, labels: str | None, seed: int, need_labels: bool = True) -> Task:
    """The data of `spec` in two parts, with labels that a network can learn."""
    split = load_split(spec, standardise, labels, seed=seed)
    if split.train.y is None or split.test.y is None:
        if need_labels:
            raise BadInput(f"{spec!r} has no labels to learn; say where they are with --labels.")
        return _task(split.train, split.test, None, None, 0)
    if split.train.y.is_floating_point():
        y, test_y = (part.float().reshape(len(part), -1) for part in (split.train.y, split.test.y))
        if bool((y == y[0]).all()):
            raise BadInput(f"Every label of {spec!r} is the same number: there is nothing to predict.")
        return _task(split.train, split.test, y, test_y, y.shape[1])
    classes = split.train.y.unique()
    if len(classes) < 2:
        raise BadInput(f"Every label of {spec!r} is {int(classes[0])}: there is nothing to tell apart.")
    unseen = ~torch.isin(split.test.y, classes)
    if bool(unseen.any()):
        raise BadInput(
            f"Class {int(split.test.y[unseen][0])} of {spec!r} is among the test samples only; it has too few samples to learn."
        )
    y, test_y = (torch.searchsorted(classes, part) for part in (split.train.y, split.test.y))
    return _task(split.train, split.test, y, test_y, len(classes))


def _task(train: Dataset, test: Dataset, y: Tensor | None, test_y: Tensor | None, outputs: int) -> Task:
    description = f"{train.description}; {len(test.x)} to test on"
    return Task(train.x.float(), y, test.x.float(), test_y, outputs, description)
