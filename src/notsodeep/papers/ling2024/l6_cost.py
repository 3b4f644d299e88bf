"""L6: time, FLOPs and memory of a DEQ, its matched network and its closest twin. The paper claims "significantly reduced
overhead"."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values, from_config
from notsodeep.papers.ling2024.l5_claims import accuracies, comparable as comparable_accuracies
from notsodeep.papers.ling2024.rivals import load_task, networks
from notsodeep.papers.records import Record, machine, of_one_run

NETWORKS = ("deq", "matched", "closest")
_TITLES = {"matched": "The matched network", "closest": "The closest twin"}
_RATE = 1e-3
_SECONDS, _ROUNDS = 0.15, 7  # length of one timing, and how many of each are taken in turn
_SIGNIFICANT = 2.0  # "significantly reduced overhead" is taken to mean so many times as fast
_LEVELS = np.linspace(0.5, 0.95, 5)  # of the accuracies that both networks reach, from the lowest to the highest


@dataclass(frozen=True, kw_only=True)
class Batching:
    """Settings that a config and its units share."""

    data: str = "mnist"
    training_batch: int = 128
    inference_batch: int = 1024
    var_a: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Config(Batching):
    """Settings; `devices` that the machine does not have are left out."""

    activations: tuple[str, ...] = ("tanh", "relu")
    widths: tuple[int, ...] = tuple(2**k for k in range(5, 14))
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Unit(Batching):
    """The networks of one width on one device."""

    activation: str
    width: int
    device: str
    seed: int = 0

    @property
    def cost(self) -> float:
        return float(5.0 + 40.0 * (self.width / 4096) ** 1.8)


def units(config: Config) -> list[Unit]:
    there = [device for device in config.devices if device == "cpu" or torch.cuda.is_available()]
    return [
        from_config(Unit, config, activation=activation, width=width, device=device)
        for width in sorted(config.widths)
        for device in there
        for activation in config.activations
    ]


def run(unit: Unit, device: torch.device) -> Values:
    """Time, FLOPs and memory of the networks, timed in turn; all weights are trained, the DEQ is solved as in the paper."""
    where = torch.device(unit.device) if unit.device == "cpu" else device
    task = load_task(unit.data, 0, 0, where)
    x, y = task.x[: unit.inference_batch], task.y[: unit.training_batch]
    some = x[: unit.training_batch]
    nets = networks(unit.activation, unit.var_a, unit.data)
    modules = {name: nets.module(name, x.shape[1], unit.width, unit.seed, task.classes).to(where) for name in NETWORKS}
    steps = {name: _step(module, some, y) for name, module in modules.items()}
    passes: dict[str, Callable[[], None]] = {name: partial(_pass, module, x) for name, module in modules.items()}
    # Counted first: timed steps train, and how many there are depends on how fast the machine is.
    counted = {
        name: {
            "evaluations": _evaluations(module, x),
            "inference_flops": _flops(passes[name]) / len(x),
            **_kept(module, some, y),
            "training_flops": _flops(steps[name]) / len(y),
        }
        for name, module in modules.items()
    }
    inference, training = _timed(passes, where), _timed(steps, where)
    return {
        name: {
            "inference_ms": inference[name],
            "training_ms": training[name],
            **counted[name],
            "peak_bytes": _peak(module, steps[name]) if where.type == "cuda" else None,
        }
        for name, module in modules.items()
    } | {"processor": machine(where)}


@torch.no_grad()
def _pass(module: nn.Module, x: Tensor) -> None:
    module(x)


def _step(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    optimiser = torch.optim.SGD(module.parameters(), lr=_RATE)

    def call() -> None:
        optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(module(x), y).backward()
        optimiser.step()

    return call


def _timed(calls: dict[str, Callable[[], None]], device: torch.device) -> dict[str, float]:
    """Milliseconds of each call: medians over rounds in which all take turns, so a busy machine slows all of them."""
    for call in calls.values():
        call()  # a first call does work that is done once, which is not timed
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
    """FLOPs of the matrix products of a call, counted while they run."""
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def _kept(module: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Bytes that the forward pass keeps for the backward one: per sample, and independent of the number of samples."""
    half = len(y) // 2
    whole, part = _saved(module, x, y), _saved(module, x[:half], y[:half])
    each = (whole - part) / (len(y) - half)
    return {"kept_bytes": each, "kept_fixed_bytes": whole - each * len(y)}


