"""The last few vectors of every sample, as one tensor (n, k, d): what solvers that mix iterates remember.

Written into one buffer, in place, where nothing is differentiated: a step then costs one pass over the new vector instead of a
copy of all. Inside a gradient (`UnrolledAdjoint`) or a transform of `torch.func` the vectors are kept apart and stacked.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from notsodeep.fixed_points.capture import transforms_active


class Window(Protocol):
    """Vectors of n samples, k of them each."""

    @property
    def newest(self) -> int:
        """Where the last vector stands along the second axis of `stacked`."""
        ...

    def push(self, v: Tensor) -> Window:
        """The window with v, (n, d), added; the oldest leaves when it is full. The old window may no longer be used."""
        ...

    def stacked(self) -> Tensor:
        """(n, k, d)."""
        ...

    def select(self, rows: Tensor) -> Window:
        """The window of some of the samples."""
        ...


def window(like: Tensor, size: int, differences: bool = False) -> Window:
    """An empty window for up to `size` vectors of the shape of `like`, (n, d).

    With `differences` it holds the last vector as it is and, in place of each one before, its successor's difference to it.
    """
    if torch.is_grad_enabled() or transforms_active():
        return _Kept((), size, differences)
    return _Written(like.new_empty(like.shape[0], size, like.shape[1]), 0, differences)


class _Written:
    """A buffer whose slots are used in turn."""

    def __init__(self, buffer: Tensor, count: int, differences: bool) -> None:
        self.buffer, self.count, self.differences = buffer, count, differences

    @property
    def newest(self) -> int:
        return (self.count - 1) % self.buffer.shape[1]

    def push(self, v: Tensor) -> _Written:
        if self.differences and self.count:
            last = self.buffer[:, self.newest]
            torch.sub(v, last, out=last)
        self.count += 1
        self.buffer[:, self.newest] = v
        return self

    def stacked(self) -> Tensor:
        return self.buffer[:, : self.count]

    def select(self, rows: Tensor) -> _Written:
        return _Written(self.buffer[rows], self.count, self.differences)


class _Kept:
    """Tensors of their own, newest last."""

    def __init__(self, vectors: tuple[Tensor, ...], size: int, differences: bool) -> None:
        self.vectors, self.size, self.differences = vectors, size, differences

    @property
    def newest(self) -> int:
        return len(self.vectors) - 1

    def push(self, v: Tensor) -> _Kept:
        before = self.vectors
        if self.differences and before:
            before = (*before[:-1], v - before[-1])
        return _Kept((*before, v)[-self.size :], self.size, self.differences)

    def stacked(self) -> Tensor:
        return torch.stack(self.vectors, dim=1)

    def select(self, rows: Tensor) -> _Kept:
        return _Kept(tuple(v[rows] for v in self.vectors), self.size, self.differences)
