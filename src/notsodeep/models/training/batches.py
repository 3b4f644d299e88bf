"""Batches of what is in memory already."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from notsodeep.arguments import count, generator as checked_generator, instance
from notsodeep.arrays import refuse_unreadable
from notsodeep.errors import BadInput


class Batches:
    """(x, y) in batches of `size`, in a new random order each time that it is iterated; without a generator, as they are.

    It stands where a DataLoader does, without gathering samples one by one.
    """

    def __init__(self, x: Tensor, y: Tensor, size: int = 128, generator: torch.Generator | None = None) -> None:
        for name, given in (("x", x), ("y", y)):
            instance(given, Tensor, name, "a tensor")
            refuse_unreadable(given, name)
            if given.ndim == 0:
                raise BadInput(f"{name} has shape (); expected one row, or one label, a sample.")
        if len(x) != len(y):
            raise BadInput(f"There are {len(x)} samples and {len(y)} labels; they must be as many.")
        self.x, self.y, self.size, self.generator = x, y, count(size, "size"), checked_generator(generator)

    def __len__(self) -> int:
        return -(-len(self.x) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.generator is None:
            yield from zip(self.x.split(self.size), self.y.split(self.size), strict=True)
            return
        order = torch.randperm(len(self.x), generator=self.generator, device=self.generator.device)
        for chosen in order.split(self.size):
            yield self.x[chosen.to(self.x.device)], self.y[chosen.to(self.y.device)]
