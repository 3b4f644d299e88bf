"""What the compiler is given: samples, labels, and others to judge by, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep.arguments import shown
from notsodeep.arrays import Array, label_array, module_input, samples
from notsodeep.data.targets import Targets
from notsodeep.errors import BadInput
from notsodeep.models.deq import DEQ
from notsodeep.models.predictor import learnt, taken
from notsodeep.theory.architecture import Implicit

_HELD_OUT, _ENOUGH = 0.2, 10


@dataclass(frozen=True, eq=False)
class Given:
    """Checked samples, their y, and others to judge by."""

    x: Tensor
    labels: Targets | None
    y: Tensor | None
    unseen: tuple[Tensor, Tensor | None] | None
    augment: Callable[[Tensor], Tensor] | None
    classifies: bool | None = None
    """whether outputs are scores of classes, where that is known without y"""

    @classmethod
    def to_deq(cls, deq: DEQ, x: Array, y: Any, test: Any, augment: Any) -> Given:
        if not isinstance(deq.net, Implicit):
            raise BadInput("compile_deq takes a DEQ of an Implicit network; to_explicit turns one made by to_deq back.")

        def rows(given: Array, name: str) -> Tensor:
            found = taken(deq, samples(given, name)).to(deq.B)
            found = found.clone() if found.is_inference() else found
            module_input(found, deq.in_features, deq.B, "DEQ")
            return found

        inputs, pair = rows(x, "x"), _pair(test)
        answers = deq.out_features is not None and "readout" in deq.changed()
        others = None if pair is None else rows(pair[0], "x of test")
        if pair is not None:
            _check_both(y, pair[1])
        parts = [] if y is None else [(y, len(inputs))]
        parts += [(pair[1], len(others))] if pair is not None and others is not None and pair[1] is not None else []
        found = _targets(deq, parts) if answers else [Targets.numbered(*part) for part in parts[:1]]
        known = [_answers(labels, deq) for labels in found] if answers else []
        unseen = None if others is None else (others, known[1] if len(known) > 1 else None)
        classes = _classifies(deq)
        made = _tried(augment, inputs)
        return cls(inputs, found[0] if found else None, known[0] if known else None, unseen, made, classes)

    @classmethod
    def to_module(cls, x: Any, y: Any, test: Any, augment: Any) -> Given:
        inputs, pair = _tensor(x, "x"), _pair(test)
        known, augment = None if y is None else _labels(y, len(inputs)), _tried(augment, inputs)
        if pair is None:
            return cls(inputs, None, known, None, augment)
        _check_both(y, pair[1])
        others = _tensor(pair[0], "x of test")
        return cls(inputs, None, known, (others, None if pair[1] is None else _labels(pair[1], len(others))), augment)

    def split(self, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Indices to fit on and indices held out: a fifth of n, none where n < 10 or other samples judge."""
        n = len(self.x)
        order = torch.randperm(n, generator=draw, device=draw.device).cpu()
        held = int(_HELD_OUT * n) if n >= _ENOUGH and self.unseen is None else 0
        return order[held:], order[:held]

    def require_judges(self) -> None:
        """Raise `BadInput` where no samples are there to judge by."""
        if self.unseen is None and len(self.x) < _ENOUGH:
            raise BadInput(
                f"Of {len(self.x)} sample{'s' * (len(self.x) > 1)} none are held out to measure on: give compile_deq {_ENOUGH} "
                "or more, or test=."
            )


def _answers(labels: Targets, deq: DEQ) -> Tensor:
    """y as `score` takes it, checked against the outputs of the DEQ."""
    outputs = deq.out_features or 0
    if labels.outputs > outputs if labels.classes else labels.outputs != outputs:
        raise BadInput(f"y needs {labels.outputs} outputs and the DEQ has {outputs}: it was trained on something else.")
    return labels.y.to(deq.B.device) if labels.classes else labels.read().to(deq.B)


def _targets(deq: DEQ, parts: Sequence[tuple[Any, int]]) -> list[Targets]:
    """Labels as the DEQ learnt them: numbers scaled, classes numbered as its outputs are, those of all parts alike."""
    found = [Targets.numbered(*part) for part in parts]
    if not found or any(labels.classes is None for labels in found):
        return [learnt(deq, labels) for labels in found]
    values = [label_array(y).reshape(-1) for y, _ in parts]
    codes = _codes(deq, np.concatenate(values))
    ends = np.cumsum([len(each) for each in values])[:-1]
    return [Targets(torch.from_numpy(part), int(codes.max()) + 1) for part in np.split(codes, ends)]


