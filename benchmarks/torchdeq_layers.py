"""torchdeq on the layers of tests/clients: its loosest tolerance that is good enough, and its exact implicit gradient."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from peer import SOLVERS
from torchdeq import get_deq

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.clients, which scripts take from here

from tests.clients import CLIENTS
from tests.clients.client import Client, Counted, Problem, draw

__all__ = ["CLIENTS", "Client", "Counted", "Problem", "Setting", "Tuned", "all_tuned", "draw", "tuned"]

_TIGHTEST, _SHRINK = 0.01, 0.8


@dataclass(frozen=True)
class Setting:
    """One of torchdeq's solvers, relative stopping, with the tolerances and the most steps of both directions.

    `hook` takes the implicit gradient by a hook, without it by an autograd function. Broyden's memory is that of the most
    steps, so these should not be many more than it needs.
    """

    solver: str
    tol: float
    backward_tol: float
    max_steps: int
    backward_max_steps: int
    hook: bool = False

    def solve(self, client: Client, problem: Problem, training: bool) -> Any:
        """The state, laid out like the client's; with `training`, with its exact implicit gradient."""
        layer = _layer(self, training)
        f, z0 = problem.f, problem.z0
        if isinstance(z0, tuple):
            return tuple(layer(lambda *state: f(state), z0)[0][-1])
        if client.samples == 0:  # its first axis counts samples
            return layer(lambda z: f(z[0])[None], z0[None])[0][-1][0]
        return layer(f, z0)[0][-1]


@cache
def _layer(setting: Setting, training: bool) -> torch.nn.Module:
    return get_deq(
        ift=True,
        hook_ift=setting.hook,
        f_solver=setting.solver,
        b_solver=setting.solver,
        f_tol=setting.tol,
        b_tol=setting.backward_tol,
        f_max_iter=setting.max_steps,
        b_max_iter=setting.backward_max_steps,
        f_stop_mode="rel",
        b_stop_mode="rel",
    ).train(training)


@dataclass(frozen=True)
class Tuned:
    """A solver at the loosest tolerance at which the true residual of its state is within the client's."""

    setting: Setting
    evaluations: int
    residual: float


def tuned(client: Client, problem: Problem, solver: str, max_steps: int, loosest: float) -> Tuned | None:
    """`solver` at the first good one of ever smaller tolerances, from `loosest` times the residual that is asked for.

    None where none is good, or where it is not reached in `max_steps`.
    """
    factor = loosest
    while factor > _TIGHTEST:
        setting = Setting(solver, factor * client.tol, client.tol, max_steps, max_steps)
        counted = Counted(problem.f)
        try:
            with torch.no_grad():
                z = setting.solve(client, problem._replace(f=counted), training=False)
        except RuntimeError:  # a singular matrix, of an iteration that has run away
            return None
        residual = client.residual(problem, z)
        if residual <= client.tol:
            few = counted.evaluations
            return Tuned(Setting(solver, setting.tol, client.tol, few + 2, few + few // 2 + 10), few, residual)
        if counted.evaluations >= max_steps:
            return None
        factor *= _SHRINK
    return None


def all_tuned(client: Client, problem: Problem, max_steps: int, loosest: float = 10.0) -> dict[str, Tuned | None]:
    return {solver: tuned(client, problem, solver, max_steps, loosest) for solver in SOLVERS}
