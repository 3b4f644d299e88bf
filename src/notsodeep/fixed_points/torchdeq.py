"""Models written for torchdeq, on our solvers: `get_deq` and `reset_deq` under the same names, called the same way.

``from notsodeep.fixed_points.torchdeq import get_deq, reset_deq`` takes the place of ``from torchdeq import …``. It needs no
torchdeq. docs/torchdeq.md says what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.errors import BadInput
from notsodeep.fixed_points.eager import eager
from notsodeep.fixed_points.layout import Layout
from notsodeep.fixed_points.loop import Rows, iterate
from notsodeep.fixed_points.precision import Map
from notsodeep.fixed_points.state_map import StateMap
from notsodeep.fixed_points.torchdeq_options import Method, Options
from notsodeep.fixed_points.tracked import Graph
from notsodeep.numerics.arnoldi import spectral_radii

Writer = Callable[[dict[str, Tensor]], object]
_UNKNOWN = 1e8  # what torchdeq calls a residual that was never measured
_NONZERO = 1e-9  # added to a norm that something is divided by


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
        step, z = _of_matrices(func, z_init)
        options, unpack = self.options, step.layout.unpack
        method = options.forward(self.training, solver_kwargs or {})
        if not self.training:
            found = _solve(step, z, method)
            radius = _spectral_radius(step, found.best) if sradius_mode else z.new_zeros(1)
            return [unpack(found.best)], {**found.info(), "sradius": radius}
        phantom_steps, states = options.phantom_steps(method.max_iter), []
        if options.core == "indexing":
            marks = options.marks(method.max_iter)
            found = _solve(step, z, method, marks)
            starts = [found.kept.get(mark, found.best) for mark in marks]  # the solution, where it was there before
            for start, count in zip(starts, phantom_steps, strict=False):
                states += self._phantom(step, start, count)
        else:
            *budgets, last = options.slices(method.max_iter)
            for budget, count in zip(budgets, phantom_steps, strict=False):
                states += self._phantom(step, _solve(step, z, replace(method, max_iter=budget)).best, count)
                z = states[-1].detach()
            found = _solve(step, z, replace(method, max_iter=last))
        if options.implicit:
            states.append(_exact(step, found.best, options.backward(), backward_writer))
        else:
            states += self._phantom(step, found.best, phantom_steps[-1])
        return [unpack(state) for state in states], found.info()

    def _phantom(self, step: Map, z: Tensor, count: int) -> list[Tensor]:
        """Damped steps that are differentiated: every `sup_gap`-th; otherwise those in `sup_loc`, and the last."""
        damped, gap, states = _damped(step, self.options.tau), self.options.sup_gap, []
        for k in range(1, count + 1):
            z = damped(z)
            if k % gap == 0 if gap > 0 else k in self.options.sup_loc:
                states.append(z)
        return states if gap > 0 else [*states, z]

    def extra_repr(self) -> str:
        return repr(self.options)


def _of_matrices(func: Callable[..., Any], z_init: Any) -> tuple[StateMap, Tensor]:
    """func as a map of (n, d) matrices, in the autocast of now whatever the solver works in, and the start."""
    if not callable(func):
        raise BadInput(f"func must be a function of the state, got {type(func).__name__}.")
    if not isinstance(z_init, Tensor | list | tuple):
        raise BadInput(f"z_init must be a tensor, or a tuple or list of tensors; got {type(z_init).__name__}.")
    start = z_init if isinstance(z_init, Tensor) else list(z_init)
    layout = Layout.of(start, axes=1)
    z = layout.pack(start).detach().clone()
    kind = z.device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    def of_state(state: Any) -> Any:
        with torch.autocast(kind, dtype=dtype, enabled=enabled):
            return func(state) if isinstance(state, Tensor) else func(*state)

    return StateMap(of_state, layout, (), ()), z


def _damped(f: Map, tau: float) -> Map:
    return f if tau == 1.0 else lambda z: torch.lerp(z, f(z), tau)


def _solve(f: Map, z0: Tensor, method: Method, keep: Sequence[int] = ()) -> _Record:
    """z = f(z) from z0, (n, d), as far as `method` goes: never an error, and no gradient.

    `keep` names numbers of evaluations after which the best state so far is wanted too.
    """
    with torch.no_grad(), torch.autocast(z0.device.type, enabled=False):
        record, z = _Record(_damped(f, method.damping), z0, method, keep), z0
        if method.is_simple:
            for _ in range(method.max_iter):
                z = record(z)
        elif method.max_iter > 0:
            # As problems of their own, whatever they are: torchdeq has no other way, and says nothing.
            iterate(record, z0, method.plan(z0.dtype), rows=Rows.independent)
        return record


class _Record:
    """f, with torchdeq's account of its evaluations: residuals, the best state so far, and those to be kept."""

    def __init__(self, f: Map, z0: Tensor, method: Method, keep: Sequence[int]) -> None:
        self.f, self.method, self.keep = f, method, keep
        self.best, self.kept = z0, dict[int, Tensor]()
        self.dtype = torch.promote_types(z0.dtype, torch.float32)
        # (2, n): the absolute residuals and the relative ones.
        self.lowest = torch.full((2, len(z0)), _UNKNOWN, dtype=self.dtype, device=z0.device)
        self.nstep, self.trace = torch.zeros_like(self.lowest[0]), [self.lowest]

    def __call__(self, z: Tensor) -> Tensor:
        image = self.f(z)
        count = len(self.trace)
        if count > self.method.evaluations:  # one beyond the budget, by which the loop checks its answer
            return image
        size, scale = (torch.linalg.vector_norm(v, dim=1, dtype=self.dtype) for v in (image - z, image))
        now = torch.stack([size, size / (scale + _NONZERO)])
        better = (now < self.lowest) | self.method.is_simple
        chosen = better[["abs", "rel"].index(self.method.stop_mode)]
        # torchdeq returns f of the best iterate; only by Broyden's method the iterate itself.
        result = z if self.method.name == "broyden" else image
        self.best = torch.where(chosen[:, None], result, self.best)
        self.lowest = torch.where(better, now, self.lowest)
        self.nstep = torch.where(chosen, count - (self.method.evaluations - self.method.max_iter), self.nstep)
        self.trace.append(now)
        if count in self.keep:
            self.kept[count] = self.best
        return image

    def info(self) -> dict[str, Tensor]:
        """torchdeq's statistics.

        Its traces begin with a column of 1e8, leave out what a solver does not record, and are filled up to the length that
        they would have after all steps; those of its simple solver have the last step alone.
        """
        first, *rest = self.trace
        shown = [first, *rest[self.method.unrecorded :]]
        missing = self.method.evaluations - self.method.unrecorded - len(shown) + 1
        shown = shown[-1:] if self.method.is_simple else shown + [self.lowest] * missing
        size, share = torch.stack(shown, dim=2)
        return {
            "abs_lowest": self.lowest[0],
            "rel_lowest": self.lowest[1],
            "abs_trace": size,
            "rel_trace": share,
            "nstep": self.nstep,
            "sradius": self.nstep.new_full((1,), -1.0),
        }