def _saved(module: nn.Module, x: Tensor, y: Tensor) -> int:
    """Bytes of the tensors that autograd saves, without the weights, each counted once."""
    weights = {weight.data_ptr() for weight in module.parameters()}
    saved: dict[tuple[int, int], int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr(), tensor.numel()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = functional.cross_entropy(module(x), y)  # noqa: F841 (saved tensors live as long as it does)
    return sum(saved.values())


def _peak(module: nn.Module, step: Callable[[], None]) -> int:
    """Peak bytes of a training step above the weights, their gradients included."""
    module.zero_grad(set_to_none=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return int(torch.cuda.max_memory_allocated() - before)


@torch.no_grad()
def _evaluations(module: DEQ | ENN, x: Tensor) -> float:
    """How often the DEQ evaluates its map; 0 for an explicit network."""
    return float(module.solve(x).evaluations) if isinstance(module, DEQ) else 0.0


def comparable(records: Sequence[Record]) -> list[Record]:
    """The records on one data set, with batches of one size; those of each device are of one run."""
    return of_one_run(records, ["device"], ("data", "training_batch", "inference_batch", "var_a"))


def claims(every: Records) -> list[Claim]:
    records, accuracy = comparable(every["L6"]), comparable_accuracies(every["L5"])
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: int(record.config["width"])):
        groups.setdefault((record.config["device"], record.config["activation"]), []).append(record)
    return [
        _speedup(of, accuracy, what, net)
        for _, of in sorted(groups.items())
        for net in _TITLES
        if all(net in record.values for record in of)  # the first revision had no twin
        for what in ("inference", "training")
    ]


def _speedup(of: Sequence[Record], accuracy: list[Record], what: str, net: str) -> Claim:
    """The claim for the records of one device and activation and an explicit network; `what` is inference or training."""
    device, phi = of[0].config["device"], of[0].config["activation"]
    ratios = [r.values["deq"][f"{what}_ms"] / r.values[net][f"{what}_ms"] for r in of]
    equal = equal_accuracy_ratios(of, accuracy, phi, what, net)
    widths = " … ".join(dict.fromkeys(str(r.config["width"]) for r in (of[0], of[-1])))
    text = f"{min(ratios):.1f} to {max(ratios):.1f} times as fast at equal width, m = {widths}"
    if equal:
        text += f"; {min(equal):.1f} to {max(equal):.1f} times at equal accuracy"
    title = "inference" if what == "inference" else "a training step"
    return Claim(
        id=f"L6.{device}.{phi}.{what}" + ".closest" * (net == "closest"),
        claim=f"{_TITLES[net]} takes less than half of the DEQ's time: {title}, {phi}, {of[-1].values['processor']}",
        paper="“significantly reduced overhead”" if net == "matched" else "—",
        ours=text,
        spread=f"medians {statistics.median(ratios):.1f}" + (f" and {statistics.median(equal):.1f}" if equal else ""),
        verdict=holds(all(statistics.median(found) >= _SIGNIFICANT for found in (ratios, equal) if found)),
    )


def equal_accuracy_ratios(
    of: Sequence[Record], accuracy: Sequence[Record], phi: str, what: str, explicit: str = "matched"
) -> list[float]:
    """Ratios of the DEQ's time to that of an explicit network of the same accuracy, at some accuracies that both reach.

    Between two widths the logarithm of the time is interpolated in the accuracy, which is made to rise with the width.
    """
    curves = []
    for net in ("deq", explicit):
        scores = accuracies(accuracy, of[0].config["data"], phi, "sgd", net)
        times = {record.config["width"]: record.values[net][f"{what}_ms"] for record in of}
        widths = [m for m in scores if m in times]
        reached = np.maximum.accumulate([scores[m].value for m in widths]) if widths else np.array([])
        risen = np.flatnonzero(np.diff(reached, prepend=-1.0) > 0.0)
        curves.append((reached[risen], np.log([times[widths[k]] for k in risen])))
    if any(len(reached) < 2 for reached, _ in curves):
        return []
    low, high = max(reached[0] for reached, _ in curves), min(reached[-1] for reached, _ in curves)
    if low >= high:
        return []
    deq, other = (np.interp(low + _LEVELS * (high - low), reached, times) for reached, times in curves)
    return [float(ratio) for ratio in np.exp(deq - other)]


def notes(every: Records) -> list[str]:
    evaluations = [record.values["deq"]["evaluations"] for record in every["L6"]]
    return [
        "The networks are timed in turn in one run; the DEQ is solved as in the paper (Anderson, memory 5, residual 1e-2, at "
        "most 25 steps), and its gradient is the exact implicit one. On a GPU its solver works in lower precision where that "
        "suffices, the explicit networks in float32 throughout.",
        f"The DEQ takes {min(evaluations):.0f} to {max(evaluations):.0f} evaluations of its map.",
        "Equal accuracy is that of L5 with a readout trained by SGD; a training step here trains all weights.",
        "FLOPs are those of the matrix products, counted while they run. Kept memory is what the forward pass holds for the "
        "backward one, for each sample, weights and copies of them aside.",
    ]


L6 = Experiment(
    name="L6",
    title="Cost of a DEQ and of its matched network",
    shows="Time, FLOPs and memory of both and of the closest twin, for training and inference, at every width, on the "
    "processors at hand.",
    units=units,
    quick=Config(widths=(64, 256, 1024)),
    full=Config(),
    run=run,
    judge=claims,
    remark=notes,
    revision=2,
)
