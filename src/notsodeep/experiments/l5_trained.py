"""L5 with all weights trained: a DEQ, its match and the plain network, by the same recipe."""

from __future__ import annotations

import time

import torch

from notsodeep.experiments.experiment import Values
from notsodeep.experiments.l5_units import FiniteUnit
from notsodeep.experiments.rivals import load_task, networks
from notsodeep.models.batches import Batches
from notsodeep.models.objective import score
from notsodeep.models.readout import BATCH, fit_readout, in_batches, scale_to_logits
from notsodeep.models.training import fit


def run(unit: FiniteUnit, device: torch.device) -> Values:
    """The readout in closed form, then Adam on all weights with a rate that falls like a cosine."""
    task = load_task(unit.data, unit.train, unit.test, device)
    accuracy, seconds = {}, {}
    for name in ("deq", "matched", "plain"):
        nets, inputs = networks(unit.activation, unit.var_a), task.x.shape[1]
        module = nets.module(name, inputs, unit.width, unit.seed, task.classes, tol=None).to(device)
        began, draw = time.perf_counter(), torch.Generator().manual_seed(unit.seed)
        fit_readout(module, Batches(task.x, task.y, BATCH))
        scale_to_logits(module, Batches(task.x, task.y, BATCH, draw))
        optimiser = torch.optim.Adam(module.parameters(), lr=unit.rate)
        fit(module, Batches(task.x, task.y, unit.batch, draw), unit.epochs, optimiser=optimiser, progress=False)
        accuracy[name] = score(in_batches(module, task.test_x), task.test_y)
        seconds[name] = round(time.perf_counter() - began, 3)
    return {"accuracy": accuracy, "seconds": seconds}
