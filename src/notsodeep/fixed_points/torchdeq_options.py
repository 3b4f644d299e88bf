"""The options of `torchdeq.get_deq`, read and checked, and what they mean for our solvers."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from notsodeep.errors import BadInput
from notsodeep.fixed_points.solvers import Anderson, Broyden, Picard, Solver

SOLVERS = ("fixed_point_iter", "simple_fixed_point_iter", "anderson", "broyden")
CORES = ("sliced", "indexing")
# Options of torchdeq's command line that its get_deq never reads: they are for its norms, its losses and its users.
OTHERS = (
    "no_stat", "norm_type", "norm_no_scale", "norm_clip", "norm_clip_value", "norm_target_norm", "sn_n_power_iters", "gamma",
    "jac_loss_weight", "jac_loss_freq", "jac_incremental", "sradius_mode",
)  # fmt: skip
SOLVER_OPTIONS = ("f_max_iter", "tau", "m", "lam", "LBFGS_thres", "ls", "return_final")


@dataclass(frozen=True)
class Options:
    """What `get_deq` was asked for, under torchdeq's names and with its defaults."""

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
        """The options in `args`, and in `keywords`, which win. Other names in `args` belong to the program that made it."""
        known = {field.name for field in fields(Options)}
        require_known(keywords, [*known, *OTHERS], "get_deq")
        given = {**_entries(args), **keywords}
        return Options(**{name: given[name] for name in known if given.get(name) is not None})

    def __post_init__(self) -> None:
        for name, choices in (
            ("core", CORES), ("f_solver", SOLVERS), ("b_solver", SOLVERS),
            ("f_stop_mode", ("abs", "rel")), ("b_stop_mode", ("abs", "rel")),
        ):  # fmt: skip
            if getattr(self, name) not in choices:
                raise BadInput(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}.")
        for name in ("f_max_iter", "b_max_iter", "eval_f_max_iter"):
            if not getattr(self, name) >= 0:
                raise BadInput(f"{name} must be a whole number ≥ 0, got {getattr(self, name)!r}.")
        steps = self.phantom_steps(self.f_max_iter)
        if not all(isinstance(k, int) and k >= 1 for k in steps):
            raise BadInput(f"grad must be a whole number of steps ≥ 1, or a list of them; got {self.grad!r}.")
        if self.sup_gap > min(steps, default=1) and not (self.implicit and len(steps) == 1):
            raise BadInput(f"sup_gap={self.sup_gap} takes no state from {min(steps)} phantom steps: raise grad.")

    @property
    def implicit(self) -> bool:
        """Whether the last state has the exact gradient."""
        return bool(self.ift or self.hook_ift)

    @property
    def evaluation_steps(self) -> int:
        """The number of steps in eval mode."""
        return int(self.eval_f_max_iter) if self.eval_f_max_iter > 0 else int(self.f_max_iter * self.eval_factor)

    def marks(self, max_iter: int) -> list[int]:
        """The numbers of steps after which the core 'indexing' takes a state, the last of them `max_iter`."""
        if self.n_states > 1:
            count = max(min(max_iter, self.n_states), 1)
            return [max_iter - k * (max_iter // count) for k in reversed(range(count))]
        return [*self.indexing, max_iter]

    def slices(self, max_iter: int) -> list[int]:
        """The numbers of steps of each solve of the core 'sliced'."""
        if self.n_states > 1:
            return [max_iter // self.n_states] * self.n_states
        slices = [after - before for before, after in pairwise([0, *self.indexing, max_iter])]
        if min(slices) < 0:
            raise BadInput(f"indexing must rise towards f_max_iter={max_iter}, got {list(self.indexing)}.")
        return slices

    def phantom_steps(self, max_iter: int) -> list[int]:
        """The number of phantom steps from each state."""
        count = len(self.marks(max_iter) if self.core == "indexing" else self.slices(max_iter))
        steps = [self.grad] if isinstance(self.grad, int) else list(self.grad)
        if len(steps) not in (1, count):
            raise BadInput(f"grad must be one number of steps, or one for each of {count} states; got {self.grad!r}.")
        return steps * count if len(steps) == 1 else steps


@dataclass(frozen=True)
class Method:
    """One of torchdeq's solvers with its budget: what to run, and how torchdeq counts and reports it."""

    name: str
    max_iter: int
    tol: float
    relative: bool
    tau: float = 1.0
    m: int = 6
    LBFGS_thres: int | None = None

    @staticmethod
    def of(name: str, max_iter: int, tol: float, stop_mode: str, more: Mapping[str, Any] | None = None) -> Method:
        """With the solver's own options `more`, of which those of another solver change nothing."""
        more = more or {}
        require_known(more, SOLVER_OPTIONS, "solver_kwargs")
        if more.get("ls"):
            raise BadInput("There is no line search in Broyden's method here: leave ls out.")
        if more.get("return_final"):
            raise BadInput(
                "return_final is not there: the best iterate is returned. f_solver='simple_fixed_point_iter' takes every step "
                "and returns the last."
            )
        chosen = {key: more[key] for key in ("tau", "m", "LBFGS_thres") if key in more}
        return Method(name, int(more.get("f_max_iter", max_iter)), tol, stop_mode == "rel", **chosen)

    @property
    def solver(self) -> Solver:
        match self.name:
            case "anderson":
                return Anderson(memory=self.m - 1, damping=self.tau)
            case "broyden":
                return Broyden(memory=self.LBFGS_thres or max(self.max_iter, 1))
        return Picard(damping=self.tau)

    @property
    def returns_image(self) -> bool:
        """Whether torchdeq returns f of the best iterate, and not that itself."""
        return self.name != "broyden"

    @property
    def unrecorded(self) -> int:
        """How many first evaluations torchdeq leaves out of its traces."""
        return {"anderson": 2, "broyden": 1}.get(self.name, 0)

    @property
    def uncounted(self) -> int:
        """How many evaluations torchdeq takes beside its `max_iter`."""
        return int(self.name == "broyden")


def require_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """`BadInput` with the nearest known name for one that is not known."""
    names = sorted(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
            raise BadInput(f"{what} has no option {name!r}; {hint}")


def _entries(args: Any) -> dict[str, Any]:
    if args is None:
        return {}
    if isinstance(args, Options):
        return asdict(args)
    inner = getattr(args, "config", None)
    if type(args).__name__ == "DEQConfig" and isinstance(inner, dict):  # torchdeq's own
        return dict(inner)
    if isinstance(args, Mapping):
        return dict(args)
    if isinstance(args, argparse.Namespace) or hasattr(args, "__dict__"):
        return dict(vars(args))
    raise BadInput(f"args must be a namespace, a dict or an object with attributes, got {type(args).__name__}.")
