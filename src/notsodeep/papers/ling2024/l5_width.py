"""L5 at one width: features of a DEQ and its rivals, readouts of them by SGD and in closed form, and distances between them."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.data.cache import cache_folder
from notsodeep.errors import BadInput
from notsodeep.kernels.compare import relative_gap
from notsodeep.models.training.objective import score
from notsodeep.models.training.readout import BATCH, RIDGES, LinearReadout, RidgePath, in_batches
from notsodeep.papers.experiment import Values, settings
from notsodeep.papers.ling2024.rivals import ImageTask, Networks, best_factor, load_task, networks
from notsodeep.papers.records import key, provenance
from notsodeep.runtime.files import output_folder, write_whole

DRAWN = ("deq", "matched", "closest", "plain", "deq_again")
RIVALS = ("matched", "closest", "plain", "rescaled", "deq_again")
_KERNEL_SAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of a config and of all its units; `train` and `test` are numbers of samples, 0 for all."""

    var_a: float = 0.2
    train: int = 0
    test: int = 0


@dataclass(frozen=True, kw_only=True)
class ReadoutTraining(Sampling):
    """Settings of a config and of its units of finite width."""

    epochs: int = 100
    batch: int = 128


@dataclass(frozen=True, kw_only=True)
class InfiniteUnit(Sampling):
    """Kernels of infinite width, on the first `train` and `test` samples."""

    data: str
    activation: str
    kind: str = "infinite"
    seed: int = 0

    @property
    def cost(self) -> float:
        return float(1.0 + 30.0 * (self.train / 4000) ** 2)


@dataclass(frozen=True, kw_only=True)
class FiniteUnit(ReadoutTraining):
    """Networks of `width` units, with their readouts trained (`kind` "width") or all their weights ("trained")."""

    kind: str
    data: str
    activation: str
    width: int
    rate: float
    """Learning rate of the optimiser."""
    seed: int

    @property
    def cost(self) -> float:
        n = (self.train or 60_000) / 10_000
        if self.kind == "trained":
            return float(6.0 * n * self.epochs * (self.width / 1024) ** 1.7)
        # Readouts by SGD grow with the width, features and the closed form with its square.
        return 1.0 + n * (0.06 * self.epochs * (1.0 + self.width / 512) + 6.0 * (self.width / 1024) ** 2)


Unit = FiniteUnit | InfiniteUnit


def run(unit: FiniteUnit, device: torch.device) -> Values:
    """Test accuracy by SGD and in closed form; against the DEQ, agreement of answers and gaps of kernels and predictions."""
    task = load_task(unit.data, unit.train, unit.test, device)
    nets = networks(unit.activation, unit.var_a, unit.data, unit.train)
    factor = best_factor(nets, task.test_x)
    cache = FeatureCache(_features_key(unit))
    train, test, seconds = _features(unit, nets, task, cache)
    # Under SGD the factor acts as a rate; a readout in closed form with its own ridge does not depend on it.
    by_sgd = _by_sgd(unit, train, test, task, factor**0.5)
    ridges, by_ridge, predicted = _by_ridge(train, test, task, factor)
    outputs = {"sgd": by_sgd, "ridge": by_ridge}
    values = {
        "accuracy": {how: {net: score(out, task.test_y) for net, out in of.items()} for how, of in outputs.items()},
        "agreement": {how: agreement(of) for how, of in outputs.items()},
        "kernel_gap": _kernel_gaps(unit, nets, task, factor),
        "prediction_gap": _prediction_gaps(predicted),
        "solver_gap": _solver_gap(unit, nets, task),
        "ridge": ridges,
        "factor": factor,
        "seconds": seconds,
    }
    cache.clear()
    return values


def _features_key(unit: FiniteUnit) -> str:
    """Key of the settings that the features depend on, and of the versions that made them; the readout has no part in it."""
    asked = settings(unit)
    names = ("data", "activation", "var_a", "width", "train", "test", "seed")
    return key("features", {name: asked[name] for name in names} | provenance(torch.device("cpu"))["versions"])


