"""A function of the state alone, made into a function of the state and of every tensor that it closes over.

An implicit gradient needs those tensors as arguments: to hand each its gradient, and to put others in their place while a
gradient of a gradient, or `torch.func`, looks through f. They are found by watching one evaluation of f.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from notsodeep.errors import BadInput
from notsodeep.fixed_points.eager import eager


class _Active(threading.local):
    """The substitutions in force on this thread, outermost first: backward passes run on threads of their own."""

    def __init__(self) -> None:
        self.stack: list[_Substitution] = []


_ACTIVE = _Active()
_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def transforms_active() -> bool:
    """Whether a `torch.func` transform (grad, vmap, jacrev …) is at work around us."""
    return bool(torch._C._are_functorch_transforms_active())


def require_not_batched(tensors: Sequence[Tensor], what: str) -> None:
    """`BadInput` where a vmap is at work that cannot be looked under: the number of steps depends on the numbers."""
    functorch = torch._C._functorch
    if any(functorch.is_batchedtensor(t) or functorch.is_legacy_batchedtensor(t) for t in tensors):
        raise BadInput(f"{what}; with ImplicitAdjoint(), torch.func.vmap, grad and jacrev work.")


class _Recorder(TorchFunctionMode):
    """Collects the tensors that come into a computation from outside.

    Constants too: a backward pass evaluates f once more, and must find them as they were.
    """

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.level = _level()
        self.known = {id(tensor): tensor for tensor in known}  # holding them keeps an id from being given again
        self.found: dict[int, Tensor] = {}

    @eager
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and id(leaf) not in self.known and self._from_outside(leaf):
                self.found[id(leaf)] = leaf
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf) not in self.found:
                self.known[id(leaf)] = leaf
        return result

    def _from_outside(self, leaf: Tensor) -> bool:
        return _continuous(leaf) and not _wrapped_beyond(leaf, self.level)


def _level() -> int:
    """How many transforms of `torch.func` are at work around us."""
    return torch._C._functorch.maybe_current_level() or 0


def _wrapped_beyond(tensor: Tensor, level: int) -> bool:
    """Whether a transform inside of f (torch.func.grad of an energy, say) has wrapped this tensor: then it is f's own."""
    return int(torch._C._functorch.maybe_get_level(tensor)) > level


def _continuous(tensor: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return tensor.is_floating_point() or tensor.is_complex()


class _Substitution(TorchFunctionMode):
    """Puts other tensors in the place of the captured ones, and notes constants that were not there before."""

    def __init__(self, captured: Sequence[Tensor], others: Sequence[Tensor], known: Sequence[Tensor]) -> None:
        super().__init__()
        self.others = {id(old): new for old, new in zip(captured, others, strict=True)}
        self.known = {id(tensor): tensor for tensor in (*others, *known)}
        self.unused = {id(old): old for old in captured if not old.requires_grad}
        self.strange: list[Tensor] = []
        self.level = _level()

    @eager
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, self.replace, (args, kwargs or {}))
        if func == _DATA:  # under nested transforms .data cuts one level only
            func = torch.Tensor.detach
        self.strange += [leaf for leaf in pytree.tree_leaves((args, kwargs)) if self._is_strange(leaf)]
        result = func(*args, **kwargs)
        self.known.update((id(leaf), leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor))
        return result

    def replace(self, tensor: Tensor) -> Tensor:
        self.unused.pop(id(tensor), None)
        return self.others.get(id(tensor), tensor)

    def _is_strange(self, leaf: Any) -> bool:
        """A constant that is neither captured nor made by f."""
        if not isinstance(leaf, Tensor) or id(leaf) in self.known:
            return False
        if not _continuous(leaf) or _wrapped_beyond(leaf, self.level):
            return False
        with torch._C.DisableTorchFunction():
            return leaf.grad_fn is None and not leaf.requires_grad

    def require_same_constants(self) -> None:
        """`BadInput` where constants are missing and others, of other values, are there instead: f is another function now.

        A constant that f makes anew each time, or keeps from its first evaluation, is no such thing.
        """
        left = list(self.unused.values())
        if not left:
            return
        for tensor in self.strange:
            if not any(old.shape == tensor.shape and bool(torch.equal(old, tensor)) for old in left):
                raise BadInput(
                    f"In the backward pass f uses a tensor of shape {tuple(tensor.shape)} that it did not use before, in place "
                    "of another: a name that it closes over stands for something else now, or it took another branch. Bind the "
                    "name when f is made (lambda z, x=x: …), or pass the tensor in args=(…)."
                )

    def __enter__(self) -> Any:
        _ACTIVE.stack.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _ACTIVE.stack.pop()


class Closure:
    """f(z), and `closure(z, *tensors)`: f with `tensors` in the place of those that it closes over."""

    def __init__(self, f: Callable[[Any], Any], captured: Sequence[Tensor]) -> None:
        self.f, self.captured = f, tuple(captured)

    def __call__(self, z: Any, *tensors: Tensor) -> Any:
        if all(new is old for new, old in zip(tensors, self.captured, strict=True)):
            return self.f(z)
        substitution = _Substitution(self.captured, tensors, pytree.tree_leaves(z))
        with substitution:
            image = self.f(z)
        if not transforms_active():
            substitution.require_same_constants()
        return image


def capture(f: Callable[[Any], Any], z: Any) -> tuple[Closure, tuple[Tensor, ...]]:
    """f as a `Closure`, and the tensors to call it with: those found in one evaluation of f(z)."""
    recorder = _Recorder(pytree.tree_leaves(z))
    with torch.no_grad(), recorder:
        f(z)
    captured = tuple(recorder.found.values())
    tensors = captured
    for outer in reversed(_ACTIVE.stack):  # f may itself be evaluated with other tensors in place of its own
        tensors = tuple(outer.replace(tensor) for tensor in tensors)
    return Closure(f, captured), tensors


def require_all_seen(output: Tensor, allowed: Sequence[Tensor]) -> None:
    """`BadInput` where the graph of `output` reaches a leaf that is not among `allowed`: its gradient would be lost."""
    ours = {id(tensor) for tensor in allowed}
    todo, seen = [output.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in ours:
            raise BadInput(
                f"f uses a tensor of shape {tuple(variable.shape)} that needs a gradient where it was not seen: inside a "
                "custom autograd function, in a branch that the first evaluation did not take, or beside args. Pass it as an "
                "argument: fixed_point(f, z0, …, args=(tensor,)) with f(z, tensor).",
                shape=tuple(variable.shape),
            )
        todo.extend(edge for edge, _ in node.next_functions)
