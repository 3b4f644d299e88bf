"""The options of `torchdeq.get_deq`, read and checked, and what they mean for our solvers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch

from notsodeep.errors import BadInput
from notsodeep.fixed_points.loop import Plan
from notsodeep.fixed_points.solvers import Anderson, Broyden, Picard, Solver

_SOLVERS = ("fixed_point_iter", "simple_fixed_point_iter", "anderson", "broyden")
_MODES = ("abs", "rel")
_CHOICES = {
    "core": ("sliced", "indexing"), "f_solver": _SOLVERS, "b_solver": _SOLVERS, "f_stop_mode": _MODES, "b_stop_mode": _MODES,
}  # fmt: skip
# Options of torchdeq's command line that its get_deq never reads: they are for its norms, its losses and its users.
_OTHERS = (
    "no_stat", "norm_type", "norm_no_scale", "norm_clip", "norm_clip_value", "norm_target_norm", "sn_n_power_iters", "gamma",
    "jac_loss_weight", "jac_loss_freq", "jac_incremental", "sradius_mode",
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """One of torchdeq's solvers with its budget, and how torchdeq counts what it does."""

    name: str
    max_iter: int
    tol: float
    stop_mode: str
    tau: float = 1.0
    m: int = 6
    LBFGS_thres: int | None = None
    lam: float | None = None  # of torchdeq's Anderson; the ridge of ours is relative

    @property
    def is_simple(self) -> bool:
        """Whether every step is taken and the last state returned, without a look at residuals on the way."""
        return self.name == "simple_fixed_point_iter"

    @property
    def damping(self) -> float:
        """That of f itself: of Anderson's method it is an option, and Broyden's has none."""
        return 1.0 if self.name in ("anderson", "broyden") else self.tau

    @property
    def evaluations(self) -> int:
        """How many evaluations of f the budget is worth; Broyden's first is not counted."""
        return self.max_iter + (self.name == "broyden" and self.max_iter > 0)

    @property
    def unrecorded(self) -> int:
        """How many first evaluations are left out of the traces."""
        return {"anderson": 2, "broyden": 1}.get(self.name, 0)

    def plan(self, dtype: torch.dtype) -> Plan:
        """What our loop is to do."""
        solver: Solver = Picard()
        if self.name == "anderson":
            solver = Anderson(memory=self.m - 1, damping=self.tau)
        elif self.name == "broyden":
            solver = Broyden(memory=self.LBFGS_thres or self.max_iter)
        tol = max(self.tol, torch.finfo(dtype).tiny)  # 0, in torchdeq, is for "all steps"
        return Plan(solver, tol, self.stop_mode == "rel", self.evaluations, throw=False)


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
        known = [field.name for field in fields(Options)]
        _require_known(keywords, [*known, *_OTHERS], "get_deq")
        if type(args).__name__ == "DEQConfig":  # torchdeq's own
            args = args.config
        if not (args is None or isinstance(args, Mapping) or hasattr(args, "__dict__")):
            raise BadInput(f"args must be a namespace, a dict or an object with attributes, got {type(args).__name__}.")
        given = {**(args if isinstance(args, Mapping) else vars(args or Options())), **keywords}
        return Options(**{name: given[name] for name in known if given.get(name) is not None})

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadInput(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}.")
        for name in ("f_max_iter", "b_max_iter", "eval_f_max_iter"):
            if not getattr(self, name) >= 0:
                raise BadInput(f"{name} must be a whole number ≥ 0, got {getattr(self, name)!r}.")
        steps = self.phantom_steps(self.f_max_iter)
        if not all(isinstance(k, int) and k >= 1 for k in steps):
            raise BadInput(f"grad must be a whole number of steps ≥ 1, or a list of them; got {self.grad!r}.")
        if self.sup_gap > min(steps) and not (self.implicit and len(steps) == 1):
            raise BadInput(f"sup_gap={self.sup_gap} takes no state from {min(steps)} phantom steps: raise grad.")

    @property
    def implicit(self) -> bool:
        """Whether the last state has the exact gradient."""
        return self.ift or self.hook_ift

    def forward(self, training: bool, more: Mapping[str, Any]) -> Method:
        """The solve of a call with `more` as its solver_kwargs, of which those for another solver change nothing."""
        chosen = dict(more)
        _require_known(chosen, ("f_max_iter", "tau", "m", "lam", "LBFGS_thres", "ls", "return_final"), "solver_kwargs")
        if chosen.pop("ls", False):
            raise BadInput("There is no line search in Broyden's method here: leave ls out.")
        if chosen.pop("return_final", False):
            raise BadInput(
                "return_final is not there: the best state is returned. f_solver='simple_fixed_point_iter' takes every step "
                "and returns the last."
            )
        budget = self.f_max_iter if training else self.eval_f_max_iter or int(self.f_max_iter * self.eval_factor)
        budget = int(chosen.pop("f_max_iter", budget))
        return Method(self.f_solver, budget, self.f_tol, self.f_stop_mode, **chosen)

    def backward(self) -> Method:
        """The solve of a backward pass."""
        return Method(self.b_solver, self.b_max_iter, self.b_tol, self.b_stop_mode)

    def marks(self, max_iter: int) -> list[int]:
        """The numbers of evaluations after which the core 'indexing' takes a state, before the last."""
        if self.n_states > 1:
            count = max(min(max_iter, self.n_states), 1)
            return [max_iter - k * (max_iter // count) for k in range(count - 1, 0, -1)]
        return list(self.indexing)

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
        count = len(self.marks(max_iter)) + 1 if self.core == "indexing" else len(self.slices(max_iter))
        steps = [self.grad] if isinstance(self.grad, int) else list(self.grad)
        if len(steps) not in (1, count):
            raise BadInput(f"grad must be one number of steps, or one for each of {count} states; got {self.grad!r}.")
        return steps * count if len(steps) == 1 else steps


def _require_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """`BadInput` with the nearest known name for one that is not known."""
    names = sorted(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
            raise BadInput(f"{what} has no option {name!r}; {hint}")
