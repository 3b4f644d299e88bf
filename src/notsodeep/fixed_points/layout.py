"""A state of several tensors as one real (n, d) matrix, and back."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from notsodeep.arguments import is_whole, shown
from notsodeep.errors import BadInput
from notsodeep.tolerances import EQUILIBRIUM_RTOL

Map = Callable[[Tensor], Tensor]
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a nested tuple, list or dict stands in a row of the matrix.

    A row is one sample: one index of the leading axes that are independent problems, or the whole state where none is. The
    matrix has the widest dtype among the tensors, complex ones as their real and imaginary parts; each gets its own back.
    """

    spec: Any
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    samples: int
    axes: int  # how many leading ones the samples lie along

    @property
    def dtype(self) -> torch.dtype:
        return functools.reduce(torch.promote_types, map(_real, self.dtypes))

    @functools.cached_property
    def plain(self) -> bool:
        """Whether the state is one real tensor, as nearly always: then packing is a view."""
        return self.spec.is_leaf() and not self.dtypes[0].is_complex

    @property
    def numbers(self) -> int:
        """How many real numbers a sample has."""
        sizes = (shape.numel() * (1 + own.is_complex) for shape, own in zip(self.shapes, self.dtypes, strict=True))
        return sum(sizes) // self.samples

    @staticmethod
    def of(state: Any, axes: int | None = None) -> Layout:
        """The layout of `state` with so many leading axes of independent samples.

        None takes one axis where every tensor has at least two and they agree on its length, and no axis elsewhere.

        Raises:
            BadInput: The state holds no float or complex tensors, is empty, or has no such leading axes in common.
        """
        leaves, spec = pytree.tree_flatten(state)
        if not leaves or not all(isinstance(leaf, Tensor) and _continuous(leaf) for leaf in leaves):
            kinds = ", ".join(sorted({_kind(leaf) for leaf in leaves})) or "nothing"
            raise BadInput(
                f"The state of a fixed point must be a float or complex tensor, or a tuple, list or dict of them; got {kinds}."
            )
        for leaf in leaves:
            _require_usable(leaf)
        if any(leaf.numel() == 0 for leaf in leaves):
            raise BadInput(f"The state of a fixed point is empty: shapes {_shapes(leaves)}.")
        shapes = tuple(leaf.shape for leaf in leaves)
        axes = _axes(shapes, axes)
        return Layout(spec, shapes, tuple(leaf.dtype for leaf in leaves), math.prod(shapes[0][:axes]), axes)

    def as_one(self) -> Layout:
        """The same state as one sample."""
        return Layout(self.spec, self.shapes, self.dtypes, 1, 0)

    def of_rows(self, count: int) -> Layout:
        """The layout of `count` of the samples, which must lie along one leading axis."""
        shapes = tuple(torch.Size((count, *shape[1:])) for shape in self.shapes)
        return Layout(self.spec, shapes, self.dtypes, count, 1)

    def pack(self, state: Any) -> Tensor:
        """(n, d), a view where the state is one contiguous tensor."""
        leaves = pytree.tree_leaves(state)
        if len(leaves) == 1:
            matrix: Tensor = _as_real(leaves[0]).reshape(self.samples, -1)
            return matrix
        return torch.cat([_as_real(leaf).reshape(self.samples, -1).to(self.dtype) for leaf in leaves], dim=1)

    def unpack(self, matrix: Tensor) -> Any:
        if self.plain:
            return _from_real(matrix, self.shapes[0], self.dtypes[0])
        if len(self.shapes) == 1:
            parts: Any = [matrix]
        else:
            sizes = [shape.numel() * (1 + own.is_complex) for shape, own in zip(self.shapes, self.dtypes, strict=True)]
            parts = matrix.split([size // self.samples for size in sizes], dim=1)
        leaves = [
            _from_real(part, shape, own) for part, shape, own in zip(parts, self.shapes, self.dtypes, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.spec)

    def wrap(self, f: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
        """f, a function of states, as a function of matrices."""
        return lambda matrix: self.packed(f(self.unpack(matrix))).to(matrix.dtype)

    def packed(self, image: Any) -> Tensor:
        """`image`, what f returned, as a matrix; `BadInput` where it is not laid out like the state."""
        if self.plain and type(image) is Tensor and image.shape == self.shapes[0] and image.dtype == self.dtypes[0]:
            return image.reshape(self.samples, -1)
        return self.pack(self.check(image))

    def check(self, image: Any) -> Any:
        """`image` with the state's order of keys; a list stands for a tuple and the other way round.

        Raises:
            BadInput: It is not laid out like the state; with both shapes.
        """
        image = self.ordered(image)
        leaves, spec = pytree.tree_flatten(image)
        strange = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        if strange or not (spec == self.spec or self._is_alike(image)):
            returned = _kind(strange[0]) if strange else _tree(spec)
            raise BadInput(f"f must return what it is given: the state is {_tree(self.spec)}, f returned {returned}.")
        for shape, own, leaf in zip(self.shapes, self.dtypes, leaves, strict=True):
            if leaf.is_complex() != own.is_complex:
                raise BadInput(f"f must keep the kind of its state: it was given {own} and returned {leaf.dtype}.")
            if leaf.shape != shape:
                raise BadInput(
                    f"f must keep the shape of its state: it was given {tuple(shape)} and returned {tuple(leaf.shape)}.",
                    given=tuple(shape),
                    returned=tuple(leaf.shape),
                )
        return image

    def ordered(self, image: Any) -> Any:
        """`image` with the keys of its dicts in the order of the state's, where they are the same keys."""
        if isinstance(image, Tensor):
            return image
        return _in_order(image, pytree.tree_unflatten([0] * len(self.shapes), self.spec))

    def _is_alike(self, image: Any) -> bool:
        """Whether only lists and tuples make the difference."""
        own = pytree.tree_unflatten([0] * len(self.shapes), self.spec)
        found, wanted = (pytree.tree_flatten(_with_tuples(state))[1] for state in (image, own))
        same: bool = found == wanted
        return same


def _require_usable(leaf: Tensor) -> None:
    """`BadInput` for a tensor that no solver can compute with."""
    name = str(leaf.dtype.to_real()).removeprefix("torch.")
    if name not in EQUILIBRIUM_RTOL:
        raise BadInput(
            f"The state of a fixed point is {name}, in which torch stores numbers and computes nothing: write "
            "z0.to(torch.bfloat16)."
        )
    if leaf.layout != torch.strided or leaf.is_nested:
        kind = "nested" if leaf.is_nested else str(leaf.layout).removeprefix("torch.")
        raise BadInput(
            f"The state of a fixed point is a tensor of layout {kind}; solvers mix dense states: write z0.to_dense(), or "
            "z0.to_padded_tensor(0.0) for samples of different lengths."
        )
    if leaf.is_meta:
        raise BadInput(
            "The state of a fixed point is on the device meta, where tensors hold no numbers: write torch.zeros_like(z0, "
            "device='cpu')."
        )


def _axes(shapes: tuple[torch.Size, ...], axes: int | None) -> int:
    """How many leading axes are of samples, where so many are asked for."""
    # Lengths are compared, never put into a set: those of an exported graph are symbols, which have no hash.
    if axes is None:
        return int(all(len(shape) > 1 and shape[0] == shapes[0][0] for shape in shapes))
    if not is_whole(axes) or axes < 0:
        raise BadInput(
            f"samples says how many leading axes of the state are independent problems: 0, 1, 2 …; got {shown(axes)}."
        )
    axes = int(axes)
    leading = shapes[0][:axes]
    if any(len(shape) < axes or shape[:axes] != leading for shape in shapes):
        found = ", ".join(str(tuple(shape)) for shape in shapes)
        raise BadInput(f"samples={axes}, but the tensors of the state do not share {axes} leading axes: {found}.")
    return axes


def _continuous(leaf: Tensor) -> bool:
    return leaf.is_floating_point() or leaf.is_complex()


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real()


def _as_real(leaf: Tensor) -> Tensor:
    return torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf


def _from_real(part: Tensor, shape: torch.Size, own: torch.dtype) -> Tensor:
    if own.is_complex:
        pairs = part.reshape(*shape, 2).to(_real(own))
        return torch.view_as_complex(pairs.contiguous())
    return part.reshape(shape).to(own)


def _with_tuples(state: Any) -> Any:
    """The state with every list as a tuple."""
    if isinstance(state, dict):
        return {key: _with_tuples(part) for key, part in state.items()}
    return tuple(map(_with_tuples, state)) if type(state) in (list, tuple) else state


def _in_order(image: Any, own: Any) -> Any:
    """`image` with the keys of its dicts in the order of those in `own`."""
    if type(image) is type(own) and type(own) in (dict, OrderedDict) and image.keys() == own.keys():
        return type(own)((key, _in_order(image[key], part)) for key, part in own.items())
    pair = type(image) in (list, tuple) and type(own) in (list, tuple) and len(image) == len(own)
    return type(image)(map(_in_order, image, own)) if pair else image


def _kind(leaf: Any) -> str:
    return str(leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__


def _shapes(leaves: list[Any]) -> str:
    return ", ".join(str(tuple(leaf.shape)) for leaf in leaves)


def _tree(spec: Any) -> str:
    count = spec.num_leaves
    kind = getattr(spec.type, "__name__", None)
    keys = f" ({', '.join(map(repr, spec.context))})" if spec.type in (dict, OrderedDict) else ""
    return "a tensor" if kind is None else f"a {kind} of {count} tensor{'s' * (count != 1)}{keys}"
