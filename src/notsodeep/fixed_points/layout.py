"""States, one tensor or several, as real (n, d) matrices with one sample per row, and back."""

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
class StateLayout:
    """Where each tensor of a nested tuple, list or dict stands in a row of the matrix.

    A row is one sample: one index of the leading axes that are independent problems, or the whole state without such axes. The
    matrix has the widest dtype among the tensors, complex ones as their real and imaginary parts; `unpack` restores each.
    """

    spec: Any
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    samples: int
    axes: int  # how many leading axes the samples lie along

    @property
    def dtype(self) -> torch.dtype:
        return functools.reduce(torch.promote_types, (dtype.to_real() for dtype in self.dtypes))

    @functools.cached_property
    def plain(self) -> bool:
        """Whether the state is one real tensor, as nearly always: then packing is a view."""
        return self.spec.is_leaf() and not self.dtypes[0].is_complex

    @property
    def sizes(self) -> list[int]:
        """How many real numbers a sample has in each tensor."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return [shape.numel() * (1 + own.is_complex) // self.samples for shape, own in pairs]

    @staticmethod
    def of(state: Any, axes: int | None = None) -> StateLayout:
        """The layout of `state` with `axes` leading axes of independent samples; `BadInput` where that is not possible.

        None takes one axis where every tensor has at least two and they agree on its length, and no axis elsewhere.
        """
        leaves, spec = pytree.tree_flatten(state)
        if not leaves or not all(isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex()) for v in leaves):
            kinds = ", ".join(sorted({_kind(leaf) for leaf in leaves})) or "nothing"
            raise BadInput(f"A state must be a float or complex tensor, or a tuple, list or dict of them; got {kinds}.")
        for leaf in leaves:
            _require_usable(leaf)
        shapes = tuple(leaf.shape for leaf in leaves)
        if any(leaf.numel() == 0 for leaf in leaves):  # not of a shape, which would fix the length of an exported axis
            raise BadInput(f"The state of a fixed point is empty: shapes {_shown(shapes)}.")
        axes = _axes(shapes, axes)
        return StateLayout(spec, shapes, tuple(leaf.dtype for leaf in leaves), math.prod(shapes[0][:axes]), axes)

    def of_rows(self, count: int) -> StateLayout:
        """The layout of `count` of the samples, which must lie along one leading axis."""
        shapes = tuple(torch.Size((count, *shape[1:])) for shape in self.shapes)
        return StateLayout(self.spec, shapes, self.dtypes, count, 1)

    def pack(self, state: Any) -> Tensor:
        """(n, d), a view where the state is one contiguous tensor."""
        leaves = pytree.tree_leaves(state)
        if len(leaves) == 1:
            return _as_real(leaves[0]).reshape(self.samples, -1)
        return torch.cat([_as_real(leaf).reshape(self.samples, -1).to(self.dtype) for leaf in leaves], dim=1)

    def unpack(self, matrix: Tensor) -> Any:
        """The state of a matrix."""
        if self.plain:
            return _from_real(matrix, self.shapes[0], self.dtypes[0])
        parts = matrix.split(self.sizes, dim=1) if len(self.shapes) > 1 else [matrix]
        return pytree.tree_unflatten(list(map(_from_real, parts, self.shapes, self.dtypes)), self.spec)

    def wrap(self, f: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
        """f, a function of states, as a function of matrices."""
        return lambda matrix: self.packed(f(self.unpack(matrix))).to(matrix.dtype)

    def packed(self, image: Any) -> Tensor:
        """The image that f returned as a matrix; `BadInput` where it is not laid out like the state."""
        if self.plain and type(image) is Tensor and image.shape == self.shapes[0] and image.dtype == self.dtypes[0]:
            return image.reshape(self.samples, -1)
        return self.pack(self.check(image))

    def check(self, image: Any) -> Any:
        """`image` as `ordered` gives it; `BadInput`, with both shapes, where it is not laid out like the state."""
        image = self.ordered(image)
        leaves, spec = pytree.tree_flatten(image)
        strange = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        if strange or spec != self.spec:
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
        """`image` with the state's order of keys, and its lists and tuples, wherever keys and lengths agree."""
        if isinstance(image, Tensor):
            return image
        return _in_order(image, pytree.tree_unflatten([0] * len(self.shapes), self.spec))


def _require_usable(leaf: Tensor) -> None:
    """Raise `BadInput` for a tensor that no solver can compute with."""
    name = str(leaf.dtype.to_real()).removeprefix("torch.")
    if name not in EQUILIBRIUM_RTOL:
        raise BadInput(f"The state is {name}, in which torch computes nothing: write z0.to(torch.bfloat16).")
    if leaf.layout != torch.strided or leaf.is_nested:
        kind = "nested" if leaf.is_nested else str(leaf.layout).removeprefix("torch.")
        raise BadInput(
            f"The state of a fixed point is a tensor of layout {kind}; solvers mix dense states: write z0.to_dense(), or "
            "z0.to_padded_tensor(0.0) for samples of different lengths."
        )
    if leaf.is_meta:
        raise BadInput("On the device meta tensors hold no numbers: write torch.zeros_like(z0, device='cpu').")


def _axes(shapes: tuple[torch.Size, ...], axes: int | None) -> int:
    """The number of leading axes that count samples, given or guessed."""
    # Lengths are compared, never put into a set: those of an exported graph are symbols, which have no hash.
    if axes is None:
        return int(all(len(shape) > 1 and shape[0] == shapes[0][0] for shape in shapes))
    if not is_whole(axes) or axes < 0:
        raise BadInput(f"samples, the number of independent leading axes, must be 0, 1, 2 …; got {shown(axes)}.")
    axes = int(axes)
    leading = shapes[0][:axes]
    if any(len(shape) < axes or shape[:axes] != leading for shape in shapes):
        raise BadInput(f"samples={axes}, but its tensors do not share {axes} leading axes: {_shown(shapes)}.")
    return axes


def _as_real(leaf: Tensor) -> Tensor:
    return torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf


def _from_real(part: Tensor, shape: torch.Size, own: torch.dtype) -> Tensor:
    if own.is_complex:
        pairs = part.reshape(*shape, 2).to(own.to_real())
        return torch.view_as_complex(pairs.contiguous())
    return part.reshape(shape).to(own)


def _in_order(image: Any, own: Any) -> Any:
    """`image` in the containers of `own`, a state that may be overwritten."""
    if isinstance(image, dict) and isinstance(own, dict) and image.keys() == own.keys():
        own.update({key: _in_order(image[key], part) for key, part in own.items()})
        return own
    pair = type(image) in (list, tuple) and type(own) in (list, tuple) and len(image) == len(own)
    return type(own)(map(_in_order, image, own)) if pair else image


def _kind(leaf: Any) -> str:
    return str(leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__


def _shown(shapes: tuple[torch.Size, ...]) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)


def _tree(spec: Any) -> str:
    count = spec.num_leaves
    kind = getattr(spec.type, "__name__", None)
    keys = f" ({', '.join(map(repr, spec.context))})" if spec.type in (dict, OrderedDict) else ""
    return "a tensor" if kind is None else f"a {kind} of {count} tensor{'s' * (count != 1)}{keys}"
