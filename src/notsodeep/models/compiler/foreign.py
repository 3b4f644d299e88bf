"""Modules with a fixed point inside, prepared for the compiler: copied, looked into, and solved by `fixed_point`."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.arguments import shown, takes
from notsodeep.errors import BadInput, NotSoDeepError
from notsodeep.fixed_points.fixed_point import fixed_point
from notsodeep.fixed_points.solvers import Anderson
from notsodeep.fixed_points.stand_in import Solved, watching
from notsodeep.models.compiler.hooks import Module, Place, silenced, watchers

Map = Callable[..., Any]
_ROWS = 256  # samples that a module is looked into with
_RAISED = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError)  # by code of others
_HOLDING = (nn.Module, Tensor, types.FunctionType, types.MethodType, functools.partial, list, tuple, dict)
_TOLERANCE = 1e-2  # of ‖f(z) − z‖/‖f(z)‖ where z is the output of a layer that is said to solve z = f(z)


@dataclass(frozen=True, eq=False)
class Found:
    """A module and the fixed point inside of it."""

    module: nn.Module
    """a copy in eval mode; its fixed point is solved by `fixed_point`"""
    solved: Solved
    """the fixed point, as it was solved for some samples"""
    coupled: bool
    """whether all samples are one problem: the nodes of a graph"""
    reference: nn.Module
    """a copy in eval mode that solves by its own means"""
    rows: int
    """the number of samples that it was tried with first"""
    out: Any
    """its outputs for them"""
    other: bool = False
    """whether the equilibria that `fixed_point` finds from 0 are others than its own"""

    @property
    def notes(self) -> list[str]:
        """Remarks on the solution."""
        notes, late = [], int((~self.solved.solution.converged).sum())
        if late:
            share = f"{late} of {len(self.solved.solution.status)} samples looked at"
            notes.append(f"The DEQ's own solver did not converge for {share}: what is kept there are no equilibria.")
        if self.other:
            notes.append("From 0 the map leads to other equilibria than the layer's own solver, and so do steps from there.")
        return notes


@torch.no_grad()
def found_in(
    module: nn.Module, x: Tensor, layer: nn.Module | str | None = None, map: Map | None = None, fitted: Tensor | None = None
) -> Found:
    """The fixed point of `module`.

    Args:
        module: The module; it stays as it is.
        x: Samples.
        layer: The part of it, or its name, that solves the equation by means of its own.
        map: The equation z = map(z, *inputs) of that layer.
        fitted: Indices of the samples that ways may be fitted to, the others being held out; all of them by default. Where
            samples are one problem, all of it is solved.

    Raises:
        BadInput: The module has no fixed point or several, does not take x, or `layer` and `map` do not fit.
    """
    if (layer is None) != (map is None):
        raise BadInput("Give layer= and map= together: the part that solves for z, and its equation z = map(z, *inputs).")
    reference, silent = quiet(module, x)
    rows, out = _run(reference, x)
    count, coupled = len(rows), _is_coupled(reference, rows, out)
    alike = isinstance(out, Tensor) and out.ndim > 0 and len(out) == count
    rows = x if coupled else x[fitted[:count]] if fitted is not None and alike else rows
    copied = copy.deepcopy(reference) if layer is None else _with_equation(module, layer, map, rows, coupled, silent)
    with watching() as watch:
        again = tried(copied, rows)
    if len(watch.solves) != 1:
        raise BadInput(_miscounted(module, len(watch.solves)))
    solved = watch.solves[0]
    samples = len(solved.solution.status)
    coupled = coupled or solved.solution.coupled or solved.problem.axes == 0
    if not coupled and samples % len(rows):
        raise BadInput(
            f"The fixed point of {type(module).__name__} has a state of {samples} samples for {len(rows)} rows of x: its first "
            "axis must count the samples. Where all of them are one problem, such as the nodes of a graph, pass samples=0 to "
            "fixed_point."
        )
    other = layer is not None and _apart(again, tried(reference, rows)) > _TOLERANCE
    return Found(copied, solved, coupled, reference, count, out, other)


def quiet(module: Module, x: Tensor) -> tuple[Module, list[Place]]:
    """A copy in eval mode without the hooks that only watch the module; see `watchers`.

    Args:
        module: The module; it stays as it is, and its forward hooks are called for two batches.
        x: Samples.

    Returns:
        The copy, and where these hooks are.

    Raises:
        BadInput: It cannot be copied, or does not take x.
    """
    try:
        copied = copy.deepcopy(module).eval()
    except (RuntimeError, TypeError) as error:
        raise BadInput(
            f"{type(module).__name__} cannot be copied: {error!s:.120} Where it has torch.nn.utils.weight_norm or "
            "spectral_norm, take those of torch.nn.utils.parametrizations; what it keeps of a forward pass must be detached."
        ) from error
    silent = watchers(copied, x, lambda each, rows: _run(each, rows)[1])
    return silenced(copied, silent), silent


def _run(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    """Some of the samples and the outputs for them; all where the module takes no fewer: a graph of so many nodes."""
    if len(x) > _ROWS:
        with contextlib.suppress(BadInput):
            return x[:_ROWS], tried(module, x[:_ROWS])
    return x, tried(module, x)


def tried(module: nn.Module, x: Tensor) -> Any:
    """The outputs; `BadInput` where the module does not take x."""
    try:
        return module(x)
    except NotSoDeepError:
        raise
    except _RAISED as error:
        given = f"samples of shape {tuple(x.shape)} and dtype {str(x.dtype).removeprefix('torch.')}"
        raise BadInput(f"{type(module).__name__} fails on {given}: {str(error).strip().splitlines()[0]:.200}") from error


def _is_coupled(module: nn.Module, rows: Tensor, out: Any) -> bool:
    """Whether outputs for some samples depend on which others are there."""
    if not isinstance(out, Tensor) or not out.is_floating_point() or not out.ndim or len(out) != len(rows) or len(rows) < 2:
        return False
    half = len(rows) // 2
    try:
        alone = tried(module, rows[:half])
    except NotSoDeepError:
        return True
    return _apart(alone, out[:half]) > _TOLERANCE


def _apart(outputs: Any, wanted: Any) -> float:
    """The root mean square difference of outputs, relative to their spread; infinite where they cannot be compared."""
    if not isinstance(outputs, Tensor) or not isinstance(wanted, Tensor) or outputs.shape != wanted.shape:
        return math.inf
    missed, spread = (outputs - wanted).double(), (wanted - wanted.double().mean(0)).double()
    least = torch.finfo(torch.float64).tiny
    return float((missed.square().mean() / spread.square().mean().clamp(min=least)).sqrt())


def _miscounted(module: nn.Module, count: int) -> str:
    name = type(module).__name__
    if count == 0:
        return (
            f"{name} solves no fixed point with nsd.fixed_point, and is not a DEQ. Where it has a solver of its own, name the "
            "part and its equation: compile_deq(module, x, layer=module.deq, map=module.deq.f), z = map(z, *inputs)."
        )
    return (
        f"{name} solves {count} fixed points for one batch, and one can be replaced at a time: compile the parts that have one "
        "each, or name one with layer= and map=."
    )


def _with_equation(
    module: nn.Module, layer: nn.Module | str, map: Map | None, x: Tensor, coupled: bool, silent: list[Place]
) -> nn.Module:
    """A copy of the module in which `fixed_point` solves z = map(z, *inputs) in the place of the layer."""
    names = {part: name for name, part in module.named_modules()}
    name = layer if isinstance(layer, str) else names.get(layer) if isinstance(layer, nn.Module) else None
    if not name or name not in names.values():
        known = ", ".join(part for part in list(names.values())[:6] if part)
        raise BadInput(f"layer must be a part of {type(module).__name__}, or its name ({known} …); got {shown(layer)}.")
    if not callable(map) or isinstance(map, type):
        raise BadInput(f"map must be a function z, *inputs ↦ f; got {shown(map)}.")
    memo: dict[int, Any] = {}
    copied = silenced(copy.deepcopy(module, memo).eval(), silent)
    equation = _copied(map, memo)
    old = copied.get_submodule(name)
    inputs, state = _call_of(old, name, copied, x)
    if not takes(equation, 1 + len(inputs)):
        raise BadInput(
            f"map must take the state and the layer's own inputs after it, {1 + len(inputs)} arguments by position; this one "
            "does not."
        )
    try:
        image = equation(state, *inputs)
    except NotSoDeepError:
        raise
    except _RAISED as error:
        shapes = ", ".join(str(tuple(each.shape)) if isinstance(each, Tensor) else shown(each) for each in (state, *inputs))
        raise BadInput(f"map fails on the state and the inputs of layer {name!r}, {shapes}: {error!s:.200}") from error
    if not isinstance(image, Tensor) or image.shape != state.shape:
        raise BadInput(
            f"map must return a state like the one that layer {name!r} returns, of shape {tuple(state.shape)}; got "
            f"{tuple(image.shape) if isinstance(image, Tensor) else shown(image)}."
        )
    residual = float((image - state).norm() / image.norm().clamp(min=torch.finfo(state.dtype).tiny))
    if not residual <= _TOLERANCE:
        raise BadInput(
            f"The output of layer {name!r} is no fixed point of map: ‖map(z) − z‖/‖map(z)‖ = {residual:.2g}. Give the map that "
            "the layer iterates, with the layer's own inputs after z.",
            residual=residual,
        )
    copied.set_submodule(name, _Equation(old, equation, state, 0 if coupled else None))
    return copied


def _call_of(layer: nn.Module, name: str, module: nn.Module, x: Tensor) -> tuple[tuple[Any, ...], Tensor]:
    """The inputs and the state of the one call of a layer for x."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []

    def see(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], out: Any) -> None:
        seen.append((inputs, named, out))

    hook = layer.register_forward_hook(see, with_kwargs=True)
    try:
        tried(module, x)
    finally:
        hook.remove()
    if len(seen) != 1 or not isinstance(seen[0][2], Tensor) or not seen[0][2].is_floating_point():
        kind = "".join(type(out).__name__ for _, _, out in seen)
        what = f"was called {len(seen)} times" if len(seen) != 1 else f"returns a {kind}"
        raise BadInput(f"layer {name!r} {what}; it must be called once for a batch and return its state, one tensor of floats.")
    inputs, named, state = seen[0]
    if named or not inputs or not isinstance(inputs[0], Tensor):
        how = f"the arguments {', '.join(named)} by name" if named else "no tensor as its first argument"
        raise BadInput(f"layer {name!r} is called with {how}; its inputs must be tensors by position, as map takes them.")
    return inputs, state


