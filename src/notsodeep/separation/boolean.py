"""Functions on {±1}^d of which a part U is never seen in training. Ref: [wu2024], learning dynamics.

The generalisation on the unseen part (GOTU) of f̂ is the mean of (f̂ − f)² over U.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import count, function, instance
from notsodeep.arguments import dtype as checked_dtype
from notsodeep.arguments import generator as checked_generator
from notsodeep.arrays import Array, like
from notsodeep.errors import BadInput
from notsodeep.separation.targets import drawing, points

_LARGEST = 2**22  # points of a cube that are listed


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
