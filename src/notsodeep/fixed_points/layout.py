"""A state of several tensors as one (n, d) matrix, and back."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from notsodeep.errors import BadInput


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a nested tuple, list or dict stands in a row of the matrix.

    The first axis counts samples where every tensor has at least two axes and they agree on its length; otherwise the whole
    state is one sample. The matrix has the widest dtype among them, and each tensor gets its own back.
    """

    spec: Any
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    samples: int

    @property
    def dtype(self) -> torch.dtype:
        return functools.reduce(torch.promote_types, self.dtypes)

    @staticmethod
    def of(state: Any) -> Layout:
        leaves, spec = pytree.tree_flatten(state)
        if not leaves or not all(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves):
            kinds = ", ".join(sorted({_kind(leaf) for leaf in leaves})) or "nothing"
            raise BadInput(
                f"The state of a fixed point must be a float tensor, or a tuple, list or dict of them; got {kinds}."
            )
        if any(leaf.numel() == 0 for leaf in leaves):
            raise BadInput(f"The state of a fixed point is empty: shapes {_shapes(leaves)}.")
        shapes = tuple(leaf.shape for leaf in leaves)
        lengths = {shape[0] if len(shape) > 1 else None for shape in shapes}
        length = lengths.pop() if len(lengths) == 1 else None
        return Layout(spec, shapes, tuple(leaf.dtype for leaf in leaves), 1 if length is None else length)

    def pack(self, state: Any) -> Tensor:
        """(n, d), a view where the state is one contiguous tensor."""
        leaves = pytree.tree_leaves(state)
        if len(leaves) == 1:
            matrix: Tensor = leaves[0].reshape(self.samples, -1)
            return matrix
        return torch.cat([leaf.reshape(self.samples, -1).to(self.dtype) for leaf in leaves], dim=1)

    def unpack(self, matrix: Tensor) -> Any:
        if len(self.shapes) == 1:
            return pytree.tree_unflatten([matrix.reshape(self.shapes[0])], self.spec)
        widths = [shape.numel() // self.samples for shape in self.shapes]
        parts = matrix.split(widths, dim=1)
        return pytree.tree_unflatten(
            [part.reshape(shape).to(own) for part, shape, own in zip(parts, self.shapes, self.dtypes, strict=True)],
            self.spec,
        )

    def require_same(self, image: Any) -> None:
        """`BadInput` with both shapes where f(z) is not laid out like z."""
        leaves, spec = pytree.tree_flatten(image)
        strange = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        if spec != self.spec or strange:
            returned = _kind(strange[0]) if strange else _tree(spec)
            raise BadInput(f"f must return what it is given: the state is {_tree(self.spec)}, f returned {returned}.")
        for shape, leaf in zip(self.shapes, leaves, strict=True):
            if leaf.shape != shape:
                raise BadInput(
                    f"f must keep the shape of its state: it was given {tuple(shape)} and returned {tuple(leaf.shape)}.",
                    given=tuple(shape),
                    returned=tuple(leaf.shape),
                )


def _kind(leaf: Any) -> str:
    return str(leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__


def _shapes(leaves: list[Any]) -> str:
    return ", ".join(str(tuple(leaf.shape)) for leaf in leaves)


def _tree(spec: Any) -> str:
    count = spec.num_leaves
    kind = getattr(spec.type, "__name__", None)
    return "a tensor" if kind is None else f"a {kind} of {count} tensor{'s' * (count != 1)}"
