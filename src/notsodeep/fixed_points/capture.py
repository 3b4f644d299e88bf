"""The tensors that a function of the state closes over, found by watching one evaluation, and ways to replace them.

An implicit gradient needs those tensors as arguments: to give each its gradient, and to put others in their place for a second
derivative or a transform of `torch.func`. A first derivative follows the graph of the last evaluation instead.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from notsodeep.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])
_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def eager(function: F) -> F:
    """`function` as a break in any graph compiled around it, which cannot hold a loop until convergence.

    torch's compiler takes a second to import, so it is asked only where it is at work.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(F, call)


def transforms_active() -> bool:
    """Whether a `torch.func` transform (grad, vmap, jacrev …) is at work around us."""
    return bool(torch._C._are_functorch_transforms_active())


def require_not_batched(tensors: Sequence[Tensor], what: str) -> None:
    """Raise `BadInput` under a vmap that hides the numbers: the number of steps depends on them."""
    functorch = torch._C._functorch
    if any(functorch.is_batchedtensor(t) or functorch.is_legacy_batchedtensor(t) for t in tensors):
        raise BadInput(f"{what}; with ImplicitAdjoint(), torch.func.vmap, grad and jacrev work.")


class _Active(threading.local):
    """The watches at work on this thread, outermost first: backward passes run on threads of their own."""

    def __init__(self) -> None:
        self.stack: list[_Watch] = []


_ACTIVE = _Active()


class _Watch(TorchFunctionMode):
    """Finds the tensors that enter a computation from outside, in the order of their first use, and replaces some of them."""

    def __init__(self, known: Sequence[Tensor], others: Mapping[int, Tensor] | None = None) -> None:
        super().__init__()
        self.level = torch._C._functorch.maybe_current_level() or 0  # how many transforms of torch.func are around us
        self.known = {id(tensor): tensor for tensor in known}  # holding them keeps an id from being given again
        self.found: dict[int, Tensor] = {}
        self.met: set[int] = set()  # of any level
        self.others = others or {}

    @eager
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in pytree.tree_leaves((args, kwargs)):
            self.met.add(id(leaf))
            if self._is_new(leaf) and id(leaf) not in self.known and not self._is_wrapped(leaf):
                self.found[id(leaf)] = leaf
        if self.others:
            args, kwargs = pytree.tree_map_only(Tensor, self.replace, (args, kwargs))
            if func == _DATA:  # under nested transforms .data cuts one level only
                func = torch.Tensor.detach
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(result):
            if self._is_new(leaf):
                self.known[id(leaf)] = leaf
        return result

    def replace(self, tensor: Tensor) -> Tensor:
        return self.others.get(id(tensor), tensor)

    def _is_new(self, leaf: Any) -> bool:
        if not isinstance(leaf, Tensor) or id(leaf) in self.found:
            return False
        with torch._C.DisableTorchFunction():
            return leaf.is_floating_point() or leaf.is_complex()

    def _is_wrapped(self, tensor: Tensor) -> bool:
        """Whether a transform inside of f (torch.func.grad of an energy, say) made this tensor, so it is f's own."""
        return int(torch._C._functorch.maybe_get_level(tensor)) > self.level

    def __enter__(self) -> Any:
        _ACTIVE.stack.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _ACTIVE.stack.pop()


