"""Hooks on a module of others: those that compute go with its copies, those that only watch it do not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from notsodeep.errors import NotSoDeepError

Module = TypeVar("Module", bound=nn.Module)
Place = tuple[str, str, int]
"""A hook: the name of the part that has it, its registry there, and its number in that."""
_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
_RAISED = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError, NotSoDeepError)
_SAME = 1e-6  # of the largest number of the outputs


@torch.no_grad()
def watchers(module: nn.Module, x: Tensor, run: Callable[[nn.Module, Tensor], Any]) -> list[Place]:
    """The forward hooks that have no part in what a module computes; they are called twice to find that out.

    A hook has a part where it is torch's own, such as those of spectral_norm and pruning; where it returns something, or
    changes a tensor of its module or one that it is given; and all have one where outputs differ without them, as where one
    leaves something for another part to find.

    Args:
        module: A copy of the module.
        x: Samples that it takes.
        run: Calls it.

    Returns:
        Where they are.
    """
    places = [
        (name, kind, key)
        for name, part in module.named_modules()
        for kind in _FORWARD
        for key, hook in getattr(part, kind).items()
        if not _of_torch(hook)
    ]
    if not places:
        return []
    seen: dict[Place, bool] = {}
    with _noted(module, places, seen):
        run(module, x)
    silent = [place for place in places if not seen.get(place, True)]
    quiet, others = silenced(copy.deepcopy(module), silent), x.flip(0)  # what is left from x would be wrong for these
    try:
        without = _drawn_alike(run, quiet, others)
    except _RAISED:
        return []
    return silent if _same(without, _drawn_alike(run, module, others)) else []


def silenced(module: Module, places: list[Place]) -> Module:
    """The module, a copy, without these hooks and without any backward hook, which changes no answer; in place."""
    for name, kind, key in places:
        part = module.get_submodule(name)
        for registry in (kind, *_FLAGS):
            getattr(part, registry).pop(key, None)
    for part in module.modules():
        part._backward_hooks.clear()
        part._backward_pre_hooks.clear()
        part._is_full_backward_hook = None
    return module


@contextlib.contextmanager
def _noted(module: nn.Module, places: list[Place], seen: dict[Place, bool]) -> Iterator[None]:
    """Note in `seen`, of each of these hooks that is called, whether it computes."""
    registries = [getattr(module.get_submodule(name), kind) for name, kind, _ in places]
    hooks = [registry[key] for registry, (_, _, key) in zip(registries, places, strict=True)]
    for registry, hook, place in zip(registries, hooks, places, strict=True):
        registry[place[2]] = _noting(hook, place, seen)
    try:
        yield
    finally:
        for registry, hook, place in zip(registries, hooks, places, strict=True):
            registry[place[2]] = hook


def _noting(hook: Callable[..., Any], place: Place, seen: dict[Place, bool]) -> Callable[..., Any]:
    def called(part: nn.Module, *given: Any) -> Any:
        before = _tensors(part, given)
        found = hook(part, *given)
        after = _tensors(part, given)
        alike = len(before) == len(after) and all(a is b and m == n for (a, m), (b, n) in zip(before, after, strict=True))
        seen[place] = seen.get(place, False) or found is not None or not alike
        return found

    return called


def _tensors(part: nn.Module, given: Any) -> list[tuple[Tensor, int]]:
    """The tensors of a module and of what its hook is given, and how often each was written to."""
    held = (vars(part), part._parameters, part._buffers)
    leaves = [value for values in held for value in values.values()] + pytree.tree_leaves(given)
    return [(leaf, leaf._version) for leaf in leaves if isinstance(leaf, Tensor)]


def _of_torch(hook: Any) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return str(home).partition(".")[0] == "torch"


def _drawn_alike(run: Callable[[nn.Module, Tensor], Any], module: nn.Module, x: Tensor) -> Any:
    """Its outputs; what it draws is the same every time."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(0)
        return run(module, x)


def _same(out: Any, wanted: Any) -> bool:
    """Whether all tensors among the outputs agree to rounding."""
    pairs = [[leaf for leaf in pytree.tree_leaves(each) if isinstance(leaf, Tensor)] for each in (out, wanted)]
    if [leaf.shape for leaf in pairs[0]] != [leaf.shape for leaf in pairs[1]]:
        return False
    return all(
        torch.allclose(a, b, rtol=0.0, atol=_SAME * float(b.abs().max()), equal_nan=True) if b.numel() else True
        for a, b in zip(*pairs, strict=True)
    )
