"""The labels of a task as targets of regression: standardised numbers, or centred one-hot vectors of classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.arrays import label_array
from notsodeep.errors import BadInput


def encoded_targets(y: Any, n: int) -> tuple[Tensor, bool]:
    """(n, K), and whether these are classes."""
    values = label_array(y)
    if values.ndim not in (1, 2) or len(values) != n or values.size == 0:
        raise BadInput(f"y has shape {values.shape}; expected ({n},) or ({n}, K), one row a sample of x.")
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise BadInput("y holds NaN or infinity: drop these samples first.")
        return _standardised(torch.from_numpy(values.astype(np.float64)).reshape(n, -1)), False
    if values.ndim == 2 or values.dtype.kind not in "biuOUS":
        raise BadInput(f"y holds {values.dtype} of shape {values.shape}; give numbers as floats, or classes (n,).")
    if values.dtype.kind == "O" and any(value is None or value != value for value in values):
        raise BadInput("y holds missing labels (None or NaN): drop these samples first.")
    names, codes = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
    if 2 * len(names) > n:
        raise BadInput(f"y holds {len(names)} classes for {n} samples; if these are numbers, give them as floats.")
    return _standardised(functional.one_hot(torch.from_numpy(codes)).double(), each=False), True


def _standardised(targets: Tensor, each: bool = True) -> Tensor:
    largest = targets.abs().max()
    targets = targets / torch.where(largest > 0.0, largest, 1.0)  # so that squares are numbers, whatever the unit
    centred = targets - targets.mean(0)
    size = centred.square().mean(0).sqrt()
    floor = 1e-12 * float(targets.abs().max())
    if not bool((size > floor).any()):
        raise BadInput("All labels are equal: there is nothing to learn.")
    return centred / torch.where(size > floor, size, math.inf) if each else centred / float(size.square().sum().sqrt())
