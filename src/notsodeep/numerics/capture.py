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
from torch.autograd.forward_ad import unpack_dual
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from notsodeep.errors import BadInput
from notsodeep.numerics.eager import eager


class _Active(threading.local):
    """The substitutions in force on this thread, outermost first: backward passes run on threads of their own."""

    def __init__(self) -> None:
        self.stack: list[_Substitution] = []


_ACTIVE = _Active()


def transforms_active() -> bool:
    """Whether a `torch.func` transform (grad, vmap, jacrev …) is at work around us."""
    return bool(torch._C._are_functorch_transforms_active())


class _Recorder(TorchFunctionMode):
    """Collects the tensors that come into a computation from outside and may carry a gradient."""

    def __init__(self, known: Sequence[Tensor], everything: bool) -> None:
        super().__init__()
        self.everything = everything
        self.known = {id(tensor): tensor for tensor in known}  # holding them keeps an id from being given again
        self.found: dict[int, Tensor] = {}

    @eager
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and id(leaf) not in self.known and self._wanted(leaf):
                self.found[id(leaf)] = leaf
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf) not in self.found:
                self.known[id(leaf)] = leaf
        return result

    def _wanted(self, leaf: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            if not leaf.is_floating_point():
                return False
            return self.everything or leaf.requires_grad or unpack_dual(leaf).tangent is not None


class _Substitution(TorchFunctionMode):
    """Puts other tensors in the place of the captured ones."""

    def __init__(self, captured: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        super().__init__()
        self.others = {id(old): new for old, new in zip(captured, others, strict=True)}

    @eager
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, self.replace, (args, kwargs or {}))
        return func(*args, **kwargs)

    def replace(self, tensor: Tensor) -> Tensor:
        return self.others.get(id(tensor), tensor)

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
        with _Substitution(self.captured, tensors):
            return self.f(z)


def capture(f: Callable[[Any], Any], z: Any) -> tuple[Closure, tuple[Tensor, ...]]:
    """f as a `Closure`, and the tensors to call it with: those found in one evaluation of f(z)."""
    recorder = _Recorder(pytree.tree_leaves(z), everything=transforms_active())
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
                f"f uses a tensor of shape {tuple(variable.shape)} that needs a gradient where it cannot be seen (inside a "
                "custom autograd function, or a compiled one). Pass it as an argument: fixed_point(f, z0, …, args=(tensor,)) "
                "with f(z, tensor).",
                shape=tuple(variable.shape),
            )
        todo.extend(edge for edge, _ in node.next_functions)
