"""The data of `train` and `compile`: rows as a network takes them, labels as it learns them, and what leads there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from notsodeep.data.preprocessing import Preprocessing, class_names
from notsodeep.data.sources import Split, load_split
from notsodeep.data.standardiser import Standardiser
from notsodeep.errors import BadInput
from notsodeep.models.predictor import Predictor


@dataclass(frozen=True, eq=False)
class Task:
    """Data to train and to test on, in float32; y holds classes 0 … K − 1, centred and scaled numbers (n, K), or is None."""

    x: Tensor
    y: Tensor | None
    test_x: Tensor
    test_y: Tensor | None
    outputs: int
    description: str
    preprocessing: Preprocessing
    unseen: bool = False
    """whether a network with this preprocessing was surely not trained on the rows to test on"""


def load_task(
    spec: str,
    standardise: bool | None,
    labels: str | None,
    seed: int,
    need_labels: bool = True,
    per_feature: bool = False,
    numbers: bool = False,
) -> Task:
    """The data of `spec` in two parts, with labels that a network can learn; whole ones too are `numbers` if asked for."""
    split = load_split(spec, standardise, labels, seed=seed, per_feature=per_feature)
    y, test_y = split.train.y, split.test.y
    if y is None or test_y is None:
        if need_labels:
            raise BadInput(f"{spec!r} has no labels to learn; say where they are with --labels.")
        return _task(split, split.train.x, split.test.x, None, None, Preprocessing(split.standardiser))
    if y.is_floating_point() or numbers:
        if split.train.classes is not None:
            raise BadInput(
                f"The labels of {spec!r} are names of classes, such as {split.train.classes[0]}; leave --numbers out."
            )
        if bool((y == y[0]).all()):
            raise BadInput(f"Every label of {spec!r} is the same number: there is nothing to predict.")
        # A network without preprocessing of its own, of an older file, answers in the numbers' own units.
        known = Preprocessing(split.standardiser, targets=Standardiser.of(_columns(y)) if need_labels else None)
    else:
        known = Preprocessing(
            split.standardiser, class_names(_present(y, test_y, spec, split.train.classes), split.train.classes)
        )
    learnt = [known.learnt(part, split.train.classes) for part in (y, test_y)]
    return _task(split, split.train.x, split.test.x, learnt[0], learnt[1], known)


def load_known_task(spec: str, labels: str | None, seed: int, network: Predictor, known: Preprocessing) -> Task:
    """The data of `spec` in two parts, as a network with this preprocessing takes and learns them."""
    split = load_split(spec, False, labels, seed=seed)
    parts = (split.train, split.test)
    if split.train.x.shape[1] != network.in_features:
        raise BadInput(f"The network takes {network.in_features} features and {spec!r} has {split.train.x.shape[1]}.")
    x, test_x = (known.inputs(part.x) for part in parts)
    y, test_y = (None if part.y is None else known.learnt(part.y, part.classes) for part in parts)
    task = _task(split, x, test_x, y, test_y, known)
    return replace(task, unseen=known.standardiser is not None and known.standardiser.is_of(split.train.x))


def _task(split: Split, x: Tensor, test_x: Tensor, y: Tensor | None, test_y: Tensor | None, known: Preprocessing) -> Task:
    y, test_y = (part.float() if part is not None and part.is_floating_point() else part for part in (y, test_y))
    outputs = 0 if y is None else len(known.classes) if known.classes is not None else y.shape[1]
    return Task(x.float(), y, test_x.float(), test_y, outputs, f"{split.train.description}; {len(test_x)} to test on", known)


def _columns(y: Tensor) -> Tensor:
    return y.double().reshape(len(y), -1)


def _present(y: Tensor, test_y: Tensor, spec: str, names: Sequence[str] | None) -> Tensor:
    """The numbers of the classes to learn."""
    classes: Tensor = y.unique()
    if len(classes) < 2:
        only = int(classes[0])
        raise BadInput(f"Every label of {spec!r} is {only if names is None else names[only]}: there is nothing to tell apart.")
    unseen = ~torch.isin(test_y, classes)
    if bool(unseen.any()):
        raise BadInput(
            f"Class {int(test_y[unseen][0])} of {spec!r} has test samples only: it has too few samples to learn. If its "
            f"{len(classes)} labels are numbers to predict, say --numbers."
        )
    return classes
