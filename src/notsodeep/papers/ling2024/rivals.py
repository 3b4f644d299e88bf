"""The networks that L5 and L6 compare (a DEQ, the explicit network matched to it, its closest twin, the plain one), and their
data."""

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

# The paper's solver: Anderson acceleration with a memory of 5, to a residual of 1e-2, in at most 25 steps.
_TOLERANCE, _MEMORY, _STEPS = 1e-2, 5, 25
_KINDS = ("deq", "deq_again", "matched", "plain")
_DESIGN_SAMPLES = 1500
_FACTOR_SAMPLES = 500
_SETS = ("digits", *IMAGE_SETS)


@dataclass(frozen=True)
class Networks:
    """The DEQ, its match as in the paper, its closest twin and the plain network, all for data of τ0 = 1."""

    deq: Implicit
    matched: Explicit
    closest: Explicit
    plain: Explicit

    def module(
        self, name: str, inputs: int, width: int, seed: int, outputs: int | None = None, *, paper_solver: bool = True
    ) -> DEQ | ENN:
        """`deq`, `deq_again` (a second draw), `matched`, `closest` or `plain`, with weights drawn from the seed and the name.

        The DEQ is solved as in the paper, or to round-off. The closest twin has the draw of the matched network: only
        activations differ between the two.
        """
        place = _KINDS.index("matched" if name == "closest" else name)
        draw = torch.Generator().manual_seed(len(_KINDS) * seed + place)
        bias = outputs is not None
        if name.startswith("deq"):
            tol, steps = (_TOLERANCE, _STEPS) if paper_solver else (None, 200)
            return DEQ(
                self.deq,
                inputs,
                width,
                outputs,
                readout_bias=bias,
                generator=draw,
                solver=Anderson(memory=_MEMORY),
                tol=tol,
                max_steps=steps,
                throw=False,  # the paper takes the state of the 25th step as it is
            )
        return ENN(getattr(self, name), inputs, width, outputs, readout_bias=bias, generator=draw)


@cache
def networks(activation: str, var_a: float, data: str, train: int = 0) -> Networks:
    """The networks for an activation and σ_a², designed at τ0 = 1; the closest twin on the last of the samples to train on, for
    kernels are compared on the first or on test samples."""
    deq = Implicit(activation, var_a)
    matched = design(deq, tau0=1.0, family="matched").explicit
    some = _task(data, train, torch.device("cpu")).x[-_DESIGN_SAMPLES:].double()
    closest = design(deq, some, tau0=1.0).explicit
    return Networks(deq, matched, closest, Explicit([deq.phi] * matched.depth).centred(1.0))


def best_factor(nets: Networks, x: Tensor) -> float:
    """The factor c of the smallest ‖G* − cΣ‖ on some of the samples, where Σ is the plain network's kernel."""
    some = x[:_FACTOR_SAMPLES].to(torch.float64)
    exact = conjugate_kernel(nets.deq, some, tau0=1.0)
    return best_scaled_gap(exact, conjugate_kernel(nets.plain, some))[1]


@dataclass(frozen=True, eq=False)
class ImageTask:
    """Training and test samples in float32, standardised to τ0 = 1 on the training set, and their classes."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    def first(self, train: int, test: int) -> ImageTask:
        """The first so many samples of each part; raises BadInput where there are fewer."""
        if train > len(self.x) or test > len(self.test_x):
            there = f"{len(self.x)} and {len(self.test_x)}"
            raise BadInput(f"{train} samples to train on and {test} to test on were asked for; there are {there}.")
        return ImageTask(self.x[:train], self.y[:train], self.test_x[:test], self.test_y[:test])


@lru_cache(maxsize=2)  # the same set on two devices, say; older sets are dropped
def _task(data: str, train: int, device: torch.device) -> ImageTask:
    if data not in _SETS:
        raise BadInput(f"There is no data set {data!r} to compare networks on; there are {', '.join(_SETS)}.")
    split = load_split(f"{data}:n={train},seed=0" if train else data)
    parts = split.train.x.float(), split.train.y, split.test.x.float(), split.test.y
    if parts[1] is None or parts[1].is_floating_point():
        raise BadInput(f"{data!r} has no classes to tell apart.")
    return ImageTask(*(part.to(device) for part in parts))  # type: ignore[union-attr]


def load_task(data: str, train: int, test: int, device: torch.device) -> ImageTask:
    """`train` samples drawn at random, and the first `test` of the test set; 0 means all."""
    task = _task(data, train, device)
    return task if test == 0 else task.first(len(task.x), test)
