"""Labels: classes (whole numbers or words) or real numbers, in the data's file or in one of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.data.readers import refuse_lying_header
from notsodeep.errors import BadInput

LABEL_FILES = (".npy", ".csv", ".txt")


def encoded(values: np.ndarray[Any, Any], where: str) -> tuple[Tensor, tuple[str, ...] | None]:
    """Classes (n,), int64, with their names if they were words (class k is the k-th word in sorted order); or, where any is no
    whole number, real numbers (n,) or (n, K), float64."""
    values = values.reshape(-1) if values.ndim == 2 and 1 in values.shape else values
    if values.ndim != 1 and not (values.ndim == 2 and values.dtype.kind == "f"):
        raise BadInput(f"{where} holds labels of shape {values.shape}; expected (n,), one a sample.")
    if values.dtype.kind in "OUS":
        words = [_word(value, row, where) for row, value in enumerate(values.tolist())]
        if not all(map(is_number, words)):
            names, codes = np.unique(np.array(words), return_inverse=True)
            return torch.from_numpy(codes.astype(np.int64)), tuple(names.tolist())
        values = np.array(words, dtype=np.float64)
    if values.dtype.kind not in "fiub":
        raise BadInput(f"{where} holds labels of type {values.dtype}; expected numbers or words.")
    if values.dtype.kind == "u" and values.size and int(values.max()) >= 2**63:
        raise BadInput(f"{where} holds the label {int(values.max())}, above the {2**63 - 1} that we can count to.")
    if values.dtype.kind == "f":
        missing = np.argwhere(~np.isfinite(values))
        if len(missing):
            raise BadInput(
                f"{where}: row {missing[0][0]} has the label {values[tuple(missing[0])]}; drop it or fill it."
            )
        if values.ndim == 2 or (values != np.round(values)).any() or (np.abs(values) >= 2**53).any():
            return torch.from_numpy(values.astype(np.float64)), None
    return torch.from_numpy(values.astype(np.int64)), None


def read_labels(path: Path) -> np.ndarray[Any, Any]:
    """The labels of a .npy file, or of a .csv or .txt file with one label a line (a name above numbers is left out)."""
    if not path.is_file():
        raise BadInput(f"There is no file of labels {str(path)!r}.")
    try:
        if path.suffix.lower() == ".npy":
            refuse_lying_header(path, str(path))
            return np.asarray(np.load(path, allow_pickle=False))
        lines = [line.strip().strip('"') for line in path.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    except BadInput:
        raise
    except Exception as error:  # whatever fails in reading means this
        raise BadInput(
            f"{str(path)!r} cannot be read as labels: {str(error)[:200]}. Write it with numpy.save, or as text with one label "
            "a line."
        ) from error
    several = next((row for row, line in enumerate(lines) if "," in line), None)
    if several is not None:
        raise BadInput(
            f"{str(path)!r} has several columns (line {several + 1}); a file of labels has one label a line. Keep one of them."
        )
    if len(lines) > 1 and not is_number(lines[0]) and all(map(is_number, lines[1:])):
        del lines[0]
    return np.array(lines, dtype=object)


def fitting(y: Tensor, n: int, where: str) -> Tensor:
    if len(y) != n:
        raise BadInput(
            f"{where} holds {len(y)} labels, the data {n} samples; one label a sample is needed.",
            labels=len(y),
            samples=n,
        )
    return y


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # 1_0 is a number to Python, and a name to everyone else


def _word(value: Any, row: int, where: str) -> str:
    word = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    word = "" if word is None else str(word).strip()
    if not word:
        raise BadInput(f"{where}: row {row} has no label; drop it or fill it.")
    return word
