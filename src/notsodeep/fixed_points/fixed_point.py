"""A general implicit layer: z = f(z) for any f, with exact gradients for every tensor that f uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from notsodeep.arguments import flag, is_whole, shown, takes
from notsodeep.errors import BadInput, NotConverged
from notsodeep.fixed_points.adjoint import Adjoint, ImplicitAdjoint, UnrolledAdjoint, require_adjoint
from notsodeep.fixed_points.capture import capture, eager, require_all_seen, transforms_active
from notsodeep.fixed_points.exported import in_graph, solve_in_graph
from notsodeep.fixed_points.graph import Seen, followed
from notsodeep.fixed_points.implicit import equilibrium
from notsodeep.fixed_points.layout import StateLayout
from notsodeep.fixed_points.loop import Context, Independence
from notsodeep.fixed_points.plan import FullPrecision, Plan, Precision, default_tolerance, inside
from notsodeep.fixed_points.solution import Reason, Solution, Subject
from notsodeep.fixed_points.solvers import Anderson, Picard, Preconditioned, Solver
from notsodeep.fixed_points.splitting import Activated, ActivatedRows, Splitting
from notsodeep.fixed_points.stand_in import Problem, answered, apart, planned, unchecked, watched

_COUPLED = " Where rows of the state depend on each other, pass samples=0."


@eager
def fixed_point(
    f: Callable[..., Any],
    z0: Any,
    solver: Solver | Splitting = Anderson(),  # noqa: B008 (a frozen value)
    adjoint: Adjoint | None = None,
    *,
    inputs: Sequence[Tensor] = (),
    args: Sequence[Tensor] | None = None,
    samples: int | None = None,
    tol: float | None = None,
    atol: float = 0.0,
    relative: bool = True,
    max_steps: int = 200,
    precision: Precision = FullPrecision(),  # noqa: B008
    keep: Sequence[int] = (),
    aux: bool = False,
    throw: bool = True,
) -> Solution:
    """The `Solution` of z = f(z).

    Each sample has converged when ‖f(z) − z‖ ≤ tol·‖f(z)‖ + atol, or ≤ tol where not `relative`; the state that is returned was
    evaluated as a whole. ``.value`` carries a gradient for every tensor that f uses, exact unless `adjoint` says otherwise. In
    a graph made by `torch.export` plain steps stand for the solver; `notsodeep.fixed_points.exporting` chooses which.

    Args:
        f: A function of the state, f(z, *inputs, *args), that returns a state of the same shapes.
        z0: The start: a float or complex tensor, or a nested tuple, list or dict of them.
        solver: `Picard`, `Anderson`, `Broyden`, or another `Solver`; for f = `Activated`, `PeacemanRachford` or
            `ForwardBackward` too.
        adjoint: How a gradient passes: `ImplicitAdjoint` (by default, with the forward pass's splitting, if any),
            `PhantomAdjoint`, `OneStepAdjoint`, `UnrolledAdjoint`.
        inputs: Tensors with one row per sample. Samples that are done leave the batch, and with them their rows.
        args: Further arguments of f. Without them, the tensors that f closes over are found by themselves. With them, second
            derivatives and `torch.func` look for no others, and raise where f uses any; first derivatives find all.
        samples: How many leading axes of the state are independent problems: 0 (the whole state is one), 1, 2 … By default
            one, where every tensor has two axes or more and they agree on the first; that is checked, and a state whose rows
            turn out to depend on each other is solved as one.
        tol: Tolerance; by default 1e-5 in float32 and 1e-10 in float64.
        atol: Absolute tolerance that is added to the relative one.
        relative: Whether `tol` is relative to ‖f(z)‖.
        max_steps: The most steps, one evaluation of f each; a few more look for coupled rows and check the answer.
        precision: `FullPrecision`, or `MixedPrecision` for early steps in lower precision.
        keep: Evaluations, counted from 1, whose images are returned as ``.states``, each with the gradient of one step.
        aux: Whether f returns (state, something); ``.aux`` is that something at the solution, with its gradient.
        throw: Whether to raise where a sample has not converged; otherwise see ``.reason`` and ``.converged``.

    Returns:
        The solution: value, steps, residuals, and the status of each sample.

    Raises:
        NotConverged: With residuals and a remedy, unless throw=False.
        BadInput: f, the state or an option cannot be used.
    """
    if adjoint is None:
        adjoint = ImplicitAdjoint(solver) if isinstance(solver, Splitting) else ImplicitAdjoint()
    require_adjoint(adjoint)
    _require_callable(f, inputs, args)
    aux = flag(aux, "aux")
    layout = StateLayout.of(z0, samples)
    start = layout.pack(z0).clone()
    kind = start.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        f = inside(lambda: torch.autocast(kind, dtype=dtype), f)  # so a backward pass outside of it sees the same function
        # Residuals end at the rounding of the dtype that f computes in, whatever that of the state.
        tol = default_tolerance(dtype) if tol is None else tol
        if isinstance(adjoint, ImplicitAdjoint) and adjoint.tol is None:
            adjoint = replace(adjoint, tol=default_tolerance(dtype))
    if isinstance(adjoint, ImplicitAdjoint) and isinstance(adjoint.solver, Preconditioned | Splitting):
        adjoint = replace(adjoint, solver=_for_layout(adjoint.solver, layout))
    step = StateMap(f, layout, tuple(inputs), tuple(args or ()), aux)
    plan = Plan(_for_layout(solver, layout), tol, relative, max_steps, precision, throw=throw, atol=atol)
    rows = Independence.assumed if samples is None else Independence.stated
    context = Context(rows=rows, keep=_evaluations(keep, solver))
    return _watched(step, z0, start, plan, adjoint, context, named=args is not None)


def _watched(
    step: StateMap, z0: Any, start: Tensor, plan: Plan, adjoint: Adjoint, context: Context, *, named: bool
) -> Solution:
    """The solution, or what stands in for it; whoever watches sees it."""
    layout = step.layout

    def problem() -> Problem:
        return Problem.of(step.problem, z0, layout.axes, plan)

    answer = answered(problem)
    if answer is not None:
        value = pytree.tree_unflatten(answer, layout.spec)
        found = unchecked(value, layout.samples, start, plan)
        return replace(found, states=(value,) * len(context.keep), aux=apart(partial(step.aux_at, value)))
    if in_graph():
        wanted = planned(plan)
        return apart(lambda: _exported(step, z0, wanted, context.keep))

    def solve(plan: Plan) -> Solution:
        return _solved(step, start, plan, adjoint, context, named=named)

    solution = watched(problem, plan, solve, lambda matrix: pytree.tree_leaves(layout.unpack(matrix)))
    value = layout.unpack(solution.value)

    def rest() -> Solution:
        states = tuple(step.kept(pair, solution, adjoint) for pair in solution.states)
        return replace(solution, value=value, states=states, aux=step.aux_at(value))

    return apart(rest)


def _exported(step: StateMap, z0: Any, plan: Plan, keep: tuple[int, ...]) -> Solution:
    """The solution in an exported graph."""
    if keep:
        raise BadInput(
            f"keep={keep!r} returns states of a loop, which no graph has: leave keep out where torch.compiler.is_exporting()."
        )
    plan = replace(plan, tol=plan.tolerance(step.layout.dtype))
    solution = solve_in_graph(step.image, z0, step.layout.axes, plan)
    return replace(solution, aux=step.aux_at(solution.value))


def _solved(step: StateMap, start: Tensor, plan: Plan, adjoint: Adjoint, context: Context, *, named: bool) -> Solution:
    """The solution as matrices; `named` says that args lists every tensor that may need a second derivative."""
    tensors = (*step.inputs, *step.args)
    kind = start.device.type
    low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else start.dtype
    what = Subject(advice=_COUPLED if step.layout.samples > 1 else "", scaled=low == torch.float16)
    if transforms_active() and not isinstance(adjoint, UnrolledAdjoint):
        of_tensors: Any = step.of_tensors
        known = tensors
        if not named:
            _, of_tensors, tensors = capture(step, start.detach().clone())
            known = (*of_tensors.captured, *tensors)
        solution = equilibrium(of_tensors, start, tensors, plan, adjoint, what=what)
        # Without the graph of a last evaluation to follow, a tensor that was neither named nor seen would be a constant.
        require_all_seen(step(solution.value.detach()), known)
        return replace(solution, extra=solution.extra + 1)
    seen: Seen | None = None
    if torch.is_grad_enabled() and isinstance(adjoint, ImplicitAdjoint):
        seen = Seen(None, step.of_tensors, tensors) if named else Seen(*capture(step, start))
    return followed(step, start, plan, adjoint, seen=seen, what=what, context=context)


def implicit_gradient(
    f: Callable[..., Any], z_star: Any, adjoint: Adjoint | None = None, *, throw: bool = True, **options: Any
) -> Any:
    """z_star, a solution of z = f(z) found by any means, with the exact gradient of a fixed point.

    Args:
        f: The map, as for `fixed_point`.
        z_star: The solution: a tensor, or a nested tuple, list or dict of them.
        adjoint: How a gradient passes, `ImplicitAdjoint()` by default.
        throw: Whether to raise where z_star is not a solution.
        **options: `tol`, `atol`, `relative`, `samples`, `inputs` and `args` of `fixed_point`.

    Returns:
        A state equal to z_star that carries a gradient for every tensor that f uses.

    Raises:
        NotConverged: z_star is not within tolerance of f(z_star), unless throw=False.
        BadInput: f, the state or an option cannot be used.
    """
    found = fixed_point(f, z_star, Picard(), adjoint, max_steps=1, throw=False, **options)
    if flag(throw, "throw") and found.reason is not Reason.converged:
        kind = "relative residual" if found.relative else "residual"
        raise NotConverged(
            f"z_star does not solve z = f(z): its {kind} is {float(found.residuals[0].max()):.2e}, the tolerance "
            f"{found.tol:.1e}. Solve it further, pass the tol that it was solved to, or throw=False to take it as it is.",
            residual=found.residual,
            steps=found.evaluations,
            reason=found.reason,
            solution=found,
        )
    return found.value


@dataclass(frozen=True, eq=False)
class StateMap:
    """f, a function of states, as a map of matrices: pack(f(unpack(matrix), *inputs, *args)).

    Where `aux`, f returns (state, something).
    """

    f: Callable[..., Any]
    layout: StateLayout
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
                f"inputs have one row for each sample, and the state has {self.layout.samples}; {wrong[0]} belongs into args."
            )

    def __call__(self, z: Tensor) -> Tensor:
        return self.of_tensors(z, *self.inputs, *self.args)

    def of_tensors(self, z: Tensor, *tensors: Tensor) -> Tensor:
        """The map with other tensors in place of the inputs and arguments."""
        version = None if z.is_inference() else z._version
        image = self._state(self._called(self.layout.unpack(z), *tensors))
        matrix = self.layout.packed(image).to(z.dtype)
        if version is not None and z._version != version:
            raise BadInput("f changes its state in place, so nothing is left to compare with: let it work on z.clone().")
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
    def problem(self) -> Callable[[Any], Any]:
        """The map of states, in its parts φ, W and u where f is given with them."""
        return self.f if isinstance(self.f, Activated) else self.image

    @property
    def selectable(self) -> bool:
        """Whether it can be evaluated for some of the samples: with inputs, whose rows belong to the samples."""
        return bool(self.inputs)

    def select(self, rows: Tensor) -> StateMap:
        """The map of some of the samples."""
        return replace(self, layout=self.layout.of_rows(len(rows)), inputs=tuple(x[rows] for x in self.inputs))

    def aux_at(self, state: Any) -> Any:
        """The second value that f returns at `state`; None where not `aux`."""
        return self._pair(self.f(state, *self.inputs, *self.args))[1] if self.aux else None

    def kept(self, pair: tuple[Tensor, Tensor] | None, solution: Solution, adjoint: Adjoint) -> Any:
        """The image of a kept evaluation, with the gradient of one step; the solution where the loop had ended before."""
        if pair is None:
            return self.layout.unpack(solution.value)
        z, image = pair
        if torch.is_grad_enabled() and not isinstance(adjoint, UnrolledAdjoint):
            image = self(z.detach())
        return self.layout.unpack(image)

    def _called(self, state: Any, *tensors: Tensor) -> Any:
        """f(state, *tensors); `BadInput` where f takes another number of arguments."""
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


def _for_layout(solver: Any, layout: StateLayout) -> Any:
    """The solver with its preconditioner, if any, as a function of matrices."""
    if isinstance(solver, Preconditioned | Splitting):
        solver = replace(solver, solver=_for_layout(solver.solver, layout))
    if not isinstance(solver, Preconditioned):
        return solver
    apply = layout.wrap(solver.apply)

    def of_rows(r: Tensor) -> Tensor:
        # The rows of one state, all of it in one row where samples depend on each other, or many states under vmap.
        states = r.reshape(-1, layout.samples, sum(layout.sizes))
        return torch.stack([apply(state) for state in states]).reshape(r.shape)

    return replace(solver, apply=of_rows)


def _evaluations(keep: Sequence[int], solver: Solver | Splitting) -> tuple[int, ...]:
    if not isinstance(keep, list | tuple | range) or any(not is_whole(k) or k < 1 for k in keep):
        raise BadInput(f"keep names evaluations of f, counted from 1, as in keep=(3, 6); got {shown(keep)}.")
    if keep and transforms_active():
        raise BadInput("keep does not work under torch.func's transforms.")
    if keep and isinstance(solver, Splitting):
        name = type(solver).__name__
        raise BadInput(f"{name} iterates another map than f: keep goes with Picard(), Anderson(), Broyden().")
    return tuple(keep)


def _require_callable(f: object, inputs: object, args: object) -> None:
    if not callable(f):
        raise BadInput(f"f must be a function of the state, got {type(f).__name__}.")
    for given, name in ((inputs, "inputs"), (() if args is None else args, "args")):
        if not (isinstance(given, list | tuple) and all(isinstance(a, Tensor) for a in given)):
            raise BadInput(f"{name} must be a tuple of tensors, {name}=(a, b) for f(z, a, b), got {type(given).__name__}.")
