"""The networks that L5 and L6 set side by side: a DEQ, the explicit network matched to it, and the plain one of its depth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from notsodeep.data.image_sets import IMAGE_SETS
from notsodeep.data.sources import load_split
from notsodeep.errors import BadInput
from notsodeep.fixed_points.solvers import Anderson
from notsodeep.kernels.compare import best_scaled_gap
from notsodeep.kernels.exact.kernels import conjugate_kernel
from notsodeep.matching.design import design
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.theory.architecture import Explicit, Implicit

# The paper's: Anderson acceleration with a memory of 5, to a residual of 1e-2, in 25 steps at most.
PAPER_TOLERANCE, _MEMORY, _STEPS = 1e-2, 5, 25
_FACTOR_SAMPLES = 500
_SETS = ("digits", *IMAGE_SETS)


@dataclass(frozen=True)
class Networks:
    """The values: the DEQ, its match and the plain network, all for data of τ0 = 1."""

    deq: Implicit
    matched: Explicit
    plain: Explicit

    def module(
        self,
        name: str,
        inputs: int,
        width: int,
        seed: int,
        outputs: int | None = None,
        tol: float | None = PAPER_TOLERANCE,
    ) -> DEQ | ENN:
        """`deq`, `deq_again` (a second draw), `matched` or `plain`, its weights drawn by the seed and the name."""
        kinds = ("deq", "deq_again", "matched", "plain")
        draw = torch.Generator().manual_seed(len(kinds) * seed + kinds.index(name))
        bias = outputs is not None
        if name.startswith("deq"):
            steps = 200 if tol is None else _STEPS
            # The paper takes the state of the 25th step for what it is.
            solved = {"solver": Anderson(memory=_MEMORY), "tol": tol, "max_steps": steps, "throw": False}
            return DEQ(self.deq, inputs, width, outputs, readout_bias=bias, generator=draw, **solved)  # type: ignore[arg-type]
        net = self.matched if name == "matched" else self.plain
        return ENN(net, inputs, width, outputs, readout_bias=bias, generator=draw)


@cache
def networks(activation: str, var_a: float) -> Networks:
    deq = Implicit(activation, var_a)
    matched = design(deq, tau0=1.0).explicit
    return Networks(deq, matched, Explicit([deq.phi] * matched.depth).centred(1.0))


def best_factor(nets: Networks, x: Tensor) -> float:
    """c of the smallest ‖G* − cΣ‖ on some of the samples, Σ the plain network's kernel: what a factor can mend."""
    some = x[:_FACTOR_SAMPLES].to(torch.float64)
    exact = conjugate_kernel(nets.deq, some, tau0=1.0)
    return best_scaled_gap(exact, conjugate_kernel(nets.plain, some))[1]


@dataclass(frozen=True, eq=False)
class Task:
    """Training and test samples in float32, in the training set's units (τ0 = 1), and their classes."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    def first(self, train: int, test: int) -> Task:
        if train > len(self.x) or test > len(self.test_x):
            there = f"{len(self.x)} and {len(self.test_x)}"
            raise BadInput(f"{train} samples to train on and {test} to test on were asked for; there are {there}.")
        return Task(self.x[:train], self.y[:train], self.test_x[:test], self.test_y[:test])


@lru_cache(maxsize=2)  # one on each of two devices, say: not every set that was ever used
def _task(data: str, train: int, device: torch.device) -> Task:
    if data not in _SETS:
        raise BadInput(f"There is no data set {data!r} to compare networks on; there are {', '.join(_SETS)}.")
    split = load_split(f"{data}:n={train},seed=0" if train else data)
    parts = split.train.x.float(), split.train.y, split.test.x.float(), split.test.y
    if parts[1] is None or parts[1].is_floating_point():
        raise BadInput(f"{data!r} has no classes to tell apart.")
    return Task(*(part.to(device) for part in parts))  # type: ignore[union-attr]


def load_task(data: str, train: int, test: int, device: torch.device) -> Task:
    """`train` samples drawn at random, and the first `test` of the test set; 0 means all."""
    task = _task(data, train, device)
    return task if test == 0 else task.first(len(task.x), test)
