"""A training run on disc: everything it needs to continue as if it had never stopped."""

from __future__ import annotations

import copy
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from notsodeep.errors import BadInput
from notsodeep.models.files.description import describe, preprocessing_of
from notsodeep.models.files.save import (
    TRAINING,
    Stored,
    check_same_architecture,
    check_same_weights,
    network_weights,
    read_tensors,
    write_tensors,
)  # fmt: skip
from notsodeep.runtime.files import remove_leftovers

_BEST, _OPTIMISER, _NOW, _START = (f"{TRAINING}{part}/" for part in ("best", "optimiser", "random", "epoch"))
_STATES = ("torch", "numpy.key", "numpy.rest", "python.words", "python.rest")


@dataclass(frozen=True)
class Epoch:
    """Mean loss of one pass over the data and, with a validation loader, the loss and (for classes) the accuracy on it."""

    loss: float
    validation_loss: float | None = None
    validation_accuracy: float | None = None


@dataclass
class Run:
    """Progress of a training run; `batch`, `loss` and `samples` are sums over the current epoch."""

    epochs: list[Epoch] = field(default_factory=list)
    batch: int = 0
    loss: float = 0.0
    samples: int = 0
    best_epoch: int | None = None
    stopped_early: bool = False
    best: dict[str, Tensor] = field(default_factory=dict)
    epoch_start: dict[str, Tensor] = field(default_factory=dict)
    """random states before the first batch of the current epoch"""


@dataclass(frozen=True, eq=False)
class Randomness:
    """Every random generator that a run may draw from: torch's, the device's, numpy's, Python's and its loaders'."""

    generators: list[torch.Generator]
    device: torch.device

    @classmethod
    def of(cls, device: torch.device, *loaders: Any) -> Randomness:
        """The generators that DataLoaders (or `Batches`) order their samples with, each once."""
        holders = [
            holder
            for loader in loaders
            for grouped in [getattr(loader, "batch_sampler", None)]
            for holder in (loader, getattr(loader, "sampler", None), grouped, getattr(grouped, "sampler", None))
        ]
        found = [getattr(holder, "generator", None) for holder in holders]
        return cls(list({id(g): g for g in found if isinstance(g, torch.Generator)}.values()), device)

    def capture(self) -> dict[str, Tensor]:
        """The present state of each generator, as tensors."""
        numpy_state: Any = np.random.get_state(legacy=False)
        version, words, spare = random.getstate()
        values = (
            torch.get_rng_state(),
            torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
            _numbers(numpy_state["state"]["pos"], numpy_state["has_gauss"], numpy_state["gauss"]),
            torch.tensor(words, dtype=torch.int64),
            _numbers(version, spare is not None, spare or 0.0),
        )
        states = dict(zip(_STATES, values, strict=True))
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states | {f"loader.{k}": generator.get_state() for k, generator in enumerate(self.generators)}

    def check(self, states: dict[str, Tensor]) -> None:
        """Raise `BadInput` unless `restore` can use these states."""
        missing = set(_STATES) - set(states)
        loaders = sum(name.startswith("loader.") for name in states)
        if missing or loaders != len(self.generators):
            raise BadInput(
                f"The run drew its batches from {loaders} generators, and there are {len(self.generators)} now"
                + (f" ({', '.join(missing)} are missing)" if missing else "")
                + "; give it the same kind of loader."
            )

    def restore(self, states: dict[str, Tensor]) -> None:
        """Set every generator to what `capture` found."""
        torch.set_rng_state(states["torch"])
        position, has_gauss, gauss = states["numpy.rest"].tolist()
        key = states["numpy.key"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", key, int(position), int(has_gauss), gauss))
        version, has_spare, spare = states["python.rest"].tolist()
        random.setstate((int(version), tuple(states["python.words"].tolist()), spare if has_spare else None))
        if "cuda" in states and self.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self.device)
        for k, generator in enumerate(self.generators):
            generator.set_state(states[f"loader.{k}"])


