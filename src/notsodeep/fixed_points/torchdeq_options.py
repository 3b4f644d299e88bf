"""The options of `torchdeq.get_deq`, read and checked, and what they mean for our solvers."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch

from notsodeep.arguments import as_number, count, is_whole
from notsodeep.errors import BadInput
from notsodeep.fixed_points.plan import Plan
from notsodeep.fixed_points.solvers import Anderson, Broyden, Picard, Solver

_SOLVERS, _MODES = ("fixed_point_iter", "simple_fixed_point_iter", "anderson", "broyden"), ("abs", "rel")
_CHOICES = {
    "core": ("sliced", "indexing"), "f_solver": _SOLVERS, "b_solver": _SOLVERS, "f_stop_mode": _MODES, "b_stop_mode": _MODES,
}  # fmt: skip
_WHOLE = {
    "f_max_iter": 0,
    "b_max_iter": 0,
    "eval_f_max_iter": 0,
    "n_states": 1,
    "sup_gap": -1,
}  # with the least of each
# Options of torchdeq's command line that its get_deq never reads: they are for its norms, its losses and its users.
_OTHERS = (
    "no_stat", "norm_type", "norm_no_scale", "norm_clip", "norm_clip_value", "norm_target_norm", "sn_n_power_iters", "gamma",
    "jac_loss_weight", "jac_loss_freq", "jac_incremental", "sradius_mode",
)  # fmt: skip


@dataclass(frozen=True)
class Method:
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
        """What our loop is to do."""
        anderson, broyden = self.name == "anderson", self.name == "broyden"
        solver: Solver = Anderson(memory=self.m - 1, damping=self.tau) if anderson else Picard()
        solver = Broyden(memory=self.LBFGS_thres or self.max_iter) if broyden else solver
        tol = max(self.tol, torch.finfo(dtype).tiny)  # 0, in torchdeq, is for "all steps"
        return Plan(solver, tol, self.stop_mode == "rel", self.max_iter, throw=False)


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
        self.states(self.f_max_iter)  # looks at the rest

    def forward(self, training: bool, solver_kwargs: Mapping[str, Any]) -> Method:
        """The solve of a call. What is meant for another solver changes nothing."""
        if not isinstance(solver_kwargs, Mapping):
            raise BadInput(f"solver_kwargs must be a dict, got {type(solver_kwargs).__name__}.")
        more = dict(solver_kwargs)
        _require_known(more, ("f_max_iter", "tau", "m", "lam", "LBFGS_thres", "ls", "return_final"), "solver_kwargs")
        if any([more.pop("ls", False), more.pop("return_final", False)]):
            raise BadInput(
                "There is no ls (line search) and no return_final here; simple_fixed_point_iter does return its last state."
            )
        budget = self.f_max_iter if training else self.eval_f_max_iter or int(self.f_max_iter * self.eval_factor)
        # torchdeq's Anderson mixes m iterates, that is m − 1 differences, and there must be one.
        for name, least in (("f_max_iter", 0), ("m", 2 if self.f_solver == "anderson" else 1), ("LBFGS_thres", 1)):
            if more.get(name) is not None:
                count(more[name], name, least)
        _require_tau(more.get("tau", 1.0))
        return Method(self.f_solver, int(more.pop("f_max_iter", budget)), self.f_tol, self.f_stop_mode, **more)

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
    """`BadInput` with the nearest known name for one that is not known."""
    names = sorted(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
            raise BadInput(f"{what} has no option {name!r}; {hint}")
