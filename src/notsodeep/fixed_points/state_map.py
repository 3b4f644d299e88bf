"""The user's f, a function of states, as a map of (n, d) matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import takes
from notsodeep.errors import BadInput
from notsodeep.fixed_points.activated import Activated, ActivatedRows
from notsodeep.fixed_points.adjoint import Adjoint, UnrolledAdjoint
from notsodeep.fixed_points.layout import Layout
from notsodeep.fixed_points.solution import Solution


@dataclass(frozen=True, eq=False)
class StateMap:
    """matrix ↦ pack(f(unpack(matrix), *inputs, *args)); where `aux`, f returns (state, something)."""

    f: Callable[..., Any]
    layout: Layout
    inputs: tuple[Tensor, ...]
    args: tuple[Tensor, ...]
    aux: bool = False

    def __post_init__(self) -> None:
        if self.inputs and any(shape[:1] != (self.layout.samples,) for shape in self.layout.shapes):
            raise BadInput(
                f"inputs need a state whose samples lie along its first axis; here {self.layout.samples} samples have shapes "
                f"{', '.join(str(tuple(shape)) for shape in self.layout.shapes)}. Flatten the axes of samples into one, or "
                "pass these tensors as args."
            )
        wrong = [tuple(x.shape) for x in self.inputs if not x.ndim or x.shape[0] != self.layout.samples]
        if wrong:
            raise BadInput(
                f"inputs have one row for each sample, of which the state has {self.layout.samples}; got shape {wrong[0]}. "
                "Tensors without such rows go into args."
            )

    def __call__(self, z: Tensor) -> Tensor:
        return self.of_tensors(z, *self.inputs, *self.args)

    def of_tensors(self, z: Tensor, *tensors: Tensor) -> Tensor:
        """The map with other tensors in place of the inputs and arguments."""
        version = None if z.is_inference() else z._version
        image = self._state(self._called(self.layout.unpack(z), *tensors))
        matrix = self.layout.packed(image).to(z.dtype)
        if version is not None and z._version != version:
            raise BadInput(
                "f changes its state in place, so there is nothing left to compare with: let it work on z.clone()."
            )
        return matrix

    def image(self, state: Any) -> Any:
        """f at a state, as f returns it."""
        if torch.compiler.is_dynamo_compiling():
            # Inside of a loop that is being exported shapes are symbols of another graph; the first image is checked outside.
            return self.layout.ordered(self._state(self.f(state, *self.inputs, *self.args)))
        return self.layout.check(self._state(self._called(state, *self.inputs, *self.args)))

    @property
    def structure(self) -> ActivatedRows | None:
        """The parts of φ(W z + u), where f is given with them."""
        return self.f.rows(self.layout) if isinstance(self.f, Activated) else None

    @property
    def selectable(self) -> bool:
        """Whether it can be evaluated for some of the samples: only where it knows what belongs to each."""
        return bool(self.inputs)

    def select(self, rows: Tensor) -> StateMap:
        """The map of some of the samples."""
        return replace(self, layout=self.layout.of_rows(len(rows)), inputs=tuple(x[rows] for x in self.inputs))

    def beside(self, state: Any) -> Any:
        """What f returns beside its state, at `state`."""
        return self._pair(self.f(state, *self.inputs, *self.args))[1]

    def kept(self, pair: tuple[Tensor, Tensor] | None, solution: Solution, adjoint: Adjoint) -> Any:
        """The image of a kept evaluation, with the gradient of one step; the solution where the loop had ended before."""
        if pair is None:
            return self.layout.unpack(solution.value)
        z, image = pair
        if torch.is_grad_enabled() and not isinstance(adjoint, UnrolledAdjoint):
            image = self(z.detach())
        return self.layout.unpack(image)

    def _called(self, state: Any, *tensors: Tensor) -> Any:
        """What f returns; `BadInput` where it takes another number of arguments."""
        try:
            return self.f(state, *tensors)
        except TypeError as error:
            if not takes(self.f, 1 + len(tensors)):
                more = f", and {len(tensors)} tensors of inputs and args after it" if tensors else " alone"
                raise BadInput(
                    f"f is called with the state{more}, and does not take that: {error}. What else it needs is passed as "
                    "inputs=(…) or args=(…), for f(z, *inputs, *args), or closed over: lambda z: f(z, x)."
                ) from error
            raise

    def _state(self, returned: Any) -> Any:
        return self._pair(returned)[0] if self.aux else returned

    @staticmethod
    def _pair(returned: Any) -> tuple[Any, Any]:
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise BadInput(f"With aux=True f must return (state, something); it returned {type(returned).__name__}.")
        return returned
