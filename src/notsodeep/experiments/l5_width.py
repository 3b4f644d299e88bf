"""L5, at one width: readouts of the features of a DEQ and its rivals, and how far apart the networks are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.experiments.experiment import Values, settings
from notsodeep.experiments.feature_cache import FeatureCache
from notsodeep.experiments.l5_units import FiniteUnit
from notsodeep.experiments.record import key, provenance
from notsodeep.experiments.rivals import Networks, Task, best_factor, load_task, networks
from notsodeep.kernels.compare import relative_gap
from notsodeep.models.objective import score
from notsodeep.models.readout import BATCH, RIDGES, LinearReadout, RidgePath
from notsodeep.models.sgd_readout import SGD, sgd_readouts

DRAWN = ("deq", "matched", "plain", "deq_again")
RIVALS = ("matched", "plain", "rescaled", "deq_again")
_KERNEL_SAMPLES = 1000


def run(unit: FiniteUnit, device: torch.device) -> Values:
    """Test accuracy by SGD and in closed form; against the DEQ: agreement of answers, gaps of kernels and of predictions."""
    task = load_task(unit.data, unit.train, unit.test, device)
    nets = networks(unit.activation, unit.var_a)
    factor = best_factor(nets, task.test_x)
    cache = FeatureCache(_features_key(unit))
    train, test, seconds = _features(unit, nets, task, cache)
    # By SGD the factor is a rate; a readout in closed form with a ridge of its own does not see it.
    by_sgd = _by_sgd(unit, train, test, task, factor**0.5)
    ridges, by_ridge, predicted = _by_ridge(train, test, task, factor)
    values = {
        "accuracy": {"sgd": _accuracy(by_sgd, task), "ridge": _accuracy(by_ridge, task)},
        "agreement": {"sgd": _agreement(by_sgd), "ridge": _agreement(by_ridge)},
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
    """What the features depend on, and the code that made them: not on how they are read out."""
    asked = settings(unit)
    names = ("data", "activation", "var_a", "width", "train", "test", "seed")
    return key("features", {name: asked[name] for name in names} | provenance(torch.device("cpu"))["versions"])


def _features(
    unit: FiniteUnit, nets: Networks, task: Task, cache: FeatureCache
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


class _Stream:
    """Features and one-hot targets, batch by batch."""

    def __init__(self, z: Tensor, y: Tensor, classes: int) -> None:
        self.z, self.targets = z, functional.one_hot(y, classes)

    def __call__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.z.split(BATCH), self.targets.split(BATCH), strict=True)


def _by_sgd(
    unit: FiniteUnit, train: Mapping[str, Tensor], test: Mapping[str, Tensor], task: Task, scale: float
) -> dict[str, Tensor]:
    """Test outputs of each network, the plain one also with its features times `scale`."""
    sgd = SGD(unit.rate, unit.batch, unit.epochs)
    of = {"deq": "deq", **{name: "plain" if name == "rescaled" else name for name in RIVALS}}
    # On a GPU all at once; elsewhere one by one, as all features together may not fit.
    groups = [tuple(of)] if task.x.is_cuda else [(name,) for name in of]
    readouts: dict[str, LinearReadout] = {}
    for names in groups:
        draw = torch.Generator().manual_seed(unit.seed)
        stacked = torch.stack([train[of[name]] for name in names]) if len(names) > 1 else train[of[names[0]]][None]
        scales = [scale if name == "rescaled" else 1.0 for name in names]
        found = sgd_readouts(stacked, task.y, task.classes, sgd, draw, scales)
        readouts |= dict(zip(names, found, strict=True))
    return {name: readouts[name](test[of[name]]) for name in of}


def _accuracy(outputs: Mapping[str, Tensor], task: Task) -> dict[str, float]:
    return {name: score(out, task.test_y) for name, out in outputs.items()}


def _agreement(outputs: Mapping[str, Tensor]) -> dict[str, float]:
    """The share of test samples to which each network gives the DEQ's answer."""
    answers = {name: out.argmax(1) for name, out in outputs.items()}
    return {name: float((a == answers["deq"]).double().mean()) for name, a in answers.items() if name != "deq"}


@torch.no_grad()
def _kernel_gaps(unit: FiniteUnit, nets: Networks, task: Task, factor: float) -> dict[str, float]:
    """‖ZZᵀ − Z'Z'ᵀ‖/‖ZZᵀ‖ on test samples, the equilibria solved to round-off."""
    x = task.test_x[:_KERNEL_SAMPLES]
    grams = {}
    for name in DRAWN:
        z = nets.module(name, x.shape[1], unit.width, unit.seed, tol=None).to(x.device).features(x).double()
        grams[name] = z @ z.T
    grams["rescaled"] = factor * grams["plain"]
    return {name: relative_gap(grams["deq"], grams[name]) for name in RIVALS}


def _by_ridge(
    train: Mapping[str, Tensor], test: Mapping[str, Tensor], task: Task, factor: float
) -> tuple[dict[str, float], dict[str, Tensor], dict[str, Tensor]]:
    """Each network's best ridge and its test outputs with that; and test outputs of all with the DEQ's own absolute ridge λ.

    √c times the features with λ is the features themselves with λ/c.
    """
    ridges, outputs, predicted, added = {}, {}, {}, 0.0
    for name in DRAWN:  # the DEQ first; one after another, as each holds an m × m matrix
        path = RidgePath.of(_Stream(train[name], task.y, task.classes))
        own = path.best(RIDGES)
        ridges[name], outputs[name] = own.ridge, own(test[name])
        if name == "deq":
            added = own.ridge * path.level
        predicted[name] = path.at(added / path.level)(test[name])
        if name == "plain":
            predicted["rescaled"] = path.at(added / (factor * path.level))(test[name])
    return ridges, outputs, predicted


def _prediction_gaps(predicted: Mapping[str, Tensor]) -> dict[str, float]:
    """‖f − f_deq‖/‖f_deq‖ of kernel regression's predictions f, about their mean over the samples."""
    centred = {name: out.double() - out.double().mean(0) for name, out in predicted.items()}
    size = float(centred["deq"].norm())
    return {name: float((centred[name] - centred["deq"]).norm()) / size for name in RIVALS}


@torch.no_grad()
def _solver_gap(unit: FiniteUnit, nets: Networks, task: Task) -> float:
    """The relative distance of the features at the paper's tolerance from those solved to round-off."""
    x = task.test_x[:_KERNEL_SAMPLES]
    loose, tight = (
        nets.module("deq", x.shape[1], unit.width, unit.seed, **tol).to(x.device).features(x)  # type: ignore[arg-type]
        for tol in ({}, {"tol": None})
    )
    return float((loose - tight).norm() / tight.norm())