def _features(
    unit: FiniteUnit, nets: Networks, task: ImageTask, cache: FeatureCache
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float]]:
    train, test, seconds = {}, {}, {}
    for name in DRAWN:
        module = nets.module(name, task.x.shape[1], unit.width, unit.seed).to(task.x.device)
        began = time.perf_counter()
        train[name] = cache.get(f"{name}-train", module.features, task.x, unit.width)
        test[name] = cache.get(f"{name}-test", module.features, task.test_x, unit.width)
        if task.x.is_cuda:
            torch.cuda.synchronize()
        seconds[name] = round(time.perf_counter() - began, 3)
    return train, test, seconds


def _by_sgd(
    unit: FiniteUnit, train: Mapping[str, Tensor], test: Mapping[str, Tensor], task: ImageTask, scale: float
) -> dict[str, Tensor]:
    """Test outputs of each network, the plain one also with its features times `scale`."""
    sgd = SGD(unit.rate, unit.batch, unit.epochs)
    of = {"deq": "deq", **{name: "plain" if name == "rescaled" else name for name in RIVALS}}
    # On a GPU all at once; elsewhere one by one, because all features together may not fit.
    groups = [tuple(of)] if task.x.is_cuda else [(name,) for name in of]
    readouts: dict[str, LinearReadout] = {}
    for names in groups:
        draw = torch.Generator().manual_seed(unit.seed)
        stacked = torch.stack([train[of[name]] for name in names]) if len(names) > 1 else train[of[names[0]]][None]
        scales = [scale if name == "rescaled" else 1.0 for name in names]
        found = sgd_readouts(stacked, task.y, task.classes, sgd, draw, scales=scales)
        readouts |= dict(zip(names, found, strict=True))
    return {name: readouts[name](test[of[name]]) for name in of}


