"""Functions that a DEQ expresses, or learns, more cheaply than a feed-forward network. Ref: [wu2024].

Each is called on samples (n, d), of which it uses the first coordinate, and gives (n, 1); a one-dimensional x stands for that
coordinate, and gives (n,).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arguments import (
    count,
    dtype as checked_dtype,
    function,
    generator as checked_generator,
    instance,
    numbers,
)
from notsodeep.arrays import Array, like, refuse_if_too_large, refuse_unreadable
from notsodeep.errors import BadInput

_MOST_DIMENSIONS = 1000
_LARGEST = 2**22  # points of a cube that are listed


class Target(ABC):
    """An exact function on the cube [low, high]^dimension."""

    dimension: int
    low, high = 0.0, 1.0

    @abstractmethod
    def value(self, x1: Tensor) -> Tensor:
        """Of the first coordinate."""

    def __call__(self, x: Array) -> Any:
        given = points(x)
        return like(x)(self.value(given if given.ndim < 2 else given[..., :1]))

    def sample(self, n: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """n points (n, dimension) of the domain, uniform unless the target has a sampler of its own."""
        drawn = torch.rand(
            *drawing(n, self.dimension), generator=checked_generator(generator), dtype=checked_dtype(dtype)
        )
        return self.low + (self.high - self.low) * drawn


def points(x: Array) -> Tensor:
    """x as a dense tensor of real numbers that a function of points is asked at."""
    native = isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.dtype.isnative and x.dtype.itemsize <= 8
    given: Tensor = instance(torch.from_numpy(np.array(x)) if native else x, Tensor, "x", "a tensor of real numbers")
    refuse_unreadable(given, "x")
    if given.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise BadInput(f"x holds {given.dtype}; a target is a function of real numbers.")
    return given


def drawing(n: int, dimension: int) -> tuple[int, int]:
    """The shape of n points, if they fit in memory."""
    n = count(n, "n")
    refuse_if_too_large(
        n, dimension, torch.float64, torch.device("cpu"), "a smaller n", f"{n} points of dimension {dimension}"
    )
    return n, dimension


@dataclass(frozen=True)
class Sawtooth(Target):
    """φ^m on [0, 1]: φ⁰ = x_1, φ^{k+1} = 2φ^k − 2 relu(2φ^k − 1), of 2^m linear pieces. Exact in floating point.

    Ref: [wu2024], expressivity.
    """

    pieces_log2: int
    dimension: int = 1

    def __post_init__(self) -> None:
        count(self.pieces_log2, "m", most=_MOST_DIMENSIONS)
        count(self.dimension, "dimension")

    def value(self, x1: Tensor) -> Tensor:
        for _ in range(self.pieces_log2):
            x1 = 2.0 * x1 - 2.0 * torch.relu(2.0 * x1 - 1.0)
        return x1


@dataclass(frozen=True)
class Steep(Target):
    """g(x) = δ x_1/(2(1 + δ − x_1)) on [0, 1]^d, δ = 2^(−d): flat, and then up to ½ within δ of x_1 = 1.

    Ref: [wu2024], steep functions.
    """

    dimension: int

    def __post_init__(self) -> None:
        if count(self.dimension, "d") > _MOST_DIMENSIONS:
            raise BadInput(
                f"2^(−{self.dimension}) is no number of double precision; d = {_MOST_DIMENSIONS} is the most."
            )

    @property
    def delta(self) -> float:
        return 2.0**-self.dimension

    def value(self, x1: Tensor) -> Tensor:
        return (
            self.delta * x1 / (2.0 * ((1.0 - x1) + self.delta))
        )  # 1 − x_1 first: it is exact near 1, where all happens

    def sample(self, n: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """Half of them with x_1 in U(0, 1 − δ), half in U(1 − δ, 1)."""
        points = super().sample(n, generator, dtype)
        steep = torch.arange(n) >= n // 2
        first = points[:, 0]
        points[:, 0] = torch.where(steep, 1.0 - self.delta * first, (1.0 - self.delta) * first)
        return points


@dataclass(frozen=True)
class Chirps(Target):
    """Σ_k sin(2π (f_k x + ½ r_k x²))/K on [0, 1]: like a sound whose K tones rise, from f_k to f_k + r_k periods."""

    starts: tuple[float, ...] = (4.0, 9.0, 17.0)
    rises: tuple[float, ...] = (12.0, 20.0, 31.0)
    dimension: int = 1

    def __post_init__(self) -> None:
        for name in ("starts", "rises"):
            object.__setattr__(self, name, numbers(getattr(self, name), name))
        count(self.dimension, "dimension")
        if len(self.starts) != len(self.rises):
            raise BadInput(
                f"{len(self.starts)} tones begin and {len(self.rises)} rise; as many must do both, and one at least."
            )

    def value(self, x1: Tensor) -> Tensor:
        tones = [
            torch.sin(2.0 * torch.pi * (start * x1 + 0.5 * rise * x1.square()))
            for start, rise in zip(self.starts, self.rises, strict=True)
        ]
        return torch.stack(tones).mean(0)


def sawtooth(m: int) -> Sawtooth:
    """The sawtooth of 2^m pieces."""
    return Sawtooth(m)


def steep(d: int) -> Steep:
    """The steep function of [0, 1]^d."""
    return Steep(d)


@dataclass(frozen=True, eq=False)
class BooleanTarget:
    """`function` of x (n, d) in {±1}^d, and which x are `unseen`."""

    name: str
    dimension: int
    function: Callable[[Tensor], Tensor]
    unseen: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        instance(self.name, str, "name", "a word")
        count(self.dimension, "dimension", most=_MOST_DIMENSIONS)
        for part in ("function", "unseen"):
            function(getattr(self, part), part, "a function of x (n, d)", 1)

    def __call__(self, x: Array) -> Any:
        """(n, d) → (n, 1)."""
        given = points(x)
        if given.ndim != 2 or given.shape[1] != self.dimension:
            raise BadInput(f"{self.name} takes x of shape (n, {self.dimension}), got {tuple(given.shape)}.")
        return like(x)(self.function(given)[:, None])

    def seen_and_unseen(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Both parts of the cube, point by point."""
        checked_dtype(dtype)
        if 2**self.dimension > _LARGEST:
            raise BadInput(f"{self.name} has 2^{self.dimension} points, too many to list; draw some with `sample`.")
        cube = torch.tensor(list(product((1.0, -1.0), repeat=self.dimension)), dtype=dtype)
        unseen = self.unseen(cube)
        return cube[~unseen], cube[unseen]

    def sample(self, n: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """n points of the seen part, at random."""
        found: list[Tensor] = []
        (n, _), generator = drawing(n, self.dimension), checked_generator(generator)
        while sum(map(len, found)) < n:
            drawn = (
                2.0
                * torch.randint(2, (2 * n, self.dimension), generator=generator).to(
                    checked_dtype(dtype) or torch.float64
                )
                - 1.0
            )
            found.append(drawn[~self.unseen(drawn)])
        return torch.cat(found)[:n]


def _linear(weights: list[float]) -> Callable[[Tensor], Tensor]:
    return lambda x: x @ torch.tensor(weights).to(x)


def _sign_of(*coordinates: int) -> Callable[[Tensor], Tensor]:
    """Where the product of these coordinates is −1."""
    return lambda x: x[:, list(coordinates)].prod(1) < 0.0


BOOLEAN_TARGETS: dict[str, BooleanTarget] = {
    target.name: target
    for target in (
        BooleanTarget("f1", 10, _linear([1.25] * 10), _sign_of(1)),
        BooleanTarget("f2", 10, _linear([math.sin(math.pi * n / 10) for n in range(10)]), _sign_of(1)),
        BooleanTarget("f3", 21, _linear([1.25] * 21), _sign_of(1)),
        BooleanTarget(
            "f4", 4, lambda x: 0.5 * (x[:, 0] + x[:, 1] + x[:, 2] - x[:, 1] * x[:, 2] * x[:, 3]), _sign_of(0, 1)
        ),
    )
}
"""Coordinates are counted from 0, and U is where x_1 = −1 (f1 … f3) or x_0 x_1 = −1 (f4)."""