def _codes(deq: DEQ, values: np.ndarray) -> np.ndarray:
    """The number of the output of each class: by the names that the DEQ knows, or as they are where they are numbers."""
    present, outputs, names = np.unique(values).tolist(), deq.out_features or 0, deq.classes
    whole = values.dtype.kind in "iub"
    order: dict[Any, int] | None = None
    if names is not None and {str(value) for value in present} <= {str(name) for name in names}:
        numbers = {str(name): number for number, name in enumerate(names)}
        order = {value: numbers[str(value)] for value in present}
    elif whole and present[0] >= 0 and present[-1] < outputs:
        return values.astype(np.int64)
    elif names is not None:
        unknown = ", ".join(str(value) for value in present if str(value) not in {str(name) for name in names})
        raise BadInput(
            f"y holds {unknown:.80}, which the network does not know; its classes are {', '.join(map(str, names)):.200}."
        )
    elif len(present) >= outputs:
        order = {value: number for number, value in enumerate(present)}
    else:
        raise BadInput(
            f"y holds {len(present)} classes and the DEQ has {outputs} outputs: which is which is not known. Give the numbers "
            "of the outputs, from 0 on, or set the DEQ's preprocessing, which has their names."
        )
    return np.array([order[value] for value in values.tolist()], dtype=np.int64)


def _classifies(deq: DEQ) -> bool | None:
    """Whether the outputs are scores of classes, where the DEQ's preprocessing tells."""
    known = deq.preprocessing
    if known is None or (known.classes is None and known.targets is None):
        return None
    return known.classes is not None


def _tried(augment: Callable[[Tensor], Tensor] | None, x: Tensor) -> Callable[[Tensor], Tensor] | None:
    """`augment`, tried on a few samples."""
    if augment is None:
        return None
    some = x[:4].clone()  # it may work in place
    try:
        made = augment(some)
    except Exception as error:
        raise BadInput(f"augment fails on samples of shape {tuple(some.shape)}: {error!s:.200}") from error
    if not isinstance(made, Tensor) or made.shape[1:] != some.shape[1:] or made.dtype != some.dtype or not len(made):
        raise BadInput(
            f"augment must make samples like x, {tuple(some.shape[1:])} {some.dtype}, of samples; got {shown(made)}."
        )
    if not bool(made.isfinite().all()):
        raise BadInput("augment makes NaN or infinities of the first samples.")
    return augment


def _pair(test: Any) -> tuple[Any, Any] | None:
    if test is None:
        return None
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise BadInput(f"test must be a pair (x, y) of samples and labels; got {shown(test)}.")
    return test[0], test[1]


def _check_both(y: Any, theirs: Any) -> None:
    if (y is None) != (theirs is None):
        raise BadInput("Labels are needed both of the samples x, y=, and of the test samples, or of neither.")


def _tensor(x: Any, name: str) -> Tensor:
    """Samples of any shape (n, …) and dtype, checked to be finite."""
    found = torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) and x.dtype.kind in "fiub" else x
    usual = isinstance(found, Tensor) and found.layout == torch.strided and not found.is_quantized and not found.is_meta
    if not usual or found.ndim == 0 or len(found) == 0:
        raise BadInput(f"{name} must be a tensor or a numpy array of numbers, one sample along its first axis; got {shown(x)}.")
    if found.is_floating_point() and not bool(found.isfinite().all()):
        wrong = int((~found.isfinite()).sum())
        raise BadInput(f"{name} holds {wrong} numbers that are NaN or infinite: drop these samples first.")
    return found.clone() if found.is_inference() else found.detach()


def _labels(y: Any, n: int) -> Tensor:
    """Classes as whole numbers, or real numbers, one row per sample."""
    values = y if isinstance(y, Tensor) else label_array(y)
    if isinstance(values, np.ndarray) and values.dtype.kind not in "fiub":
        raise BadInput(
            f"y holds {shown(values.reshape(-1)[:1].tolist())} …: give the numbers of the classes, 0 … K − 1, or floats."
        )
    found = torch.from_numpy(np.ascontiguousarray(values)) if isinstance(values, np.ndarray) else values.detach()
    if found.ndim == 0 or len(found) != n:
        raise BadInput(f"There are {n} samples and y has shape {tuple(found.shape)}: one label per sample.")
    if not found.is_floating_point():
        return found.long()
    if not bool(found.isfinite().all()):
        raise BadInput("y holds NaN or infinity: drop these samples first.")
    if n and bool((found == found.reshape(-1)[0]).all()):
        raise BadInput("All labels are equal: with the same number for every sample there is nothing to learn.")
    return found


def check_outputs(model: nn.Module, outputs: Any, samples: int, given: Given) -> None:
    """Raise `BadInput` unless the outputs for some samples are one tensor with a row for each, and y fits."""
    name = type(model).__name__
    real = isinstance(outputs, Tensor) and outputs.is_floating_point()
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != samples or not real:
        what = (
            f"{outputs.dtype}, shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        )
        raise BadInput(
            f"{name} must return one tensor of floats with a row for each of the {samples} samples; it returns {what}."
        )
    for y in (given.y, None if given.unseen is None else given.unseen[1]):
        if y is None:
            continue
        row, wanted = tuple(outputs.shape[1:]), tuple(y.shape[1:])
        if y.is_floating_point() and math.prod(row) != math.prod(wanted):
            raise BadInput(f"{name} gives outputs of shape {row} for a sample, and y has {wanted}: it was trained on another.")
        if not y.is_floating_point() and (row[:-1] != wanted or not row or int(y.max()) >= row[-1] or int(y.min()) < 0):
            raise BadInput(
                f"{name} gives outputs of shape {row} for a sample, scores of classes along the last axis; y has shape "
                f"{tuple(y.shape)} and classes {int(y.min())} to {int(y.max())}."
            )
