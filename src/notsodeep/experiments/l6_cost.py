"""L6: what a DEQ and its matched network cost. The papers claim "significantly reduced overhead" and give no number."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from notsodeep.experiments.claims import Claim, holds
from notsodeep.experiments.experiment import Experiment, Records, Values
from notsodeep.experiments.l5_claims import accuracies
from notsodeep.experiments.record import Record, machine
from notsodeep.experiments.rivals import load_task, networks
from notsodeep.models.deq import DEQ
from notsodeep.models.explicit import ENN

NETWORKS = ("deq", "matched")
_RATE = 1e-3
_AS_ACCURATE = 0.0025
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
    # Copies: a slice would hold on to all of the data.
    x, some, y = (
        task.x[: unit.inference_batch].clone(),
        task.x[: unit.training_batch].clone(),
        task.y[: unit.training_batch],
    )
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
            "kept_bytes": _kept(module, some, y) / len(y),
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


def _kept(module: nn.Module, x: Tensor, y: Tensor) -> int:
    """Bytes that the forward pass keeps for the backward one, weights aside."""
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = functional.cross_entropy(module(x), y)
    del loss
    return sum(kept.values())


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


def claims(every: Records, command: str) -> list[Claim]:
    records, found = every["L6"], []
    for device in dict.fromkeys(record.config["device"] for record in records):
        for phi in dict.fromkeys(record.config["activation"] for record in records):
            of = sorted(
                (r for r in records if (r.config["device"], r.config["activation"]) == (device, phi)),
                key=lambda r: int(r.config["width"]),
            )
            if of:
                found += _speedups(of, every["L5"], device, phi, command)
    return found


def _speedups(of: Sequence[Record], accuracy: list[Record], device: str, phi: str, command: str) -> list[Claim]:
    found = []
    for what, title in (("inference", "inference"), ("training", "a training step")):
        ratios = [r.values["deq"][f"{what}_ms"] / r.values["matched"][f"{what}_ms"] for r in of]
        equal = equal_accuracy(of, accuracy, phi, what)
        last = f"{ratios[-1]:.1f} at m = {of[-1].config['width']}"
        text = f"{min(ratios):.1f} to {max(ratios):.1f} times as fast at equal width ({last})"
        if equal is not None:
            text += f"; at equal accuracy {equal[2]:.1f} times (DEQ of m = {equal[0]}, matched of m = {equal[1]})"
        found.append(
            Claim(
                id=f"L6.{device}.{phi}.{what}",
                claim=f"The matched network saves most of the cost: {title}, {phi}, {of[-1].values['processor']}",
                paper="“significantly reduced overhead”",
                ours=text,
                spread=f"{len(of)} widths, medians of {_ROUNDS}",
                verdict=holds(statistics.median(ratios) > 1.5),
                command=command,
            )
        )
    return found


def equal_accuracy(of: Sequence[Record], accuracy: list[Record], phi: str, what: str) -> tuple[int, int, float] | None:
    """(m, m', speed-up): of the DEQs and of the matched networks as accurate as both become, up to a quarter of a point (about
    what two draws of one network differ by), the cheapest of each, of widths m and m', and the ratio of their times."""
    scores = {net: accuracies(accuracy, of[0].config["data"], phi, "sgd", net) for net in NETWORKS}
    times = {net: {r.config["width"]: r.values[net][f"{what}_ms"] for r in of} for net in NETWORKS}
    reached = {net: {m: found[m].value for m in found if m in times[net]} for net, found in scores.items()}
    if not all(reached.values()):
        return None
    level = min(max(found.values()) for found in reached.values()) - _AS_ACCURATE
    deq, matched = (
        min((m for m in reached[net] if reached[net][m] >= level), key=lambda m, net=net: times[net][m])  # type: ignore[misc]
        for net in NETWORKS
    )
    return deq, matched, float(times["deq"][deq] / times["matched"][matched])


def notes(every: Records) -> list[str]:
    found = [
        "Both networks are timed in turn in one run; the DEQ is solved as in the paper (Anderson, memory 5, residual 1e-2, at "
        "most 25 steps), and its gradient is the exact implicit one. On a GPU its solver works in lower precision where that "
        "suffices, the explicit network in float32 throughout.",
        "FLOPs are those of the matrix products, counted while they run. Kept memory is what the forward pass holds for the "
        "backward one, weights aside.",
    ]
    fewest = [r.values["deq"]["evaluations"] for r in every["L6"]]
    if fewest:
        found.append(f"The DEQ takes {min(fewest):.0f} to {max(fewest):.0f} evaluations of its map.")
    return found


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