class Closure:
    """closure(z, *tensors): f(z) with `tensors` in place of those that it was seen to close over."""

    def __init__(self, f: Callable[[Any], Any], captured: Sequence[Tensor], constants: Sequence[Tensor]) -> None:
        self.f, self.captured, self.constants = f, tuple(captured), tuple(constants)

    def __call__(self, z: Any, *tensors: Tensor) -> Any:
        pairs = list(zip(self.captured, tensors, strict=True))
        if all(new is old for old, new in pairs):
            with UNCOMPILED if transforms_active() else nullcontext():
                return self.f(z)
        others = {id(old): new for old, new in pairs}
        image, watch = self._evaluate(z, others)
        missing = any(id(old) not in watch.met and new is not old for old, new in pairs)
        ours = (*self.captured, *self.constants)
        strangers = [tensor for key, tensor in watch.found.items() if key not in set(map(id, ours))]
        if not missing or not strangers:
            return image
        # f now reads some of them from elsewhere, as after torch.func.functional_call, which puts a module's own weights back
        # when it is done: the tensors that it uses instead are recognised by their order and shape.
        unmet = [old for old in ours if id(old) not in watch.met]
        for stranger in strangers:
            twin = next((old for old in unmet if old.shape == stranger.shape and old.dtype == stranger.dtype), None)
            if twin is not None:
                unmet = [old for old in unmet if old is not twin]
                others[id(stranger)] = others.get(id(twin), twin)
        return self._evaluate(z, others)[0]

    def _evaluate(self, z: Any, others: Mapping[int, Tensor]) -> tuple[Any, _Watch]:
        watch = _Watch((*pytree.tree_leaves(z), *others.values()), others)
        with UNCOMPILED, watch:
            return self.f(z), watch


def capture(f: Callable[[Any], Any], z: Any) -> tuple[Any, Closure, tuple[Tensor, ...]]:
    """f(z), f as a `Closure`, and the tensors to call it with: those found in this evaluation.

    Without a transform of `torch.func` around, only those that need a gradient. f is evaluated in the caller's gradient mode,
    so the values that it caches (`torch.nn.utils.parametrize.cached`) keep their graph.
    """
    watch = _Watch(pytree.tree_leaves(z))
    with UNCOMPILED, watch:
        image = f(z)
    everything = transforms_active()
    found = watch.found.values()
    captured = tuple(tensor for tensor in found if everything or tensor.requires_grad)
    constants = () if everything else tuple(tensor for tensor in found if not tensor.requires_grad)
    tensors = captured
    for outer in reversed(_ACTIVE.stack):  # f may itself be evaluated with other tensors in place of its own
        tensors = tuple(outer.replace(tensor) for tensor in tensors)
    return image.detach(), Closure(f, captured, constants), tensors


class _Uncompiled:
    """The compiler's stance is shared by all threads: the first to enter changes it, the last to leave changes it back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.stance: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> None:
        with self.lock:
            # Without the compiler's module nothing was compiled, and importing it takes a second.
            if not self.inside and "torch._dynamo" in sys.modules:
                self.stance = torch.compiler.set_stance("force_eager")
                self.stance.__enter__()
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.stance.__exit__(None, None, None)
                self.stance = nullcontext()


UNCOMPILED = _Uncompiled()
"""A context in which functions made by `torch.compile` run uncompiled: a mode cannot look into compiled code."""


def mark_state(leaf: Tensor) -> Tensor:
    """`leaf`, marked as the state of a fixed point in a graph, so it does not count as a parameter."""
    leaf._is_state_of_fixed_point = True  # type: ignore[attr-defined]
    return leaf


def uses_gradients(image: Tensor) -> bool:
    """Whether the graph of `image` reaches a leaf other than the states of fixed points."""
    return any(True for _ in _leaves(image))


def require_all_seen(image: Tensor, allowed: Sequence[Tensor]) -> None:
    """Raise `BadInput` where the graph of `image` reaches a leaf outside of `allowed`, whose gradient would be lost."""
    for leaf in _leaves(image, allowed):
        raise BadInput(
            "Second derivatives and torch.func look through f by the tensors that it uses, and one of shape "
            f"{tuple(leaf.shape)} that needs a gradient was not seen: it is inside a scripted function or a custom autograd "
            "function, in a branch that the first evaluation did not take, or not in args. Pass it: fixed_point(f, z0, …, "
            "args=(tensor,)) with f(z, tensor).",
            shape=tuple(leaf.shape),
        )


def _leaves(image: Tensor, known: Sequence[Tensor] = ()) -> Iterator[Tensor]:
    """The leaves that the graph of `image` reaches without passing through a tensor that is `known`."""
    ours = {id(tensor) for tensor in known}
    seen = {tensor.grad_fn for tensor in known if tensor.grad_fn is not None and tensor is not image}
    todo = [image.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in ours and not hasattr(variable, "_is_state_of_fixed_point"):
            yield variable
        todo.extend(edge for edge, _ in node.next_functions)
