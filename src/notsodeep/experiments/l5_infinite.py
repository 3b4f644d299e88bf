"""L5, at infinite width: exact kernels of a DEQ and its rivals, and kernel regression with them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.experiments.experiment import Values
from notsodeep.experiments.l5_units import InfiniteUnit
from notsodeep.experiments.rivals import load_task, networks
from notsodeep.kernels.compare import best_scaled_gap, relative_gap
from notsodeep.kernels.exact import conjugate_kernel, exact_kernels
from notsodeep.models.objective import score
from notsodeep.models.readout import RIDGES


def run(unit: InfiniteUnit, device: torch.device) -> Values:
    """Gaps of both kernels; accuracy, agreement and distance of kernel regression's predictions, all with one ridge."""
    task = load_task(unit.data, 0, 0, device).first(unit.train, unit.test)
    nets, x, test_x = networks(unit.activation, unit.var_a), task.x.double(), task.test_x.double()
    both = {"deq": exact_kernels(nets.deq, x, tau0=1.0)}
    both |= {name: exact_kernels(net, x) for name, net in (("matched", nets.matched), ("plain", nets.plain))}
    grams = {name: kernels.conjugate for name, kernels in both.items()}
    crossed = {"deq": conjugate_kernel(nets.deq, test_x, x, tau0=1.0)}
    crossed |= {name: conjugate_kernel(getattr(nets, name), test_x, x) for name in ("matched", "plain")}
    factor = best_scaled_gap(grams["deq"], grams["plain"])[1]
    grams["rescaled"], crossed["rescaled"] = factor * grams["plain"], factor * crossed["plain"]
    targets = functional.one_hot(task.y, task.classes).double()
    wanted = targets - targets.mean(0)
    level = _best_level(grams["deq"], wanted)
    outputs = {name: crossed[name] @ _solved(gram, wanted, level) for name, gram in grams.items()}
    answers = {name: (out + targets.mean(0)).argmax(1) for name, out in outputs.items()}
    rivals = [name for name in grams if name != "deq"]
    size = float(outputs["deq"].norm())
    return {
        "accuracy": {name: score(out + targets.mean(0), task.test_y) for name, out in outputs.items()},
        "agreement": {name: float((answers[name] == answers["deq"]).double().mean()) for name in rivals},
        "kernel_gap": {name: relative_gap(grams["deq"], grams[name]) for name in rivals},
        "tangent_gap": {name: relative_gap(both["deq"].tangent, both[name].tangent) for name in ("matched", "plain")},
        "prediction_gap": {name: float((outputs[name] - outputs["deq"]).norm()) / size for name in rivals},
        "factor": factor,
    }


def _solved(gram: Tensor, wanted: Tensor, level: float) -> Tensor:
    shifted = gram.clone()
    shifted.diagonal().add_(level)
    return torch.cholesky_solve(wanted, torch.linalg.cholesky(shifted))


def _best_level(gram: Tensor, wanted: Tensor) -> float:
    """The ridge with the smallest leave-one-out error: α_i/(K + λ)⁻¹_ii is what a fit without sample i misses it by."""
    values, vectors = torch.linalg.eigh(gram)
    along, mean = vectors.T @ wanted, float(values.clamp(min=0.0).mean())

    def error(level: float) -> float:
        inverse = 1.0 / (values.clamp(min=0.0) + level)
        missed = (vectors @ (inverse[:, None] * along)) / (vectors.square() @ inverse)[:, None]
        return float(missed.square().sum())

    levels: list[float] = [ridge * mean for ridge in RIDGES]
    return min(levels, key=error)
