"""Models written for torchdeq, on our solvers: `get_deq` and `reset_deq` under the same names, called the same way.

``from notsodeep.fixed_points.torchdeq import get_deq, reset_deq`` takes the place of ``from torchdeq import …``. It needs no
torchdeq. docs/torchdeq.md says what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.errors import BadInput
from notsodeep.fixed_points.eager import eager
from notsodeep.fixed_points.jacobian import spectral_radius
from notsodeep.fixed_points.layout import Layout
from notsodeep.fixed_points.loop import Rows, iterate
from notsodeep.fixed_points.precision import Map, without_autocast
from notsodeep.fixed_points.state_map import StateMap
from notsodeep.fixed_points.torchdeq_options import Method, Options
from notsodeep.fixed_points.tracked import Graph

_UNKNOWN = 1e8  # what torchdeq calls a residual that was never measured
_NONZERO = 1e-9  # added to a norm that something is divided by


def get_deq(args: Any = None, **kwargs: Any) -> DEQLayer:
    """The layer that torchdeq's function of this name gives, on our solvers.

    Args:
        args: torchdeq's options as a namespace, a dict or an object with attributes. Other names in it are left alone.
        **kwargs: Options by name, which win over those in `args`. `hook_ift` is the same as `ift` here; those of torchdeq's
            norms, losses and command line are accepted and mean nothing, nor do they in its own `get_deq`.

    Returns:
        A module: ``z_list, info = deq(func, z_init)``.

    Raises:
        BadInput: For a keyword that is not known, with the nearest that is, and for values that make no sense.
    """
    return DEQLayer(Options.read(args, kwargs))


def reset_deq(model: nn.Module) -> None:
    """Compute the weights of torchdeq's norms anew and drop the masks of its dropouts, wherever `model` has them."""
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
        backward_writer: Callable[[dict[str, Tensor]], object] | None = None,
    ) -> tuple[list[Any], dict[str, Tensor]]:
        """Solve z = func(z) from `z_init`; never an error where that does not converge.

        Args:
            func: z ↦ a tensor of its shape; for a state of several tensors, (z_1, z_2, …) ↦ a tuple or list of theirs.
            z_init: A tensor, or a tuple or list of tensors. The first axis counts samples, also of a tensor that has no other.
            solver_kwargs: For this call: `f_max_iter`, `tau` (damping), `m` (iterates that Anderson keeps), `LBFGS_thres`
                (terms that Broyden keeps). `lam` means nothing here: our ridge is relative.
            sradius_mode: In eval mode, whether to compute the spectral radius of ∂func/∂z at the solution.
            backward_writer: Called with the statistics of the backward solve, where there is one.

        Returns:
            z_list: In training mode every state that was asked for, with its gradient; in eval mode the solution alone.
            info: Per sample abs_lowest, rel_lowest (‖f(z) − z‖, and that over ‖f(z)‖), their traces (n, steps), nstep (the
            step of the lowest) and sradius.

        Raises:
            BadInput: For options that cannot be had, and a func that changes its state's shape, or the state in place.
        """
        step, z = _of_matrices(func, z_init)
        options, unpack = self.options, step.layout.unpack
        method = options.forward(self.training, solver_kwargs or {})
        if not self.training:
            found = _solve(step, z, method)
            radius = spectral_radius(step, found.best, samples=1) if sradius_mode else z.new_zeros(1)
            return [unpack(found.best)], {**found.info(), "sradius": radius}
        plan, states = options.states(method.max_iter), list[Tensor]()
        marks = list(accumulate(budget for budget, _ in plan))
        if options.core == "indexing":
            found = _solve(step, z, method, marks)
        for (budget, count), mark in zip(plan, marks, strict=True):
            if options.core == "sliced":
                found = _solve(step, z, replace(method, max_iter=budget))
            start = found.kept.get(mark, found.best)  # its result, where the solve was over before
            if count:
                states += _phantom(step, start, options, count)
            else:
                states.append(_exact(step, start, options, backward_writer))
            z = states[-1].detach()
        return [unpack(state) for state in states], found.info()


def _of_matrices(func: Callable[..., Any], z_init: Any) -> tuple[StateMap, Tensor]:
    """func as a map of (n, d) matrices, in the autocast of now whatever the solver works in, and the start."""
    if not callable(func) or not isinstance(z_init, Tensor | list | tuple):
        kinds = f"{type(func).__name__} and {type(z_init).__name__}"
        raise BadInput(f"func must be a function, z_init a tensor or a tuple or list of tensors; got {kinds}.")
    start = z_init if isinstance(z_init, Tensor) else list(z_init)
    layout = Layout.of(start, axes=1)
    z = layout.pack(start).detach().clone()
    kind = z.device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    def of_state(state: Any) -> Any:
        with torch.autocast(kind, dtype=dtype) if enabled else nullcontext():
            return func(state) if isinstance(state, Tensor) else func(*state)

    return StateMap(of_state, layout, (), ()), z


