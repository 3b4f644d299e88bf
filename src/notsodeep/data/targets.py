"""The meaning of y: real numbers to predict, or classes.

Floats are numbers, (n,) or (n, K). Whole numbers and words are classes, (n,). In a file, where a class may be written as 1.0,
whole floats are classes too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.arrays import check_dense, class_codes, label_array
from notsodeep.data.readers import check_npy_header
from notsodeep.errors import BadInput

LABEL_FILES = (".npy", ".csv", ".txt")


@dataclass(frozen=True, eq=False)
class Targets:
    """y of n samples: real numbers, (n,) or (n, K), or classes 0 … K − 1, (n,), which are regressed on as one-hot rows."""

    source: Any
    """Numbers as they were given, possibly a memory map; or classes, int64, (n,)."""
    classes: int | None
    """K if y holds classes."""

    @classmethod
    def of(cls, y: Any, n: int) -> Targets:
        """y without a copy, to be read block by block; classes are whole numbers ≥ 0 and keep their numbers."""
        if isinstance(y, Tensor):
            check_dense(y, "y")
        values = y if hasattr(y, "shape") and hasattr(y, "__getitem__") else label_array(y)
        _check_shape(values.shape, n)
        if values.dtype.is_floating_point if isinstance(values, Tensor) else values.dtype.kind == "f":
            return cls(values, None)
        labels = label_array(values)
        if labels.ndim != 1 or labels.dtype.kind not in "iub" or labels.min() < 0:
            raise BadInput("y must hold real numbers, or classes as whole numbers from 0, one per sample.")
        return cls(torch.from_numpy(labels.astype(np.int64)), int(labels.max()) + 1)

    @classmethod
    def numbered(cls, y: Any, n: int) -> Targets:
        """y in memory, checked as a whole. Classes are numbered in sorted order, unless they are 0 … K − 1 already: these fit a
        network's K outputs even if a class is absent."""
        values = label_array(y)
        _check_shape(values.shape, n)
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if values.dtype.kind == "f":
            if not np.isfinite(values).all():
                raise BadInput("y holds NaN or infinity: drop these samples first.")
            if (values == values[0]).all():
                raise BadInput("All labels are equal: with the same number for every sample there is nothing to learn.")
            return cls(torch.from_numpy(values.astype(np.float64)), None)
        if values.ndim == 2:
            raise BadInput(f"y holds {values.dtype} of shape {values.shape}; give numbers as floats, or classes (n,).")
        present, codes = class_codes(values)
        if values.dtype.kind in "iub" and present[0] >= 0 and present[-1] < 2 * len(present) + 2:
            codes = values
        return cls(torch.from_numpy(codes.astype(np.int64)), int(codes.max()) + 1)

    @property
    def outputs(self) -> int:
        """K: classes, or numbers per sample."""
        return self.classes or (self.source.shape[1] if len(self.source.shape) == 2 else 1)

    @property
    def flat(self) -> bool:
        """Whether y holds one number per sample, (n,)."""
        return self.classes is None and len(self.source.shape) == 1

    @property
    def y(self) -> Tensor:
        """Classes (n,), or numbers (n, K) in float64."""
        return self.read() if self.classes is None else self.source

    def read(self, index: slice = slice(None)) -> Tensor:
        """Numbers, or one-hot classes, of the samples `index`: (rows, K), float64. Raises BadInput with the row of a NaN."""
        part = self.source[index]
        if self.classes is not None:
            return functional.one_hot(part, self.classes).to(torch.float64)
        part = part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(np.array(part, dtype=np.float64))
        values = part.to(torch.float64).reshape(len(part), -1)
        finite = torch.isfinite(values).all(1)
        if not bool(finite.all()):
            row = (index.start or 0) + int(torch.nonzero(~finite)[0, 0])
            raise BadInput(f"y holds NaN or infinity in row {row}; drop or fill it first.", rows=[row])
        return values

    def standardised(self) -> Tensor:
        """(n, K), centred: numbers of unit variance each, or one-hot classes, those that occur, of total variance 1."""
        targets = self.read()
        if self.classes is not None:
            targets = targets[:, targets.any(0)]
            n, present = targets.shape
            if 2 * present > n:
                raise BadInput(f"y holds {present} classes for {n} samples; if these are numbers, give them as floats.")
        targets = targets / targets.abs().max()  # whatever the unit, squares stay within float64
        centred = targets - targets.mean(0)
        size = centred.square().mean(0).sqrt()
        varies = size > 1e-12
        if not bool(varies.any()):
            raise BadInput("All labels are equal: there is nothing to learn.")
        if self.classes is not None:
            return centred / float(size.square().sum().sqrt())
        return centred / torch.where(varies, size, math.inf)


