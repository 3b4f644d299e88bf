"""The last few vectors of every sample, or their differences, as one tensor (n, k, d): the memory of solvers that mix iterates.

Where nothing is differentiated they are written into one buffer, in place: a step then costs one pass over the new vector
instead of a copy of all. Inside a gradient (`UnrolledAdjoint`) or a transform of `torch.func` the vectors are kept apart and
stacked. After `push` only its result may be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.fixed_points.capture import transforms_active


class WrittenWindow:
    """A buffer, (n, size, d), whose slots are used in turn."""

    def __init__(self, buffer: Tensor, count: int) -> None:
        self.buffer, self.count = buffer, count

    def push(self, v: Tensor) -> Self:
        """With v, (n, d), in place of the oldest when it is full."""
        self.buffer[:, self.count % self.buffer.shape[1]] = v
        self.count += 1
        return self

    def stacked(self) -> Tensor:
        """(n, k, d)."""
        return self.buffer[:, : self.count]

    def select(self, rows: Tensor) -> Self:
        """The window of some of the samples."""
        return type(self)(self.buffer[rows], self.count)


class KeptWindow:
    """The same in separate tensors, newest last."""

    def __init__(self, vectors: tuple[Tensor, ...], size: int) -> None:
        self.vectors, self.size = vectors, size

    def push(self, v: Tensor) -> Self:
        return type(self)((*self.vectors, v)[-self.size :], self.size)

    def stacked(self) -> Tensor:
        return torch.stack(self.vectors, dim=1)

    def select(self, rows: Tensor) -> Self:
        return type(self)(tuple(v[rows] for v in self.vectors), self.size)


Window = WrittenWindow | KeptWindow


def window(like: Tensor, size: int) -> Window:
    """An empty window for up to `size` vectors of the shape of `like`, (n, d)."""
    if torch.is_grad_enabled() or transforms_active():
        return KeptWindow((), size)
    return WrittenWindow(like.new_empty(like.shape[0], size, like.shape[1]), 0)


class WrittenDifferences:
    """The last vector, `count` differences in a buffer whose slots are used in turn, and their products with each other."""

    def __init__(
        self, last: Tensor, buffer: Tensor, count: int, fresh: tuple[int, ...] = (), gram: Tensor | None = None
    ) -> None:
        self.last, self.buffer, self.count, self.fresh, self.gram = last, buffer, count, fresh, gram

    def push(self, vectors: Sequence[Tensor]) -> Self:
        """With the differences of more vectors, (n, d) each, that follow the last one."""
        for before, after in pairwise((self.last, *vectors)):
            slot = self.count % self.buffer.shape[1]
            torch.sub(after, before, out=self.buffer[:, slot])
            self.count += 1
            self.fresh += (slot,)
        self.last = vectors[-1]
        return self

    def stacked(self) -> Tensor:
        """(n, k, d)."""
        return self.buffer[:, : self.count]

    def products(self) -> tuple[Tensor, Tensor]:
        """Of the differences with the last vector, (n, k), and with each other, (n, k, k)."""
        held = self.stacked()
        k, fresh = held.shape[1], tuple(dict.fromkeys(self.fresh))
        if self.gram is None or len(fresh) == k:
            self.gram = held.new_empty(len(held), k, k)
        elif self.gram.shape[1] < k:
            self.gram = functional.pad(self.gram, (0, k - self.gram.shape[1]) * 2)
        for j in fresh:  # those among older differences are known
            self.gram[:, j] = self.gram[:, :, j] = _along(held[:, j], held)
        self.fresh = ()
        return _along(self.last, held), self.gram

    def select(self, rows: Tensor) -> Self:
        """The differences of some of the samples."""
        gram = None if self.gram is None else self.gram[rows]
        return type(self)(self.last[rows], self.buffer[rows], self.count, self.fresh, gram)


class KeptDifferences:
    """The same in separate tensors, newest last."""

    def __init__(self, last: Tensor, kept: tuple[Tensor, ...], size: int) -> None:
        self.last, self.kept, self.size = last, kept, size

    def push(self, vectors: Sequence[Tensor]) -> Self:
        kept = (*self.kept, *(after - before for before, after in pairwise((self.last, *vectors))))
        return type(self)(vectors[-1], kept[-self.size :], self.size)

    def stacked(self) -> Tensor:
        return torch.stack(self.kept, dim=1)

    def products(self) -> tuple[Tensor, Tensor]:
        held = self.stacked()
        return _along(self.last, held), torch.bmm(held, held.mT)

    def select(self, rows: Tensor) -> Self:
        return type(self)(self.last[rows], tuple(v[rows] for v in self.kept), self.size)


Differences = WrittenDifferences | KeptDifferences


def differences(first: Tensor, size: int) -> Differences:
    """The last `size` differences of vectors that begin with `first`, (n, d)."""
    if torch.is_grad_enabled() or transforms_active():
        return KeptDifferences(first, (), size)
    return WrittenDifferences(first, first.new_empty(first.shape[0], size, first.shape[1]), 0)


def _along(v: Tensor, held: Tensor) -> Tensor:
    """The products of v, (n, d), with each of those held, (n, k, d)."""
    # A row times a matrix: faster than a matrix times a column, and than several rows, which must be copied together first.
    return torch.bmm(v[:, None], held.mT)[:, 0]
