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
from notsodeep.numerics.eager import eager


class _Active(threading.local):
    """The substitutions in force on this thread, outermost first: backward passes run on threads of their own."""

    def __init__(self) -> None:
        self.stack: list[_Substitution] = []


_ACTIVE = _Active()


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
        self.known = {id(tensor): tensor for tensor in known}  # holding them keeps an id from being given again
        self.found: dict[int, Tensor] = {}

    @eager
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and id(leaf) not in self.known and _continuous(leaf):
                self.found[id(leaf)] = leaf
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf) not in self.found:
                self.known[id(leaf)] = leaf
        return result


def _continuous(tensor: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return tensor.is_floating_point() or tensor.is_complex()


class _Substitution(TorchFunctionMode):
    """Puts other tensors in the place of the captured ones, and refuses constants that were not there before."""

    def __init__(self, captured: Sequence[Tensor], others: Sequence[Tensor], known: Sequence[Tensor]) -> None:
        super().__init__()
        self.others = {id(old): new for old, new in zip(captured, others, strict=True)}
        self.known = {id(tensor): tensor for tensor in (*others, *known)}

    @eager
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, self.replace, (args, kwargs or {}))
        if not transforms_active():
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor) and id(leaf) not in self.known:
                    _refuse_new_constant(leaf)
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.known[id(leaf)] = leaf
        return result

    def replace(self, tensor: Tensor) -> Tensor:
        return self.others.get(id(tensor), tensor)

    def __enter__(self) -> Any:
        _ACTIVE.stack.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _ACTIVE.stack.pop()


def _refuse_new_constant(tensor: Tensor) -> None:
    """A tensor of no graph that the first evaluation did not use: f is not the function that it was."""
    with torch._C.DisableTorchFunction():
        new = _continuous(tensor) and tensor.grad_fn is None and not tensor.requires_grad and tensor.numel() > 1
    if new:
        raise BadInput(
            f"In the backward pass f uses a tensor of shape {tuple(tensor.shape)} that it did not use before: a name that it "
            "closes over stands for something else now. Bind it when f is made (lambda z, x=x: …), or pass it in args=(…)."
        )


class Closure:
    """f(z), and `closure(z, *tensors)`: f with `tensors` in the place of those that it closes over."""

    def __init__(self, f: Callable[[Any], Any], captured: Sequence[Tensor]) -> None:
        self.f, self.captured = f, tuple(captured)

    def __call__(self, z: Any, *tensors: Tensor) -> Any:
        if all(new is old for new, old in zip(tensors, self.captured, strict=True)):
            return self.f(z)
        with _Substitution(self.captured, tensors, pytree.tree_leaves(z)):
            return self.f(z)


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
