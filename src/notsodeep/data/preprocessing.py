"""What leads from raw rows to the inputs of a network, and from its outputs to answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arguments import instance, shown
from notsodeep.arrays import label_array, real, samples
from notsodeep.data.standardiser import Standardiser
from notsodeep.errors import BadInput

_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """The standardiser of a network's inputs, and the meaning of its outputs: classes, or numbers in their own units.

    All None is the preprocessing of a network that takes raw rows as they are and answers with its outputs.

    Raises:
        BadInput: A part is of another kind, two classes have one name, or both classes and targets are given.
    """

    standardiser: Standardiser | None = None
    """Mean and scale of the raw rows; None where the network takes them as they are."""
    classes: tuple[str, ...] | tuple[int, ...] | None = None
    """The name or the number of the class of each output."""
    targets: Standardiser | None = None
    """Mean and scale of the numbers that the outputs predict."""

    def __post_init__(self) -> None:
        for name in ("standardiser", "targets"):
            if getattr(self, name) is not None:
                instance(getattr(self, name), Standardiser, name, "a Standardiser, as Standardiser.of(x) gives one")
        if self.classes is not None:
            object.__setattr__(self, "classes", _names(self.classes))
            if self.targets is not None:
                raise BadInput("Outputs are scores of classes or numbers in units of targets; give one of both.")

    def check(self, in_features: int, out_features: int | None) -> None:
        """Raise `BadInput` unless this fits a network with so many inputs and outputs."""
        if self.standardiser is not None and self.standardiser.features != in_features:
            raise BadInput(
                f"The preprocessing is for rows of {self.standardiser.features} features, and the network takes {in_features}: "
                "it is that of another network. Take the one of the data that this network was trained on."
            )
        means = {"classes": self.classes, "targets": None if self.targets is None else self.targets.mean}
        for name, given in means.items():
            if given is not None and len(given) != out_features:
                has = "no readout" if out_features is None else f"{out_features} outputs"
                raise BadInput(
                    f"The preprocessing names {len(given)} {name}, and the network has {has}: give one for each output."
                )

    def inputs(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Raw rows (n, p) as the network takes them, in `dtype`; standardised in float64, as raw columns may be far from 0."""
        x = samples(x)
        rows = x if self.standardiser is None else self.standardiser(x.double())
        return rows.to(x.dtype if dtype is None else dtype)

    def answers(self, outputs: Tensor) -> Tensor | np.ndarray[Any, Any]:
        """What outputs (n, K) mean: names of classes, an array, or their numbers, (n,); or numbers, (n,) for K = 1."""
        if self.classes is not None:
            chosen = outputs.argmax(1)
            names = np.array(self.classes)
            return names[chosen.cpu().numpy()] if names.dtype.kind == "U" else torch.from_numpy(names).to(chosen.device)[chosen]
        if self.targets is not None:
            outputs = self.targets.inverse(outputs.double()).to(outputs.dtype)
        return outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs

    def learnt(self, y: Any, names: Sequence[str] | None = None) -> Tensor:
        """Labels as the network learns them: places of classes, (n,), or numbers in the units of its outputs, (n, K).

        Without names of classes, whole numbers are places already.

        Args:
            y: Labels: classes as names or numbers, (n,), or real numbers, (n,) or (n, K).
            names: Names of the classes 0 … K − 1, where y holds their places.

        Raises:
            BadInput: A class is none of the network's.
        """
        if self.classes is None and self.targets is None and label_array(y).dtype.kind in "iub":
            return torch.from_numpy(label_array(y).astype(np.int64))
        if self.classes is None:
            numbers = real(y, "y", dtype=torch.float64)
            numbers = numbers.reshape(len(numbers), -1)
            return numbers if self.targets is None else self.targets(numbers)
        labels = label_array(y)
        present, codes = np.unique(labels if names is None else np.array(names)[labels], return_inverse=True)
        given = _names(present)
        places = {str(name): k for k, name in enumerate(self.classes)}
        unknown = [str(name) for name in given if str(name) not in places]
        if unknown:
            raise BadInput(
                f"The labels hold {_listed(unknown)}, which the network does not know; its classes are "
                f"{_listed(self.classes)}. Take labels of its own task, or train a network on these."
            )
        return torch.tensor([places[str(name)] for name in given])[torch.from_numpy(codes)]

    def to_record(self) -> dict[str, Any]:
        """All of it as JSON: numbers exact, features and classes in their order."""
        record = {"standardiser": _numbers(self.standardiser), "targets": _numbers(self.targets)}
        return record | {"classes": None if self.classes is None else list(self.classes)}

    @classmethod
    def from_record(cls, record: Any) -> Preprocessing:
        """The preprocessing of a record; `BadInput` where it is none."""
        if not isinstance(record, dict) or set(record) != {"standardiser", "classes", "targets"}:
            raise BadInput(f"The preprocessing {record!r:.60} cannot be read: it has standardiser, classes and targets.")
        parts = {name: _standardiser(record[name], name) for name in ("standardiser", "targets")}
        return cls(classes=record["classes"], **parts)

    def __str__(self) -> str:
        inputs = "raw rows" if self.standardiser is None else f"raw rows of {self.standardiser.features} features, standardised"
        if self.classes is not None:
            return f"{inputs} → classes {_listed(self.classes)}"
        return f"{inputs} → numbers in their own units" if self.targets is not None else inputs


def class_names(present: Iterable[Any], names: Sequence[str] | None = None) -> tuple[str, ...] | tuple[int, ...]:
    """The classes with these numbers by their names; digits and classes without names are numbers."""
    if names is None or all(name.isdecimal() for name in names):
        return tuple(int(k if names is None else names[int(k)]) for k in present)
    return tuple(names[int(k)] for k in present)


def _names(classes: Any) -> tuple[Any, ...]:
    """Class names as words or as whole numbers; labels of other kinds, such as True and 0.5, by their text."""
    labels = label_array(classes, "classes") if isinstance(classes, list | tuple | np.ndarray | Tensor) else np.empty(0)
    if labels.ndim != 1 or len(labels) == 0:
        raise BadInput(f"classes must name each output, as in classes=('no', 'yes'); got {shown(classes)}.")
    whole = labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and bool((labels == np.floor(labels)).all()))
    whole = whole and bool(np.isfinite(labels).all())
    found = [int(k) if whole else str(k) for k in labels.tolist()]
    if len(set(found)) < len(found):
        raise BadInput(f"Two outputs are called the same: the classes are {_listed(found)}.")
    return tuple(found)


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(f"{name!s:.40}" for name in names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )


def _numbers(standardiser: Standardiser | None) -> dict[str, Any] | None:
    if standardiser is None:
        return None
    scale = standardiser.scale
    return {"mean": standardiser.mean.tolist(), "scale": scale.tolist() if isinstance(scale, Tensor) else scale}


def _standardiser(record: Any, name: str) -> Standardiser | None:
    if record is None:
        return None
    if not isinstance(record, dict) or set(record) != {"mean", "scale"}:
        raise BadInput(f"The {name} {record!r:.60} cannot be read: it has a mean and a scale.")
    mean, scale = record["mean"], record["scale"]
    return Standardiser(real(mean, "mean", (None,), torch.float64), real(scale, "scale") if isinstance(scale, list) else scale)