def _exact(step: Map, z: Tensor, method: Method, writer: Writer | None) -> Tensor:
    """f(z) with the exact gradient at a fixed point z: a cotangent g becomes u = Jᵀu + g on its way to f's tensors."""
    if not torch.is_grad_enabled():
        return step(z)
    graph = Graph.of(step, z)

    def solve(g: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise BadInput(
                "A gradient of this gradient (create_graph=True) would be wrong here, as it is in torchdeq. "
                "notsodeep.fixed_point(f, z0) has exact gradients of any order."
            )
        start = torch.zeros_like(g)

        def transposed(u: Tensor) -> Tensor:
            product = None if u is start else graph.pull(u)  # Jᵀ0 needs no product
            return g if product is None else product + g

        found = _solve(transposed, start, method)
        if writer is not None:
            writer(found.info())
        return found.best

    # A copy, so that the hook is not called by the products with J, which begin at the image itself.
    out = graph.image.clone()
    if out.requires_grad:
        out.register_hook(solve)
    return out


def _spectral_radius(step: Map, z: Tensor) -> Tensor:
    """(n,): the largest |eigenvalue| of ∂f/∂z at each sample's z."""
    graph = Graph.of(step, z)

    def transposed(v: Tensor) -> Tensor:  # Jᵀ has the eigenvalues of J
        product = graph.pull(v)
        return torch.zeros_like(v) if product is None else product

    # A start of its own generator: the program's random numbers stay as they are.
    draw = torch.Generator().manual_seed(0)
    return spectral_radii(transposed, torch.randn(z.shape, generator=draw, dtype=z.dtype).to(z.device))
