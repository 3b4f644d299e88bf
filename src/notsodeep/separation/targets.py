"""Functions that a DEQ expresses, or learns, more cheaply than a feed-forward network. Ref: [wu2024].

A `Target` is a function of the first coordinate: it maps samples (n, d) to (n, 1), and a one-dimensional x, which stands for
that coordinate, to (n,). A `BooleanTarget` is a function of all coordinates, on {±1}^d.
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

from notsodeep.arguments import count, dtype as checked_dtype, function, generator as checked_generator, instance, numbers
from notsodeep.arrays import Array, check_dense, check_memory, like
from notsodeep.errors import BadInput

_MOST_DIMENSIONS = 1000
_LARGEST = 2**22  # most points of a cube that are listed


class Target(ABC):
    """An exact function on the cube [low, high]^dimension; a subclass gives `value`."""

    dimension: int
    low, high = 0.0, 1.0

    @abstractmethod
    def value(self, x1: Tensor) -> Tensor:
        """The function's values at first coordinates x1."""

    def __call__(self, x: Array) -> Any:
        given = points(x)
        return like(x)(self.value(given if given.ndim < 2 else given[..., :1]))

    def sample(self, n: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """n random points (n, dimension) of the domain, uniform unless a subclass has its own law."""
        shape = drawing(n, self.dimension)
        drawn = torch.rand(*shape, generator=checked_generator(generator), dtype=checked_dtype(dtype))
        return self.low + (self.high - self.low) * drawn


def points(x: Array) -> Tensor:
    """x as a dense tensor of real numbers; raises BadInput for anything else."""
    native = isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.dtype.isnative and x.dtype.itemsize <= 8
    given: Tensor = instance(torch.from_numpy(np.array(x)) if native else x, Tensor, "x", "a tensor of real numbers")
    check_dense(given, "x")
    if given.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise BadInput(f"x holds {given.dtype}; a target is a function of real numbers.")
    return given


def drawing(n: int, dimension: int) -> tuple[int, int]:
    """The shape of n points; raises BadInput where they do not fit in memory."""
    n = count(n, "n")
    check_memory((n, dimension), torch.float64, torch.device("cpu"), "a smaller n", f"{n} points of dimension {dimension}")
    return n, dimension


@dataclass(frozen=True)
class Sawtooth(Target):
    """φ^m on [0, 1] with φ⁰ = x_1, φ^{k+1} = 2φ^k − 2 relu(2φ^k − 1): 2^m linear pieces, exact in floating point.

    Ref: [wu2024], expressivity.

    Args:
        pieces_log2: m, from 1 to 1000.
        dimension: the number of coordinates.
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
    """g(x) = δ x_1/(2(1 + δ − x_1)) on [0, 1]^d, δ = 2^(−d): flat, then rising to ½ within δ of x_1 = 1.

    Ref: [wu2024], steep functions.

    Args:
        dimension: d, from 1 to 1000.

    Raises:
        BadInput: d is out of range.
    """

    dimension: int

    def __post_init__(self) -> None:
        if count(self.dimension, "d") > _MOST_DIMENSIONS:
            raise BadInput(f"2^(−{self.dimension}) underflows in double precision; d = {_MOST_DIMENSIONS} is the most.")

    @property
    def delta(self) -> float:
        """δ = 2^(−d)."""
        return 2.0**-self.dimension

    def value(self, x1: Tensor) -> Tensor:
        # 1 − x_1 first: it is exact near 1, where the function rises.
        return self.delta * x1 / (2.0 * ((1.0 - x1) + self.delta))

    def sample(self, n: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """n random points, half of them with x_1 from U(0, 1 − δ), half from U(1 − δ, 1)."""
        points = super().sample(n, generator, dtype)
        steep = torch.arange(n) >= n // 2
        first = points[:, 0]
        points[:, 0] = torch.where(steep, 1.0 - self.delta * first, (1.0 - self.delta) * first)
        return points


@dataclass(frozen=True)
class Chirps(Target):
    """Σ_k sin(2π (f_k x + ½ r_k x²))/K on [0, 1]: like a sound of K tones that rise from f_k to f_k + r_k periods.

    Args:
        starts: The frequencies f_k.
        rises: The increases r_k, as many.
        dimension: The number of coordinates.

    Raises:
        BadInput: There are not as many frequencies as increases, or they are not finite numbers.
    """

    starts: tuple[float, ...] = (4.0, 9.0, 17.0)
    rises: tuple[float, ...] = (12.0, 20.0, 31.0)
    dimension: int = 1

    def __post_init__(self) -> None:
        for name in ("starts", "rises"):
            object.__setattr__(self, name, numbers(getattr(self, name), name))
        count(self.dimension, "dimension")
        if len(self.starts) != len(self.rises):
            raise BadInput(f"There are {len(self.starts)} starts and {len(self.rises)} rises; give one of each per tone.")

    def value(self, x1: Tensor) -> Tensor:
        tones = [
            torch.sin(2.0 * torch.pi * (start * x1 + 0.5 * rise * x1.square()))
            for start, rise in zip(self.starts, self.rises, strict=True)
        ]
        return torch.stack(tones).mean(0)


@dataclass(frozen=True, eq=False)
class BooleanTarget:
    """A function on the cube {±1}^d, with a part of it that is never seen in training.

    Args:
        name: a name for messages.
        dimension: d.
        function: the values (n,) at x (n, d).
        unseen: which x (n, d) are unseen, (n,).
    """

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
        """The values at x (n, d), as (n, 1)."""
        given = points(x)
        if given.ndim != 2 or given.shape[1] != self.dimension:
            raise BadInput(f"{self.name} takes x of shape (n, {self.dimension}), got {tuple(given.shape)}.")
        return like(x)(self.function(given)[:, None])

    def seen_and_unseen(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """All points of the seen and of the unseen part; raises BadInput for a cube of more than 2^22 points."""
        checked_dtype(dtype)
        if 2**self.dimension > _LARGEST:
            raise BadInput(f"{self.name} has 2^{self.dimension} points, too many to list; draw some with `sample`.")
        cube = torch.tensor(list(product((1.0, -1.0), repeat=self.dimension)), dtype=dtype)
        unseen = self.unseen(cube)
        return cube[~unseen], cube[unseen]

    def sample(self, n: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """n random points of the seen part, (n, d)."""
        found: list[Tensor] = []
        (n, d), generator = drawing(n, self.dimension), checked_generator(generator)
        dtype = checked_dtype(dtype) or torch.float64
        while sum(map(len, found)) < n:
            drawn = 2.0 * torch.randint(2, (2 * n, d), generator=generator).to(dtype) - 1.0
            found.append(drawn[~self.unseen(drawn)])
        return torch.cat(found)[:n]


def _linear(weights: list[float]) -> Callable[[Tensor], Tensor]:
    return lambda x: x @ torch.tensor(weights).to(x)


def _sign_of(*coordinates: int) -> Callable[[Tensor], Tensor]:
    """The set on which the product of these coordinates is −1."""
    return lambda x: x[:, list(coordinates)].prod(1) < 0.0


BOOLEAN_TARGETS: dict[str, BooleanTarget] = {
    target.name: target
    for target in (
        BooleanTarget("f1", 10, _linear([1.25] * 10), _sign_of(1)),
        BooleanTarget("f2", 10, _linear([math.sin(math.pi * n / 10) for n in range(10)]), _sign_of(1)),
        BooleanTarget("f3", 21, _linear([1.25] * 21), _sign_of(1)),
        BooleanTarget("f4", 4, lambda x: 0.5 * (x[:, :3].sum(1) - x[:, 1:4].prod(1)), _sign_of(0, 1)),
    )
}
"""The paper's targets by name. Coordinates count from 0; the unseen part is x_1 = −1 (f1 … f3) or x_0 x_1 = −1 (f4)."""
