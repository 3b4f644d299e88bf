"""Models written for torchdeq, on our solvers: `get_deq` and `reset_deq` under the same names, called the same way.

``from notsodeep.fixed_points.torchdeq import get_deq, reset_deq`` takes the place of ``from torchdeq import …``. It needs no
torchdeq. docs/torchdeq.md says what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.errors import BadInput
from notsodeep.fixed_points.eager import eager
from notsodeep.fixed_points.layout import Layout
from notsodeep.fixed_points.precision import Map
from notsodeep.fixed_points.torchdeq_gradients import Implicit, Phantom, Writer, spectral_radius
from notsodeep.fixed_points.torchdeq_options import Method, Options
from notsodeep.fixed_points.torchdeq_solve import solve


def get_deq(args: Any = None, **kwargs: Any) -> DEQLayer:
    """The layer that torchdeq's function of this name gives, on our solvers.

    Args:
        args: Options as a namespace, a dict or an object with attributes. What is not among torchdeq's is left alone: it is
            the program's own.
        **kwargs: Options by name, which win over those in `args`: `core` ('sliced' or 'indexing'), `f_solver`, `b_solver`
            ('fixed_point_iter', 'simple_fixed_point_iter', 'anderson' or 'broyden'), `f_max_iter`, `b_max_iter`, `f_tol`,
            `b_tol`, `f_stop_mode`, `b_stop_mode` ('abs' or 'rel'), `eval_factor`, `eval_f_max_iter`, `ift`, `hook_ift` (the
            same here), `grad`, `tau`, `sup_gap`, `sup_loc`, `n_states`, `indexing`. `no_stat` and the options of torchdeq's
            norms, losses and command line are accepted and mean nothing here, nor do they in its own `get_deq`.

    Returns:
        A module: ``z_list, info = deq(func, z_init)``.

    Raises:
        BadInput: For a keyword that is not known, with the nearest that is, and for values that make no sense.
    """
    return DEQLayer(Options.read(args, kwargs))


def reset_deq(model: nn.Module) -> None:
    """Compute the weights of torchdeq's norms anew and drop the masks of its dropouts, wherever `model` has them.

    Args:
        model: A module that may hold modules of torchdeq's, which work as they are.
    """
    for module in model.modules():
        norm = getattr(module, "_deq_norm", None)
        if norm is not None:
            norm(module)
        if callable(getattr(module, "reset_mask", None)):
            module.mask = None  # type: ignore[assignment]


class DEQLayer(nn.Module):
    """z = func(z) as `get_deq` describes it. It has no weights of its own; `training` says whether a gradient is wanted."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options

    @eager
    def forward(
        self,
        func: Callable[..., Any],
        z_init: Any,
        solver_kwargs: Mapping[str, Any] | None = None,
        sradius_mode: bool = False,
        backward_writer: Writer | None = None,
    ) -> tuple[list[Any], dict[str, Tensor]]:
        """Solve z = func(z) from `z_init`; never an error where that does not converge.

        Args:
            func: z ↦ a tensor of its shape; for a state of several tensors, (z_1, z_2, …) ↦ a tuple or list of theirs.
            z_init: A tensor, or a tuple or list of tensors. The first axis counts samples, also of a tensor that has no other.
            solver_kwargs: For this call: `f_max_iter`, `tau` (damping), `m` (iterates that Anderson keeps) and `LBFGS_thres`
                (terms that Broyden keeps). `lam` means nothing here: our ridge is relative.
            sradius_mode: In eval mode, whether to compute the spectral radius of ∂func/∂z at the solution.
            backward_writer: Called with the statistics of the backward solve, where there is one.

        Returns:
            (z_list, info). In training mode `z_list` has every state that was asked for, with its gradient; in eval mode the
            solution alone, without. `info` holds, per sample, abs_lowest, rel_lowest (‖f(z) − z‖, and that over ‖f(z)‖), their
            traces (n, steps), nstep (the step of the lowest) and sradius.

        Raises:
            BadInput: For options that are not known or cannot be had, and for a func that changes its state's shape or changes
                it in place.
        """
        state = _State.of(func, z_init)
        z = state.layout.pack(state.start).detach().clone()
        step, options, more = state.step, self.options, dict(solver_kwargs or {})
        if not self.training:
            budget = options.evaluation_steps
            found = solve(step, z, Method.of(options.f_solver, budget, options.f_tol, options.f_stop_mode, more))
            radius = spectral_radius(step, found.value) if sradius_mode else z.new_zeros(1)
            return [state.layout.unpack(found.value)], {**found.info, "sradius": radius}
        method = Method.of(options.f_solver, options.f_max_iter, options.f_tol, options.f_stop_mode, more)
        grads = self._gradients(method.max_iter, backward_writer)
        states: list[Tensor] = []
        if options.core == "indexing":
            *marks, _ = options.marks(method.max_iter)
            found = solve(step, z, method, marks)
            for kept, grad in zip([*found.kept, found.value], grads, strict=True):
                states += grad(step, kept)
        else:
            for budget, grad in zip(options.slices(method.max_iter), grads, strict=True):
                found = solve(step, z, replace(method, max_iter=budget))
                states += grad(step, found.value)
                z = states[-1].detach()
        return [state.layout.unpack(one) for one in states], found.info

    def _gradients(self, max_iter: int, writer: Writer | None) -> list[Callable[[Map, Tensor], list[Tensor]]]:
        """For each state of a training pass, what puts a gradient on it."""
        options = self.options
        steps = options.phantom_steps(max_iter)
        grads: list[Any] = [Phantom(k, options.tau, options.sup_gap, options.sup_loc) for k in steps]
        if options.implicit:
            backward = Method.of(options.b_solver, options.b_max_iter, options.b_tol, options.b_stop_mode)
            grads[-1] = Implicit(backward, writer)
        return grads

    def extra_repr(self) -> str:
        return repr(self.options)


@dataclass(frozen=True, eq=False)
class _State:
    """func on a state of one tensor or several, as a map of (n, d)."""

    func: Callable[..., Any]
    start: Any
    layout: Layout
    autocast: tuple[str, torch.dtype] | None
    """That of the call, in which func is evaluated whatever the solver works in."""

    @staticmethod
    def of(func: Callable[..., Any], z_init: Any) -> _State:
        if not callable(func):
            raise BadInput(f"func must be a function of the state, got {type(func).__name__}.")
        if not isinstance(z_init, Tensor | list | tuple):
            raise BadInput(f"z_init must be a tensor, or a tuple or list of tensors; got {type(z_init).__name__}.")
        start = z_init if isinstance(z_init, Tensor) else list(z_init)
        layout = Layout.of(start)
        samples = {shape[0] if shape else 1 for shape in layout.shapes}
        if len(samples) > 1:
            raise BadInput(f"The tensors of z_init disagree on the number of samples: {sorted(samples)}.")
        kind = (start if isinstance(start, Tensor) else start[0]).device.type
        autocast = (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
        return _State(func, start, replace(layout, samples=samples.pop()), autocast)

    def step(self, z: Tensor) -> Tensor:
        given = self.layout.unpack(z)
        version = None if z.is_inference() else z._version
        ambient: AbstractContextManager[object] = nullcontext()
        if self.autocast is not None:
            ambient = torch.autocast(self.autocast[0], dtype=self.autocast[1])
        with ambient:
            image = self.func(given) if isinstance(given, Tensor) else self.func(*given)
        self.layout.require_same(list(image) if isinstance(image, tuple) else image)
        if version is not None and z._version != version:
            raise BadInput("func changes its state in place: let it work on z.clone().")
        return self.layout.pack(image).to(z.dtype)
