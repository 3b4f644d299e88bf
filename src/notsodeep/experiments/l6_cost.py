"""L6: what a DEQ and its matched network cost. The papers claim "significantly reduced overhead" and give no number."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from notsodeep.experiments.experiment import Experiment, Values
from notsodeep.experiments.l6_claims import NETWORKS, claims, notes
from notsodeep.experiments.record import machine
from notsodeep.experiments.rivals import load_task, networks
from notsodeep.models.deq import DEQ
from notsodeep.models.explicit import ENN

_RATE = 1e-3
_SECONDS, _ROUNDS = 0.15, 7  # a timing lasts so long, and is taken so many times in turn


@dataclass(frozen=True)
class Config:
    """`devices` that the machine does not have are left out."""

    activations: tuple[str, ...] = ("tanh", "relu")
    widths: tuple[int, ...] = tuple(2**k for k in range(5, 14))
    devices: tuple[str, ...] = ("cpu", "cuda")
    data: str = "mnist"
    training_batch: int = 128
    inference_batch: int = 1024
    var_a: float = 0.2


@dataclass(frozen=True)
class Unit:
    activation: str
    width: int
    device: str
    data: str
    training_batch: int
    inference_batch: int
    var_a: float
    seed: int = 0


def units(config: Config) -> list[Unit]:
    there = [device for device in config.devices if device == "cpu" or torch.cuda.is_available()]
    batches = (config.training_batch, config.inference_batch)
    return [
        Unit(activation, width, device, config.data, *batches, config.var_a)
        for width in sorted(config.widths)
        for device in there
        for activation in config.activations
    ]


def run(unit: Unit, device: torch.device) -> Values:
    """Time, FLOPs and memory of both networks, timed in turn: all weights trained, the DEQ solved as in the paper."""
    where = torch.device(unit.device) if unit.device == "cpu" else device
    task = load_task(unit.data, 0, 0, where)
    x, y = task.x[: unit.inference_batch], task.y[: unit.training_batch]
    some = x[: unit.training_batch]
    nets = networks(unit.activation, unit.var_a)
    modules = {name: nets.module(name, x.shape[1], unit.width, unit.seed, task.classes).to(where) for name in NETWORKS}
    steps = {name: _step(module, some, y) for name, module in modules.items()}
    passes = {name: _pass(module, x) for name, module in modules.items()}
    inference, training = _timed(passes, where), _timed(steps, where)
    return {
        name: {
            "inference_ms": inference[name],
            "training_ms": training[name],
            "inference_flops": _flops(passes[name]) / len(x),
            "training_flops": _flops(steps[name]) / len(y),
            **_kept(module, some, y),
            "peak_bytes": _peak(module, steps[name]) if where.type == "cuda" else None,
            "evaluations": _evaluations(module, x),
        }
        for name, module in modules.items()
    } | {"processor": machine(where)}


def _pass(module: nn.Module, x: Tensor) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            module(x)

    return call


def _step(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    optimiser = torch.optim.SGD(module.parameters(), lr=_RATE)

    def call() -> None:
        optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(module(x), y).backward()
        optimiser.step()

    return call


def _timed(calls: dict[str, Callable[[], None]], device: torch.device) -> dict[str, float]:
    """Milliseconds of each call: medians of rounds in which all take turns, so that a busy machine is busy for all."""
    for call in calls.values():
        call()  # what is done once only is not timed
    counts = {name: max(1, round(_SECONDS / max(_seconds(call, 2, device), 1e-6))) for name, call in calls.items()}
    rounds = [{name: _seconds(call, counts[name], device) for name, call in calls.items()} for _ in range(_ROUNDS)]
    return {name: 1e3 * statistics.median(found[name] for found in rounds) for name in calls}


def _seconds(call: Callable[[], None], count: int, device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - began) / count


def _flops(call: Callable[[], None]) -> int:
    """Of the matrix products, counted while they run."""
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def _kept(module: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Bytes that the forward pass keeps for the backward one: for each sample, and whatever the number of samples."""
    half = len(y) // 2
    whole, part = _saved(module, x, y), _saved(module, x[:half], y[:half])
    each = (whole - part) / (len(y) - half)
    return {"kept_bytes": each, "kept_fixed_bytes": whole - each * len(y)}


def _saved(module: nn.Module, x: Tensor, y: Tensor) -> int:
    """Bytes of the tensors that autograd saves, weights aside, each counted once."""
    weights = {weight.data_ptr() for weight in module.parameters()}
    saved: dict[tuple[int, int], int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr(), tensor.numel()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = functional.cross_entropy(module(x), y)  # noqa: F841 (what is saved lives as long as it does)
    return sum(saved.values())


def _peak(module: nn.Module, step: Callable[[], None]) -> int:
    """Bytes that a training step takes beside the weights, their gradients among them."""
    module.zero_grad(set_to_none=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return int(torch.cuda.max_memory_allocated() - before)


def _evaluations(module: DEQ | ENN, x: Tensor) -> float:
    if isinstance(module, ENN):
        return 0.0
    with torch.no_grad():
        return float(module.solve(x).evaluations)


def cost(unit: Unit) -> float:
    return float(5.0 + 40.0 * (unit.width / 4096) ** 1.8)


L6 = Experiment(
    name="L6",
    title="Cost of a DEQ and of its matched network",
    shows="Time, FLOPs and memory of both, for training and inference, at every width, on the processors at hand.",
    quick=replace(Config(), widths=(64, 256, 1024)),
    full=Config(),
    units=units,
    run=run,
    cost=cost,
    claims=claims,
    notes=notes,
)