class _Equation(nn.Module):
    """inputs ↦ z = map(z, *inputs), from 0."""

    def __init__(self, layer: nn.Module, equation: Map, state: Tensor, samples: int | None) -> None:
        super().__init__()
        self.layer, self.shape, self.dtype, self.samples = layer, tuple(state.shape[1:]), state.dtype, samples
        self.equation = equation  # a module registers its weights, a function closes over the layer's

    def __getattr__(self, name: str) -> Any:
        # What else the model takes from the layer, such as its map for one more step.
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("layer", "equation"):
                raise
            return getattr(super().__getattr__("layer"), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Equation:
        # A function would go on with the weights of the layer that it was made for.
        other = _Equation.__new__(_Equation)
        memo[id(self)] = other
        for name, value in vars(self).items():
            other.__dict__[name] = _copied(value, memo) if name == "equation" else copy.deepcopy(value, memo)
        return other

    def forward(self, *inputs: Tensor) -> Tensor:
        first = inputs[0]
        start = first.new_zeros((first.shape[0], *self.shape), dtype=self.dtype)
        solved = fixed_point(lambda z: self.equation(z, *inputs), start, Anderson(), samples=self.samples, throw=False)
        value: Tensor = solved.value
        return value


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of a map, with copies of the modules, tensors and functions that it is of, closes over, has as defaults or finds
    by a global name."""
    if not isinstance(value, types.FunctionType):
        return copy.deepcopy(value, memo) if not isinstance(value, functools.partial) else _partial(value, memo)
    if id(value) in memo:
        return memo[id(value)]
    cells = tuple(types.CellType(_part(cell.cell_contents, memo)) for cell in value.__closure__ or ())
    defaults = None if value.__defaults__ is None else tuple(_part(part, memo) for part in value.__defaults__)
    made = types.FunctionType(value.__code__, _globals(value, memo), value.__name__, defaults, cells)
    made.__kwdefaults__ = {name: _part(part, memo) for name, part in (value.__kwdefaults__ or {}).items()} or None  # type: ignore[assignment]
    memo[id(value)] = made
    return made


def _globals(value: types.FunctionType, memo: dict[int, Any]) -> dict[str, Any]:
    """The global names of a function, with copies of the modules and tensors among those that its code reads."""
    codes, names = [value.__code__], set[str]()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    known = {name: value.__globals__[name] for name in names if name in value.__globals__}
    held = {name: copy.deepcopy(one, memo) for name, one in known.items() if isinstance(one, nn.Module | Tensor)}
    return {**value.__globals__, **held} if held else value.__globals__


def _partial(value: functools.partial[Any], memo: dict[int, Any]) -> Any:
    named = {name: _part(part, memo) for name, part in value.keywords.items()}
    return functools.partial(_copied(value.func, memo), *(_part(part, memo) for part in value.args), **named)


def _part(value: Any, memo: dict[int, Any]) -> Any:
    """What a map holds: copied where it may hold weights."""
    return _copied(value, memo) if isinstance(value, _HOLDING) else value