def regression_targets(y: Tensor, outputs: int) -> Tensor:
    """y as the (n, K) numbers that K outputs are regressed on; classes become one-hot rows."""
    if not y.is_floating_point():
        return functional.one_hot(class_indices(y, outputs), outputs)
    wanted = y[:, None] if y.ndim == 1 else y
    if wanted.shape[1:] != (outputs,):
        raise BadInput(f"y has shape {tuple(y.shape)} and the network has {outputs} outputs; they must agree.")
    return wanted


def class_indices(y: Tensor, outputs: int) -> Tensor:
    """Classes (n,) as int64; raises BadInput where one has no place among K outputs."""
    if y.ndim != 1:
        raise BadInput(f"y holds whole numbers of shape {tuple(y.shape)}: classes are one number per sample, (n,).")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= outputs:
        raise BadInput(f"y holds class {low if low < 0 else high}; the network has {outputs} outputs, for 0 … {outputs - 1}.")
    return y.long()


def labels_of_file(values: np.ndarray[Any, Any], where: str) -> tuple[Tensor, tuple[str, ...] | None]:
    """Classes (n,), int64, with names if they were words (class k is the k-th word in sorted order); or, if any is not whole,
    real numbers, (n,) or (n, K), float64. `where` names the file in errors."""
    values = values.reshape(-1) if values.ndim == 2 and 1 in values.shape else values
    if values.ndim != 1 and not (values.ndim == 2 and values.dtype.kind == "f"):
        raise BadInput(f"{where} holds labels of shape {values.shape}; expected (n,), one per sample.")
    if values.dtype.kind in "OUS":
        words = [_word(value, row, where) for row, value in enumerate(values.tolist())]
        if not all(map(is_number, words)):
            names, codes = class_codes(np.array(words))
            return torch.from_numpy(codes), tuple(names.tolist())
        values = np.array(words, dtype=np.float64)
    if values.dtype.kind not in "fiub":
        raise BadInput(f"{where} holds labels of type {values.dtype}; expected numbers or words.")
    if values.dtype.kind == "u" and values.size and int(values.max()) >= 2**63:
        raise BadInput(f"{where} holds the label {int(values.max())}, above the {2**63 - 1} that we can count to.")
    if values.dtype.kind == "f":
        missing = np.argwhere(~np.isfinite(values))
        if len(missing):
            raise BadInput(f"{where}: row {missing[0][0]} has the label {values[tuple(missing[0])]}; drop it or fill it.")
        if values.ndim == 2 or (values != np.round(values)).any() or (np.abs(values) >= 2**53).any():
            return torch.from_numpy(values.astype(np.float64)), None
    return torch.from_numpy(values.astype(np.int64)), None


def read_labels(path: Path) -> np.ndarray[Any, Any]:
    """The labels of a .npy file, or of a .csv or .txt file with one label per line; a name above numbers is skipped."""
    if not path.is_file():
        raise BadInput(f"There is no file of labels {str(path)!r}.")
    try:
        if path.suffix.lower() == ".npy":
            check_npy_header(path, str(path))
            return np.asarray(np.load(path, allow_pickle=False))
        lines = [line.strip().strip('"') for line in path.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    except BadInput:
        raise
    except Exception as error:  # readers fail in many ways, which all mean this
        raise BadInput(
            f"{str(path)!r} cannot be read as labels: {str(error)[:200]}. Write it with numpy.save, or a label per line."
        ) from error
    several = next((row for row, line in enumerate(lines) if "," in line), None)
    if several is not None:
        raise BadInput(
            f"{str(path)!r} has several columns (line {several + 1}); a file of labels has one label per line. Keep one column."
        )
    if len(lines) > 1 and not is_number(lines[0]) and all(map(is_number, lines[1:])):
        del lines[0]
    return np.array(lines, dtype=object)


def is_number(cell: str) -> bool:
    """Whether a cell of a table is a number; 1_0 is one to Python, and a name to everyone else."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _check_shape(shape: Any, n: int) -> None:
    if len(shape) not in (1, 2) or shape[0] != n or 0 in shape:
        raise BadInput(f"x has {n} samples and y has shape {tuple(shape)}; expected ({n},) or ({n}, K).")


def _word(value: Any, row: int, where: str) -> str:
    word = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    word = "" if word is None else str(word).strip()
    if not word:
        raise BadInput(f"{where}: row {row} has no label; drop it or fill it.")
    return word