def _damped(f: Map, tau: float) -> Map:
    return f if tau == 1.0 else lambda z: torch.lerp(z, f(z), tau)


def _solve(f: Map, z: Tensor, method: Method, keep: Sequence[int] = ()) -> _Record:
    """Iterate z, (n, d), as far as `method` goes: never an error, and no gradient."""
    # torchdeq's plain steps are those of the damped map, whose residuals it reports; its Anderson is damped by itself.
    record = _Record(_damped(f, method.tau) if "fixed_point_iter" in method.name else f, z, method, keep)
    with torch.no_grad(), without_autocast(z.device.type):
        if method.name == "simple_fixed_point_iter":
            for _ in range(method.max_iter):
                z = record(z)
        elif method.max_iter > 0:
            # As torchdeq does, rows are taken for problems of their own without a look at them, or a word.
            iterate(record, z, method.plan(z.dtype), rows=Rows.independent)
    return record


class _Record:
    """f, with torchdeq's account of its evaluations: residuals, the `best` state so far, and the best after each of `keep`."""

    def __init__(self, f: Map, z: Tensor, method: Method, keep: Sequence[int]) -> None:
        self.f, self.method, self.keep = f, method, keep
        self.best, self.kept = z, dict[int, Tensor]()
        self.dtype = torch.promote_types(z.dtype, torch.float32)
        # (2, n): the absolute residuals and the relative ones.
        self.lowest = torch.full((2, len(z)), _UNKNOWN, dtype=self.dtype, device=z.device)
        self.nstep, self.trace = torch.zeros_like(self.lowest[0]), [self.lowest]

    def __call__(self, z: Tensor) -> Tensor:
        image, count, method = self.f(z), len(self.trace), self.method
        if count > method.max_iter:  # one beyond the budget, by which the loop checks its answer
            return image
        size, scale = (torch.linalg.vector_norm(v, dim=1, dtype=self.dtype) for v in (image - z, image))
        now = torch.stack([size, size / (scale + _NONZERO)])
        better = (now < self.lowest) | (method.name == "simple_fixed_point_iter")  # which returns its last state
        chosen = better[int(method.stop_mode == "rel")]
        # torchdeq returns f of the best iterate; only by Broyden's method the iterate itself.
        self.best = torch.where(chosen[:, None], z if method.name == "broyden" else image, self.best)
        self.lowest = torch.where(better, now, self.lowest)
        self.nstep = torch.where(chosen, count, self.nstep)
        self.trace.append(now)
        if count in self.keep:
            self.kept[count] = self.best
        return image

    def info(self) -> dict[str, Tensor]:
        """torchdeq's statistics.

        Its traces begin with a column of 1e8, leave out Anderson's first two steps and are filled up to the length that they
        would have after all steps; its simple solver's have the last step alone.
        """
        unrecorded = 2 if self.method.name == "anderson" else 0
        shown = self.trace[:1] + self.trace[1 + unrecorded :]
        shown += [self.lowest] * (1 + self.method.max_iter - unrecorded - len(shown))
        shown = shown[-1:] if self.method.name == "simple_fixed_point_iter" else shown
        names = ("abs_lowest", "rel_lowest", "abs_trace", "rel_trace")
        info = dict(zip(names, (*self.lowest, *torch.stack(shown, dim=2)), strict=True))
        return {**info, "nstep": self.nstep, "sradius": self.nstep.new_full((1,), -1.0)}


def _phantom(step: Map, z: Tensor, options: Options, count: int) -> list[Tensor]:
    """Damped steps that are differentiated: every `sup_gap`-th of them; without that those in `sup_loc`, and the last."""
    damped, gap, states = _damped(step, options.tau), options.sup_gap, []
    for k in range(1, count + 1):
        z = damped(z)
        if k % gap == 0 if gap > 0 else k in options.sup_loc:
            states.append(z)
    return states if gap > 0 else [*states, z]


def _exact(step: Map, z: Tensor, options: Options, writer: Callable[[dict[str, Tensor]], object] | None) -> Tensor:
    """f(z) with the exact gradient at a fixed point z: a cotangent g becomes u = Jᵀu + g on its way to f's tensors."""
    graph = Graph.of(step, z)

    def solve(g: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise BadInput("No gradient of this gradient (create_graph=True); fixed_point has those of any order.")
        start = torch.zeros_like(g)

        def transposed(u: Tensor) -> Tensor:
            product = None if u is start else graph.pull(u)  # Jᵀ0 needs no product
            return g if product is None else product + g

        method = Method(options.b_solver, options.b_max_iter, options.b_tol, options.b_stop_mode)
        found = _solve(transposed, start, method)
        if writer is not None:
            writer(found.info())
        return torch.where(torch.isfinite(g).all(1)[:, None], found.best, torch.nan)  # a NaN is to be seen

    # A copy, so that the hook is not called by the products with J, which begin at the image itself.
    out = graph.image.clone()
    if out.requires_grad:
        out.register_hook(solve)
    return out
