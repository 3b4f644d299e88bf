"""The computations of L5."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FiniteUnit:
    """Networks of `width` units, with their readouts trained (`kind` "width") or all their weights ("trained"). `train` and
    `test` are numbers of samples, 0 for all; `rate` is that of the optimiser."""

    kind: str
    data: str
    activation: str
    var_a: float
    width: int
    train: int
    test: int
    rate: float
    batch: int
    epochs: int
    seed: int


@dataclass(frozen=True)
class InfiniteUnit:
    """Kernels (`kind` "infinite") on the first `train` and `test` samples."""

    kind: str
    data: str
    activation: str
    var_a: float
    train: int
    test: int
    seed: int = 0


Unit = FiniteUnit | InfiniteUnit