def _numbers(*values: Any) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The file of a run, and the parts that are written to it and restored from it."""

    path: Path
    module: nn.Module
    optimiser: torch.optim.Optimizer
    schedule: LRScheduler | None
    randomness: Randomness
    settings: dict[str, Any]

    def begin(self, resume: bool) -> Run:
        """The run in the file, restored, or a new one, written before its first batch to fail early.

        Raises:
            BadInput: The file holds a run and `resume` is False, or it does not fit this run, or cannot be written.
        """
        there = has_begun(self.path)
        if there and not resume:
            raise BadInput(
                f"There is a checkpoint {str(self.path)!r} already. resume=True goes on with it; or name another file."
            )
        remove_leftovers(self.path)
        if there:
            return self._restore()
        run = Run()
        self.write(run)
        return run

    def write(self, run: Run) -> None:
        """Replace the file by the state of `run`."""
        tensors, numbers = _optimiser_state(self.optimiser)
        parts = {
            "": self.module.state_dict(),
            _BEST: run.best,
            _OPTIMISER: tensors,
            _NOW: self.randomness.capture(),
            _START: run.epoch_start,
        }
        record = {
            "module": describe(self.module),
            **preprocessing_of(self.module),
            "settings": self.settings,
            "optimiser": numbers,
            "schedule": None if self.schedule is None else _plain(self.schedule.state_dict(), self.schedule),
            "epochs": [asdict(epoch) for epoch in run.epochs],
            "run": {name: getattr(run, name) for name in ("batch", "loss", "samples", "best_epoch", "stopped_early")},
        }
        write_tensors(self.path, {p + name: t for p, part in parts.items() for name, t in part.items()}, record)

    def _restore(self) -> Run:
        """The run, with module, optimiser, schedule and generators as they were; an error changes none of them."""
        stored = read_tensors(self.path)
        check_same_architecture(stored.record, self.module, self.path)
        weights = network_weights(stored)
        check_same_weights(weights, self.module, self.path)
        if "run" not in stored.record:
            raise BadInput(f"{str(self.path)!r} holds a network, but no training run to go on with: load(path) opens it.")
        before = copy.deepcopy((self.module.state_dict(), self._states()))
        try:
            self._check_settings(stored.record["settings"])
            run = _run(stored)
            now = _part(stored, _NOW)
            for states in (now, run.epoch_start) if run.batch else (now,):
                self.randomness.check(states)
            self._load_states(stored)
            self.module.load_state_dict(weights)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            self.module.load_state_dict(before[0])
            self._restore_states(before[1])
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"The run in {str(self.path)!r} cannot be gone on with: {error!r}. Nothing was loaded.") from error
        self.randomness.restore(now)
        return run

    def _states(self) -> tuple[Any, Any]:
        return self.optimiser.state_dict(), None if self.schedule is None else self.schedule.state_dict()

    def _restore_states(self, states: tuple[Any, Any]) -> None:
        self.optimiser.load_state_dict(states[0])
        if self.schedule is not None:
            self.schedule.load_state_dict(states[1])

    def _load_states(self, stored: Stored) -> None:
        record, (optimiser, schedule) = stored.record["optimiser"], self._states()
        state: dict[int, dict[str, Any]] = {int(index): dict(numbers) for index, numbers in record["state"].items()}
        for name, tensor in _part(stored, _OPTIMISER).items():
            index, _, key = name.partition("/")
            state[int(index)][key] = tensor
        groups = _shaped(record["groups"], optimiser["param_groups"])
        self._restore_states(({"state": state, "param_groups": groups}, _shaped(stored.record["schedule"], schedule)))

    def _check_settings(self, theirs: dict[str, Any]) -> None:
        pairs = {name: (theirs.get(name), mine) for name, mine in self.settings.items()}
        wrong = [f"{name}: {there} there, {now} now" for name, (there, now) in pairs.items() if there != now]
        if wrong:
            raise BadInput(
                f"{str(self.path)!r} is of another run: {'; '.join(wrong)}. Nothing was loaded. To train "
                "further from its weights, load(path) them, and fit with a checkpoint of its own.",
                differences=wrong,
            )


def has_begun(path: Path) -> bool:
    """Whether the file holds finished batches or cannot be read; a run without a finished batch is not worth keeping."""
    if not path.exists():
        return False
    try:
        record = read_tensors(path).record
        return bool(record["epochs"] or record["run"]["batch"])
    except (BadInput, KeyError, TypeError):
        return True


def _part(stored: Stored, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in stored.tensors.items() if name.startswith(prefix)}


def _optimiser_state(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an optimiser by "index/name", and the rest as JSON."""
    state = optimiser.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[int, dict[str, Any]] = {}
    for index, parts in state["state"].items():
        tensors |= {f"{index}/{name}": value for name, value in parts.items() if isinstance(value, Tensor)}
        numbers[index] = {name: value for name, value in parts.items() if not isinstance(value, Tensor)}
    return tensors, {"state": _plain(numbers, optimiser), "groups": _plain(state["param_groups"], optimiser)}


def _run(stored: Stored) -> Run:
    """The progress in a file; an error where its numbers make no sense."""
    epochs = [Epoch(**epoch) for epoch in stored.record["epochs"]]
    run = Run(epochs, **stored.record["run"], best=_part(stored, _BEST), epoch_start=_part(stored, _START))
    best = run.best_epoch
    whole = isinstance(run.batch, int) and run.batch >= 0 and isinstance(run.samples, int) and run.samples >= 0
    if not whole or not isinstance(run.loss, float) or not (best is None or 1 <= best <= len(run.epochs)):
        raise ValueError(f"batch {run.batch!r}, samples {run.samples!r}, loss {run.loss!r}, best epoch {best!r}")
    return run


def _shaped(value: Any, like: Any) -> Any:
    """`value` from JSON in the containers of `like`: JSON has no tuples, and only text for keys."""
    if isinstance(like, tuple | list) and isinstance(value, list):
        inside = [_shaped(item, like[k] if k < len(like) else None) for k, item in enumerate(value)]
        return tuple(inside) if isinstance(like, tuple) else inside
    if isinstance(like, dict) and isinstance(value, dict):
        names = {str(key): key for key in like}
        keys = {names.get(key, key): item for key, item in value.items()}
        return type(like)({key: _shaped(item, like.get(key)) for key, item in keys.items()})
    return value


def _plain(value: Any, owner: object) -> Any:
    """`value` as JSON can hold it; `BadInput` naming `owner` where it cannot."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item, owner) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, owner) for key, item in value.items()}
    raise BadInput(
        f"The state of {type(owner).__name__} holds a {type(value).__name__}, which a checkpoint cannot: train without one."
    )
