"""L5: test accuracy against width, at infinite width, and with all weights trained. Ref: [ling2024] section 6, Figure 5."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.kernels.compare import best_scaled_gap, relative_gap
from notsodeep.kernels.exact.kernels import conjugate_kernel, exact_kernels
from notsodeep.linalg.ridge import KernelSpectrum
from notsodeep.models.training.fit import fit
from notsodeep.models.training.objective import Batches, score
from notsodeep.models.training.readout import BATCH, RIDGES, fit_readout, in_batches, scale_to_logits
from notsodeep.papers.experiment import Experiment, Values, from_config
from notsodeep.papers.ling2024 import l5_width
from notsodeep.papers.ling2024.l5_claims import claims, notes
from notsodeep.papers.ling2024.l5_width import FiniteUnit, InfiniteUnit, ReadoutTraining, Unit
from notsodeep.papers.ling2024.rivals import load_task, networks

_RATES = {"cifar10-vgg19": 0.1}  # of SGD; 1 elsewhere
_TRAINED_RATE = 1e-2  # of Adam


@dataclass(frozen=True, kw_only=True)
class Config(ReadoutTraining):
    """Settings; `trained_epochs` = 0 leaves out the training of all weights."""

    data: tuple[str, ...] = ("mnist", "fashion-mnist", "cifar10-vgg19")
    activations: tuple[str, ...] = ("tanh", "relu")
    widths: tuple[int, ...] = tuple(2**k for k in range(5, 14))
    seeds: int = 3
    infinite_samples: int = 4000
    trained_width: int = 1024
    trained_epochs: int = 5
    trained_seeds: int = 1


def units(config: Config) -> list[Unit]:
    """Infinite width first, then the narrow networks, then those with all weights trained."""
    rows = [{"data": data, "activation": activation} for data in config.data for activation in config.activations]
    limit = {"train": config.infinite_samples, "test": config.infinite_samples}
    trained = {"width": config.trained_width, "rate": _TRAINED_RATE, "epochs": config.trained_epochs}
    return [
        *(from_config(InfiniteUnit, config, **row, **limit) for row in rows),
        *(
            from_config(FiniteUnit, config, kind="width", **row, width=width, rate=_RATES.get(row["data"], 1.0), seed=seed)
            for width in sorted(config.widths)
            for row in rows
            for seed in range(config.seeds)
        ),
        *(
            from_config(FiniteUnit, config, kind="trained", **row, seed=seed, **trained)
            for row in rows
            for seed in range(config.trained_seeds if config.trained_epochs else 0)
        ),
    ]


def run(unit: Unit, device: torch.device) -> Values:
    if isinstance(unit, InfiniteUnit):
        return run_infinite(unit, device)
    return {"width": l5_width.run, "trained": run_trained}[unit.kind](unit, device)


def run_infinite(unit: InfiniteUnit, device: torch.device) -> Values:
    """Gaps of both kernels; accuracy, agreement and distance of kernel regression's predictions, all with the same ridge."""
    task = load_task(unit.data, 0, 0, device).first(unit.train, unit.test)
    nets, x, test_x = networks(unit.activation, unit.var_a, unit.data), task.x.double(), task.test_x.double()
    explicit = {"matched": nets.matched, "closest": nets.closest, "plain": nets.plain}
    both = {"deq": exact_kernels(nets.deq, x, tau0=1.0)}
    both |= {name: exact_kernels(net, x) for name, net in explicit.items()}
    grams = {name: kernels.conjugate for name, kernels in both.items()}
    crossed = {"deq": conjugate_kernel(nets.deq, test_x, x, tau0=1.0)}
    crossed |= {name: conjugate_kernel(net, test_x, x) for name, net in explicit.items()}
    factor = best_scaled_gap(grams["deq"], grams["plain"])[1]
    grams["rescaled"], crossed["rescaled"] = factor * grams["plain"], factor * crossed["plain"]
    targets = functional.one_hot(task.y, task.classes).double()
    wanted = targets - targets.mean(0)
    level = KernelSpectrum.of(grams["deq"], wanted).best_level(RIDGES)
    outputs = {name: crossed[name] @ _solved(gram, wanted, level) for name, gram in grams.items()}
    rivals = [name for name in grams if name != "deq"]
    size = float(outputs["deq"].norm())
    return {
        "accuracy": {name: score(out + targets.mean(0), task.test_y) for name, out in outputs.items()},
        "agreement": l5_width.agreement({name: out + targets.mean(0) for name, out in outputs.items()}),
        "kernel_gap": {name: relative_gap(grams["deq"], grams[name]) for name in rivals},
        "tangent_gap": {name: relative_gap(both["deq"].tangent, both[name].tangent) for name in explicit},
        "prediction_gap": {name: float((outputs[name] - outputs["deq"]).norm()) / size for name in rivals},
        "factor": factor,
    }


def _solved(gram: Tensor, wanted: Tensor, level: float) -> Tensor:
    """(K + λ)⁻¹ wanted."""
    shifted = gram.clone()
    shifted.diagonal().add_(level)
    return torch.cholesky_solve(wanted, torch.linalg.cholesky(shifted))


def run_trained(unit: FiniteUnit, device: torch.device) -> Values:
    """The readout in closed form, then Adam on all weights with a rate that falls like a cosine."""
    task = load_task(unit.data, unit.train, unit.test, device)
    accuracy, seconds = {}, {}
    for name in ("deq", "matched", "closest", "plain"):
        nets, inputs = networks(unit.activation, unit.var_a, unit.data, unit.train), task.x.shape[1]
        module = nets.module(name, inputs, unit.width, unit.seed, task.classes, paper_solver=False).to(device)
        began, draw = time.perf_counter(), torch.Generator().manual_seed(unit.seed)
        fit_readout(module, Batches(task.x, task.y, BATCH))
        scale_to_logits(module, Batches(task.x, task.y, BATCH, draw))
        optimiser = torch.optim.Adam(module.parameters(), lr=unit.rate)
        fit(module, Batches(task.x, task.y, unit.batch, draw), unit.epochs, optimiser=optimiser, progress=False)
        accuracy[name] = score(in_batches(module, task.test_x), task.test_y)
        seconds[name] = round(time.perf_counter() - began, 3)
    return {"accuracy": accuracy, "seconds": seconds}


L5 = Experiment(
    name="L5",
    title="Test accuracy against width, and beyond accuracy",
    shows="With random weights and a trained readout, a DEQ and the explicit network matched to it reach the same test "
    "accuracy from some hundreds of units on; what tells them apart from other networks is not accuracy.",
    units=units,
    quick=Config(
        widths=(32, 128, 512, 1024), seeds=2, train=10_000, test=5_000, epochs=20, infinite_samples=1000, trained_epochs=0
    ),
    full=Config(),
    run=run,
    judge=claims,
    remark=notes,
    revision=2,
)