def agreement(outputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Share of the test samples to which each network gives the DEQ's answer."""
    answers = {name: out.argmax(1) for name, out in outputs.items()}
    return {name: float((a == answers["deq"]).double().mean()) for name, a in answers.items() if name != "deq"}


@torch.no_grad()
def _kernel_gaps(unit: FiniteUnit, nets: Networks, task: ImageTask, factor: float) -> dict[str, float]:
    """‖ZZᵀ − Z'Z'ᵀ‖/‖ZZᵀ‖ on test samples, with equilibria solved to round-off."""
    x = task.test_x[:_KERNEL_SAMPLES]
    grams = {}
    for name in DRAWN:
        z = nets.module(name, x.shape[1], unit.width, unit.seed, paper_solver=False).to(x.device).features(x).double()
        grams[name] = z @ z.T
    grams["rescaled"] = factor * grams["plain"]
    return {name: relative_gap(grams["deq"], grams[name]) for name in RIVALS}


def _by_ridge(
    train: Mapping[str, Tensor], test: Mapping[str, Tensor], task: ImageTask, factor: float
) -> tuple[dict[str, float], dict[str, Tensor], dict[str, Tensor]]:
    """Each network's best ridge, its test outputs with that, and its test outputs with the DEQ's absolute ridge λ.

    √c times the features with λ gives the same outputs as the features themselves with λ/c.
    """
    ridges, outputs, predicted, added = {}, {}, {}, 0.0
    targets = functional.one_hot(task.y, task.classes)

    def batches(z: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(z.split(BATCH), targets.split(BATCH), strict=True)

    for name in DRAWN:  # the DEQ first; one at a time, because each holds an m × m matrix
        path = RidgePath.of(partial(batches, train[name]))
        own = path.best(RIDGES)
        ridges[name], outputs[name] = own.ridge, own(test[name])
        if name == "deq":
            added = own.ridge * path.level
        predicted[name] = path.at(added / path.level)(test[name])
        if name == "plain":
            predicted["rescaled"] = path.at(added / (factor * path.level))(test[name])
    return ridges, outputs, predicted


def _prediction_gaps(predicted: Mapping[str, Tensor]) -> dict[str, float]:
    """‖f − f_deq‖/‖f_deq‖ of kernel regression's predictions f, centred over the samples."""
    centred = {name: out.double() - out.double().mean(0) for name, out in predicted.items()}
    size = float(centred["deq"].norm())
    return {name: float((centred[name] - centred["deq"]).norm()) / size for name in RIVALS}


@torch.no_grad()
def _solver_gap(unit: FiniteUnit, nets: Networks, task: ImageTask) -> float:
    """Relative distance of the features at the paper's tolerance from those solved to round-off."""
    x = task.test_x[:_KERNEL_SAMPLES]
    loose, tight = (
        nets.module("deq", x.shape[1], unit.width, unit.seed, paper_solver=paper).to(x.device).features(x)
        for paper in (True, False)
    )
    return float((loose - tight).norm() / tight.norm())


class FeatureCache:
    """The features of one computation.

    On the CPU each set is a memory-mapped file: nothing of size n × m is held in memory, and a killed run finds the features
    again. On a GPU they stay in its memory.
    """

    def __init__(self, key: str, folder: Path | None = None) -> None:
        self.folder = (cache_folder() / "features" if folder is None else folder) / key

    @torch.no_grad()
    def get(self, name: str, features: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
        """features(x), (n, width)."""
        if x.is_cuda:
            return in_batches(features, x)
        path = output_folder(self.folder) / f"{name}.npy"
        if not path.is_file():
            write_whole(path, lambda to: _write(to, features, x, width))
        return torch.from_numpy(np.load(path, mmap_mode="r+"))  # torch has no read-only tensors

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _write(path: Path, features: Callable[[Tensor], Tensor], x: Tensor, width: int) -> None:
    target = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(len(x), width))
    for start in range(0, len(x), BATCH):
        target[start : start + BATCH] = features(x[start : start + BATCH]).numpy()
    target.flush()


@dataclass(frozen=True)
class SGD:
    """SGD on the cross-entropy without momentum, at a fixed rate, with a new order of the samples each epoch."""

    rate: float = 1.0
    batch: int = 128
    epochs: int = 100


@torch.no_grad()
def sgd_readouts(
    features: Tensor, y: Tensor, classes: int, sgd: SGD, generator: torch.Generator, *, scales: Sequence[float] | None = None
) -> list[LinearReadout]:
    """One trained readout for each of R networks, from their features (R, n, m) and the classes y (n,).

    All start from the same draw of torch's usual U(−1/√m, 1/√m) and see the samples in the same order. With `scales` the r-th
    is trained on s_r times its features; the returned readout sW takes the unscaled features, for which s acts as a rate of s².
    """
    networks, n, width = features.shape
    if len(y) != n:
        raise BadInput(f"There are {n} samples and {len(y)} labels; they must be as many.")
    scale = torch.tensor(scales or [1.0] * networks).to(features)[:, None, None]
    bound = 1.0 / math.sqrt(width)
    first = torch.empty(width + 1, classes).uniform_(-bound, bound, generator=generator).to(features)
    weight, bias = scale * first[:width], first[width:].expand(networks, 1, classes).clone()
    wanted = functional.one_hot(y, classes).to(features)
    order = torch.empty(n, dtype=torch.long, device=features.device)

    def epoch() -> None:
        for chosen in order.split(sgd.batch):
            z = features[:, chosen]
            missed = torch.baddbmm(bias, z, weight).softmax(2).sub_(wanted[chosen]).mul_(-sgd.rate / len(chosen))
            bias.add_(missed.sum(1, keepdim=True))
            weight.baddbmm_(z.mT, missed * scale.square())

    run = _replayed(epoch, order, (weight, bias)) if features.is_cuda else epoch
    for _ in range(sgd.epochs):
        order.copy_(torch.randperm(n, generator=generator))
        run()
    return [LinearReadout(w.T, b[0], 0.0, math.nan) for w, b in zip(weight, bias, strict=True)]


def _replayed(epoch: Callable[[], None], order: Tensor, state: tuple[Tensor, ...]) -> Callable[[], None]:
    """`epoch` as a CUDA graph, which launches its thousands of small products at once."""
    kept = [part.clone() for part in state]
    order.copy_(torch.arange(len(order)))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # a capture needs one run before it; `state` is restored below
        epoch()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        epoch()
    for part, was in zip(state, kept, strict=True):
        part.copy_(was)
    return graph.replay
