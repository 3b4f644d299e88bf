"""A training run on disc: everything that it needs to go on as if it had never stopped."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from notsodeep.errors import BadInput
from notsodeep.models.files.description import describe
from notsodeep.models.files.save import TRAINING, refuse_other_architecture, refuse_other_weights
from notsodeep.models.files.tensor_file import Stored, read_tensors, write_tensors
from notsodeep.models.training import random_state as randomness
from notsodeep.runtime.files import remove_leftovers

_BEST, _OPTIMISER, _NOW, _START = (f"{TRAINING}{part}/" for part in ("best", "optimiser", "random", "epoch"))


@dataclass(frozen=True)
class Epoch:
    """One pass over the data: the mean loss and, with a validation loader, the loss there and (classes) the accuracy there."""

    loss: float
    validation_loss: float | None = None
    validation_accuracy: float | None = None


@dataclass
class Run:
    """How far a run has come."""

    epochs: list[Epoch] = field(default_factory=list)
    batch: int = 0
    """batches done of the epoch that is under way"""
    loss: float = 0.0
    samples: int = 0
    best_epoch: int | None = None
    stopped_early: bool = False
    best: dict[str, Tensor] = field(default_factory=dict)
    epoch_start: dict[str, Tensor] = field(default_factory=dict)
    """the random generators before the first batch of the epoch"""

    @property
    def waited(self) -> int:
        """Epochs since the best one."""
        return 0 if self.best_epoch is None else len(self.epochs) - self.best_epoch


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The file of a run, and the parts that are written to it and restored from it."""

    path: Path
    module: nn.Module
    optimiser: torch.optim.Optimizer
    schedule: LRScheduler | None
    generators: list[torch.Generator]
    settings: dict[str, Any]

    def write(self, run: Run) -> None:
        device = next(self.module.parameters()).device
        tensors, numbers = _optimiser_state(self.optimiser)
        parts = {
            "": self.module.state_dict(),
            _BEST: run.best,
            _OPTIMISER: tensors,
            _NOW: randomness.capture(self.generators, device),
            _START: run.epoch_start,
        }
        record = {
            "module": describe(self.module),
            "settings": self.settings,
            "optimiser": numbers,
            "schedule": None if self.schedule is None else _plain(self.schedule.state_dict(), self.schedule),
            "epochs": [asdict(epoch) for epoch in run.epochs],
            "run": {name: getattr(run, name) for name in ("batch", "loss", "samples", "best_epoch", "stopped_early")},
        }
        write_tensors(self.path, {p + name: t for p, part in parts.items() for name, t in part.items()}, record)

    def restore(self) -> tuple[Run, dict[str, Tensor]]:
        """The run, with module, optimiser and schedule as they were; and the random generators' states of that moment.

        Whatever is refused, nothing is changed.
        """
        stored = read_tensors(self.path)
        refuse_other_architecture(stored.record, self.module, self.path)
        weights = {name: tensor for name, tensor in stored.tensors.items() if not name.startswith(TRAINING)}
        refuse_other_weights(weights, self.module, self.path)
        if "run" not in stored.record:
            raise BadInput(
                f"{str(self.path)!r} holds a network, but no training run to go on with: load(path) opens it."
            )
        before = copy.deepcopy((self.module.state_dict(), self._states()))
        try:
            self._refuse_other_settings(stored.record["settings"])
            run = _run(stored)
            now = _part(stored, _NOW)
            for states in (now, run.epoch_start) if run.batch else (now,):
                randomness.check(states, self.generators)
            self._load_states(stored)
            self.module.load_state_dict(weights)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            self.module.load_state_dict(before[0])
            self._restore_states(before[1])
            if isinstance(error, BadInput):
                raise
            raise BadInput(
                f"The run in {str(self.path)!r} cannot be gone on with: {error!r}. Nothing was loaded."
            ) from error
        return run, now

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

    def begin(self, resume: bool) -> bool:
        """Whether there is a run to go on with; one that would be overwritten is refused."""
        there = has_begun(self.path)
        if there and not resume:
            raise BadInput(
                f"There is a checkpoint {str(self.path)!r} already. resume=True goes on with that run; to begin anew, remove "
                "it or name another file."
            )
        remove_leftovers(self.path)
        return there

    def _refuse_other_settings(self, theirs: dict[str, Any]) -> None:
        wrong = [
            f"{name}: {theirs.get(name)} there, {mine} now"
            for name, mine in self.settings.items()
            if theirs.get(name) != mine
        ]
        if wrong:
            raise BadInput(
                f"{str(self.path)!r} is of another run: {'; '.join(wrong)}. Nothing was loaded. To train "
                "further from its weights, load(path) them, and fit with a checkpoint of its own.",
                differences=wrong,
            )


def has_begun(path: Path) -> bool:
    """Whether there is a file with work in it, or one that we cannot read: of a run that failed in its first batch nothing is
    worth keeping."""
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
    tensors = {
        f"{index}/{name}": value
        for index, parts in state["state"].items()
        for name, value in parts.items()
        if isinstance(value, Tensor)
    }
    numbers = {
        str(index): {name: value for name, value in parts.items() if not isinstance(value, Tensor)}
        for index, parts in state["state"].items()
    }
    return tensors, {"state": _plain(numbers, optimiser), "groups": _plain(state["param_groups"], optimiser)}


def _run(stored: Stored) -> Run:
    """How far the run had come; an error where that makes no sense."""
    run = Run(
        [Epoch(**epoch) for epoch in stored.record["epochs"]],
        **stored.record["run"],
        best=_part(stored, _BEST),
        epoch_start=_part(stored, _START),
    )
    best = run.best_epoch
    whole = isinstance(run.batch, int) and run.batch >= 0 and isinstance(run.samples, int) and run.samples >= 0
    if not whole or not isinstance(run.loss, float) or not (best is None or 1 <= best <= len(run.epochs)):
        raise ValueError(f"batch {run.batch!r}, samples {run.samples!r}, loss {run.loss!r}, best epoch {best!r}")
    return run


def _shaped(value: Any, like: Any) -> Any:
    """`value`, as JSON gave it, in the containers of `like`: JSON has no tuples, and only text for keys."""
    if isinstance(like, tuple | list) and isinstance(value, list):
        inside = [_shaped(item, like[k] if k < len(like) else None) for k, item in enumerate(value)]
        return tuple(inside) if isinstance(like, tuple) else inside
    if isinstance(like, dict) and isinstance(value, dict):
        names = {str(key): key for key in like}
        return type(like)(
            {names.get(key, key): _shaped(item, like.get(names.get(key, key))) for key, item in value.items()}
        )
    return value


def _plain(value: Any, owner: object) -> Any:
    """`value` if JSON can hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item, owner) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, owner) for key, item in value.items()}
    raise BadInput(
        f"The state of {type(owner).__name__} holds a {type(value).__name__}, which a checkpoint cannot: train without "
        "checkpoint=…, or with another one."
    )
