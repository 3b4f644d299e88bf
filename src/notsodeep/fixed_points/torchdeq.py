"""`get_deq` and `reset_deq` of torchdeq, called the same way, on our solvers.

``from notsodeep.fixed_points.torchdeq import get_deq, reset_deq`` takes the place of ``from torchdeq import …``. It does not
need torchdeq. docs/torchdeq.md lists the differences.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.arguments import as_number, count, instance, is_whole
from notsodeep.errors import BadInput
from notsodeep.fixed_points.capture import eager
from notsodeep.fixed_points.fixed_point import StateMap
from notsodeep.fixed_points.graph import Graph
from notsodeep.fixed_points.jacobian import spectral_radius
from notsodeep.fixed_points.layout import Map, StateLayout
from notsodeep.fixed_points.loop import Context, Independence, iterate
from notsodeep.fixed_points.plan import Plan, inside, without_autocast
from notsodeep.fixed_points.solvers import Anderson, Broyden, Picard, Solver

_UNKNOWN = 1e8  # torchdeq's residual before the first measurement
_NONZERO = 1e-9  # added to a norm that something is divided by
_SOLVERS, _MODES = ("fixed_point_iter", "simple_fixed_point_iter", "anderson", "broyden"), ("abs", "rel")
_CHOICES = {
    "core": ("sliced", "indexing"), "f_solver": _SOLVERS, "b_solver": _SOLVERS, "f_stop_mode": _MODES, "b_stop_mode": _MODES,
}  # fmt: skip
# Whole numbers, with the least value of each.
_WHOLE = {"f_max_iter": 0, "b_max_iter": 0, "eval_f_max_iter": 0, "n_states": 1, "sup_gap": -1}
# Options of torchdeq's command line that its get_deq never reads: they are for its norms, its losses and its users.
_OTHERS = (
    "no_stat", "norm_type", "norm_no_scale", "norm_clip", "norm_clip_value", "norm_target_norm", "sn_n_power_iters", "gamma",
    "jac_loss_weight", "jac_loss_freq", "jac_incremental", "sradius_mode",
)  # fmt: skip


def get_deq(args: Any = None, **kwargs: Any) -> DEQLayer:
    """The layer of torchdeq's function of this name, on our solvers.

    Args:
        args: torchdeq's options as a namespace, a dict or an object with attributes. Other names in it are ignored.
        **kwargs: Options by name, which win over those in `args`. `hook_ift` is the same as `ift` here; those of torchdeq's
            norms, losses and command line have no effect, as in its own `get_deq`.

    Returns:
        A module: ``z_list, info = deq(func, z_init)``.

    Raises:
        BadInput: A keyword is not known (with the nearest that is), or a value is out of range.
    """
    return DEQLayer(Options.read(args, kwargs))


def reset_deq(model: nn.Module) -> None:
    """Compute the weights of torchdeq's norms anew and drop the masks of its dropouts.

    Args:
        model: The module to go through.
    """
    for module in model.modules():
        norm = getattr(module, "_deq_norm", None)
        if norm is not None:
            norm(module)
        if callable(getattr(module, "reset_mask", None)):
            module.mask = None  # type: ignore[assignment]


@dataclass(frozen=True)
class NamedSolver:
    """One of torchdeq's solvers with its budget, under torchdeq's names."""

    name: str
    max_iter: int
    tol: float
    stop_mode: str
    tau: float = 1.0
    m: int = 6
    LBFGS_thres: int | None = None
    lam: float | None = None  # of torchdeq's Anderson; the ridge of ours is relative

    def plan(self, dtype: torch.dtype) -> Plan:
        """The plan of our loop."""
        solver: Solver = Picard()
        if self.name == "anderson":
            solver = Anderson(memory=self.m - 1, damping=self.tau)
        elif self.name == "broyden":
            solver = Broyden(memory=self.LBFGS_thres or self.max_iter)
        tol = max(self.tol, torch.finfo(dtype).tiny)  # 0, in torchdeq, means "all steps"
        return Plan(solver, tol, self.stop_mode == "rel", self.max_iter, throw=False)


@dataclass(frozen=True)
class Options:
    """The options of `get_deq`, under torchdeq's names and with its defaults."""

    core: str = "sliced"
    f_solver: str = "fixed_point_iter"
    b_solver: str = "fixed_point_iter"
    f_max_iter: int = 40
    b_max_iter: int = 40
    f_tol: float = 1e-3
    b_tol: float = 1e-6
    f_stop_mode: str = "abs"
    b_stop_mode: str = "abs"
    eval_factor: float = 1.0
    eval_f_max_iter: int = 0
    ift: bool = False
    hook_ift: bool = False
    grad: int | Sequence[int] = 1
    tau: float = 1.0
    sup_gap: int = -1
    sup_loc: Sequence[int] = ()
    n_states: int = 1
    indexing: Sequence[int] = ()

    @staticmethod
    def read(args: Any, keywords: Mapping[str, Any]) -> Options:
        """The options in `args`, and in `keywords`, which win. Other names in `args` are ignored."""
        known = [field.name for field in fields(Options)]
        _require_known(keywords, [*known, *_OTHERS], "get_deq")
        if type(args).__name__ == "DEQConfig":  # torchdeq's own
            args = args.config
        own = args if isinstance(args, Mapping) else getattr(Options() if args is None else args, "__dict__", None)
        if own is None:
            raise BadInput(
                "get_deq takes torchdeq's options as a namespace, a dict or an object with attributes, or by name; got "
                f"{args!r:.80}."
            )
        given = {**own, **keywords}
        return Options(**{name: given[name] for name in known if given.get(name) is not None})

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadInput(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}.")
        for name, least in _WHOLE.items():
            count(getattr(self, name), name, least)
        for name in ("f_tol", "b_tol", "eval_factor"):
            if not 0.0 <= as_number(getattr(self, name)) < math.inf:
                raise BadInput(f"{name} must be a finite number ≥ 0, got {getattr(self, name)!r}.")
        _require_tau(self.tau)
        for name in ("sup_loc", "indexing"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple | range) or not all(map(is_whole, given)):
                raise BadInput(f"{name} must be a list of whole numbers, as in {name}=[10, 20]; got {given!r}.")
        self.states(self.f_max_iter)  # checks the rest

    def forward(self, training: bool, solver_kwargs: Mapping[str, Any]) -> NamedSolver:
        """The solver of one call; arguments for another solver are ignored."""
        more = dict(instance(solver_kwargs, Mapping, "solver_kwargs", "a dict"))
        _require_known(more, ("f_max_iter", "tau", "m", "lam", "LBFGS_thres", "ls", "return_final"), "solver_kwargs")
        if any([more.pop("ls", False), more.pop("return_final", False)]):
            raise BadInput("There is no ls (line search) or return_final here; simple_fixed_point_iter gives its last state.")
        budget = self.f_max_iter if training else self.eval_f_max_iter or int(self.f_max_iter * self.eval_factor)
        # torchdeq's Anderson mixes m iterates, that is m − 1 differences, and there must be one.
        for name, least in (("f_max_iter", 0), ("m", 2 if self.f_solver == "anderson" else 1), ("LBFGS_thres", 1)):
            if more.get(name) is not None:
                count(more[name], name, least)
        _require_tau(more.get("tau", 1.0))
        return NamedSolver(self.f_solver, int(more.pop("f_max_iter", budget)), self.f_tol, self.f_stop_mode, **more)

    def states(self, max_iter: int) -> list[tuple[int, int]]:
        """For each state of a training pass the steps that lead to it, and its phantom steps, 0 for the exact gradient."""
        budgets = [after - before for before, after in pairwise([0, *self.indexing, max_iter])]
        if self.n_states > 1:
            number = max(min(max_iter, self.n_states), 1) if self.core == "indexing" else self.n_states
            budgets = [max_iter // number] * number
            budgets[0] += max_iter % number if self.core == "indexing" else 0
        if min(budgets) < 0:
            raise BadInput(f"indexing must rise towards f_max_iter={max_iter}, got {list(self.indexing)}.")
        steps: list[Any] = list(self.grad) if isinstance(self.grad, list | tuple | range) else [self.grad]
        steps = steps * len(budgets) if len(steps) == 1 else steps
        if len(steps) != len(budgets) or not all(is_whole(k) and k >= 1 for k in steps):
            raise BadInput(f"grad must be one number ≥ 1, or one for each of {len(budgets)} states; got {self.grad!r}.")
        if self.ift or self.hook_ift:
            steps[-1] = 0
        if any(0 < k < self.sup_gap for k in steps):
            raise BadInput(f"sup_gap={self.sup_gap} takes no state from grad={self.grad!r} phantom steps: raise grad.")
        return list(zip(budgets, steps, strict=True))


def _require_tau(tau: Any) -> None:
    if not 0.0 < as_number(tau) < 2.0:
        raise BadInput(
            f"tau, the damping z + tau·(f(z) − z), must be between 0 and 2, got {tau!r}: 0 stands still, and 2 runs away from "
            "fixed points that are attracting."
        )


def _require_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise `BadInput`, with the nearest known name, for a name that is not known."""
    names = sorted(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
            raise BadInput(f"{what} has no option {name!r}; {hint}")


class DEQLayer(nn.Module):
    """z = func(z) as `get_deq` describes it. It has no weights; a gradient is wanted in training mode."""

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
        """Solve z = func(z) from `z_init`; a solve that does not converge raises nothing.

        Args:
            func: z ↦ a tensor of its shape; for a state of several tensors, (z_1, z_2, …) ↦ a tuple or list of theirs.
            z_init: A tensor, or a tuple or list of tensors. The first axis counts samples, even if it is the only one.
            solver_kwargs: For this call: `f_max_iter`, `tau` (damping), `m` (iterates that Anderson keeps), `LBFGS_thres`
                (terms that Broyden keeps). `lam` has no effect: our ridge is relative.
            sradius_mode: In eval mode, whether to compute the spectral radius of ∂func/∂z at the solution.
            backward_writer: Called with the statistics of the backward solve, where there is one.

        Returns:
            z_list: In training mode every state that was asked for, with its gradient; in eval mode the solution alone.
            info: Per sample abs_lowest, rel_lowest (‖f(z) − z‖, and that over ‖f(z)‖), their traces (n, steps), nstep (the
            step of the lowest) and sradius.

        Raises:
            BadInput: An option cannot be used, or func changes its state's shape, or the state in place.
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
        for (budget, steps), mark in zip(plan, marks, strict=True):
            if options.core == "sliced":
                found = _solve(step, z, replace(method, max_iter=budget))
            start = found.kept.get(mark, found.best)  # its result, where the solve was over before
            if steps:
                states += _phantom(step, start, options, steps)
            else:
                states.append(_exact(step, start, options, backward_writer))
            z = states[-1].detach()
        return [unpack(state) for state in states], found.info()


def _of_matrices(func: Callable[..., Any], z_init: Any) -> tuple[StateMap, Tensor]:
    """func as a map of (n, d) matrices, in the present autocast state whatever the solver works in, and the start."""
    if not callable(func) or not isinstance(z_init, Tensor | list | tuple):
        kinds = f"{type(func).__name__} and {type(z_init).__name__}"
        raise BadInput(f"func must be a function, z_init a tensor or a tuple or list of tensors; got {kinds}.")
    start = z_init if isinstance(z_init, Tensor) else list(z_init)
    layout = StateLayout.of(start, axes=1)
    z = layout.pack(start).detach().clone()
    kind = z.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        func = inside(lambda: torch.autocast(kind, dtype=dtype), func)
    return StateMap(lambda state: func(state) if isinstance(state, Tensor) else func(*state), layout, (), ()), z


def _solve(f: Map, z: Tensor, method: NamedSolver, keep: Sequence[int] = ()) -> _Account:
    """Iterate z, (n, d), as far as `method` goes, without errors and without a gradient."""
    damped = method.tau != 1.0 and "fixed_point_iter" in method.name
    # torchdeq's plain steps are those of the damped map, whose residuals it reports; its Anderson is damped by itself.
    record = _Account((lambda z: torch.lerp(z, f(z), method.tau)) if damped else f, z, method, keep)
    with torch.no_grad(), without_autocast(z.device.type):
        if method.name == "simple_fixed_point_iter":
            for _ in range(method.max_iter):
                z = record(z)
        elif method.max_iter > 0:
            # Like torchdeq, treat rows as independent without a test or a warning.
            iterate(record, z, method.plan(z.dtype), Context(rows=Independence.known))
    return record


class _Account:
    """f, with torchdeq's account of its evaluations: residuals, the `best` state so far, and the best after each of `keep`."""

    def __init__(self, f: Map, z: Tensor, method: NamedSolver, keep: Sequence[int]) -> None:
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
        # torchdeq returns f of the best iterate; by Broyden's method the iterate itself.
        self.best = torch.where(chosen[:, None], z if method.name == "broyden" else image, self.best)
        self.lowest = torch.where(better, now, self.lowest)
        self.nstep = torch.where(chosen, count, self.nstep)
        self.trace.append(now)
        if count in self.keep:
            self.kept[count] = self.best
        return image

    def info(self) -> dict[str, Tensor]:
        """torchdeq's statistics.

        Its traces begin with a column of 1e8, leave out Anderson's first two steps and are padded to the length after all
        steps; those of its simple solver have the last step alone.
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
    gap, states = options.sup_gap, []
    for k in range(1, count + 1):
        z = step(z) if options.tau == 1.0 else torch.lerp(z, step(z), options.tau)
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

        method = NamedSolver(options.b_solver, options.b_max_iter, options.b_tol, options.b_stop_mode)
        found = _solve(lambda u: g if u is start else graph.pull(u) + g, start, method)  # Jᵀ0 needs no product
        if writer is not None:
            writer(found.info())
        return torch.where(torch.isfinite(g).all(1)[:, None], found.best, torch.nan)  # passes a NaN on

    # On a copy the hook is not called by the products with J, which begin at the image itself.
    out = graph.image.clone()
    if out.requires_grad:
        out.register_hook(solve)
    return out
