"""Training: one small loop over a loader of (x, y) batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, ReduceLROnPlateau

from notsodeep.arguments import count, flag, function, instance, path, shown
from notsodeep.errors import BadInput, NotConverged
from notsodeep.models.training import objective, random_state as randomness
from notsodeep.models.training.checkpoint import Checkpoint, Epoch, Run
from notsodeep.models.training.objective import Loss, evaluate, pair, usual_loss
from notsodeep.runtime.progress import bar

_SECONDS = 60.0  # of work that a kill may cost, at most
_RATE = 1e-3


@dataclass(frozen=True)
class History:
    """What happened, epoch by epoch. ``best_epoch``, counted from 1, is the one whose weights were kept, if one was chosen."""

    epochs: tuple[Epoch, ...]
    best_epoch: int | None
    stopped_early: bool

    @property
    def last(self) -> Epoch:
        return self.epochs[-1]


def fit(
    module: nn.Module,
    loader: Iterable[Any],
    epochs: int,
    *,
    optimiser: torch.optim.Optimizer | None = None,
    loss: Loss | None = None,
    schedule: LRScheduler | str | None = "cosine",
    validation: Iterable[Any] | None = None,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool | str = True,
) -> History:
    """Train `module`, in place, on the (x, y) batches of `loader`, and say how it went.

    `optimiser` is any of torch's (Adam with rate 1e-3 unless given); `schedule` lets its rate fall to zero like a cosine, or is
    a scheduler of torch's, which is stepped after every *batch*, or None. `loss(out, y)` is cross-entropy for classes and the
    mean square for real numbers unless given. With `patience`, training ends after so many epochs without a better loss on the
    `validation` loader, and the module gets the weights of the best one back.

    `checkpoint` names a file that is written at the end of every epoch, and every minute within one, whole or not at all:
    `load` opens it, and `resume=True` goes on from it, to the same numbers as if nothing had happened (given the same loader
    and machine).
    """
    instance(module, nn.Module, "module", "a network, a torch.nn.Module")
    for name, batches in (("loader", loader), ("validation", validation)):
        if batches is not None or name == "loader":
            objective.require_batches(batches, name)
    resume, progress = flag(resume, "resume"), progress if isinstance(progress, str) else flag(progress, "progress")
    checkpoint = None if checkpoint is None else path(checkpoint, "checkpoint")
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    if not trained:
        raise BadInput("The module has no weight to train: all are frozen, or there are none.")
    epochs = count(epochs, "epochs")
    if patience is not None and validation is None:
        raise BadInput("patience needs a validation loader, to see whether an epoch was better.")
    patience = None if patience is None else count(patience, "patience")
    if optimiser is None:
        optimiser = torch.optim.Adam(trained, lr=_RATE)
    _refuse_unusable(optimiser, schedule, loss, trained)
    scheduler = _scheduler(schedule, optimiser, loader, epochs)
    loss = usual_loss if loss is None else loss
    generators = randomness.generators_of(loader, validation)
    run, saved = Run(), None
    if checkpoint is not None:
        settings = _settings(optimiser, schedule, loader, epochs, patience, generators)
        saved = Checkpoint(checkpoint, module, optimiser, scheduler, generators, settings)
        if saved.begin(resume):
            run, now = saved.restore()
            randomness.restore(now, generators, trained[0].device)
        else:
            saved.write(run)  # what cannot be written is told before the work
    with _bar(loader, epochs, progress) as show:
        while len(run.epochs) < epochs and not run.stopped_early:
            _train(
                module, _remaining(loader, run, trained[0], generators), optimiser, scheduler, loss, run, saved, show
            )
            measured = (None, None) if validation is None else evaluate(module, validation, loss)
            run.epochs.append(Epoch(run.loss / run.samples, *measured))
            run.batch, run.loss, run.samples = 0, 0.0, 0
            if patience is not None:
                _choose(run, module, patience)
            if saved is not None:
                saved.write(run)
    if run.best:
        module.load_state_dict(run.best)
    return History(tuple(run.epochs), run.best_epoch, run.stopped_early)


def _train(
    module: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimiser: torch.optim.Optimizer,
    scheduler: LRScheduler | None,
    loss: Loss,
    run: Run,
    saved: Checkpoint | None,
    show: Callable[[Run], None],
) -> None:
    """One epoch, or the rest of one."""
    was, written = module.training, time.monotonic()
    module.train()
    for x, y in batches:
        value = loss(module(x), y)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise BadInput(f"loss(out, y) must be one number, a tensor of no axes; it returned {shown(value)}.")
        number = value.item()
        if not math.isfinite(number):
            raise NotConverged(
                f"The loss is {number} in epoch {len(run.epochs) + 1}, batch {run.batch + 1}: training has diverged. "
                "Take a lower rate; for a DEQ, well_posed='spectral' keeps its map a contraction.",
                residual=number,
                steps=run.batch,
            )
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        optimiser.step()
        if scheduler is not None:
            scheduler.step()
        run.batch, run.loss, run.samples = run.batch + 1, run.loss + number * len(x), run.samples + len(x)
        show(run)
        if saved is not None and time.monotonic() - written > _SECONDS:
            saved.write(run)
            written = time.monotonic()
    module.train(was)
    if run.samples == 0:
        raise BadInput(
            f"The loader gave no batch in epoch {len(run.epochs) + 1}; a generator can be gone through once only: pass a "
            "DataLoader, a list, or Batches(x, y)."
        )


def _remaining(
    loader: Iterable[Any], run: Run, like: Tensor, generators: list[torch.Generator]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of this epoch that are still to do.

    In mid-epoch the generators go back to its beginning, so that the loader gives the same batches; those done are skipped.
    """
    now, device = randomness.capture(generators, like.device), like.device
    if run.batch:
        randomness.restore(run.epoch_start, generators, device)
    else:
        run.epoch_start = now
    batches = iter(loader)
    if run.batch:
        for _ in islice(batches, run.batch):
            pass
        # Before the next batch is fetched: fetching it, or finding that there is none, may draw from them too.
        randomness.restore(now, generators, device)
    for batch in batches:
        yield pair(batch, like)


def _choose(run: Run, module: nn.Module, patience: int) -> None:
    """Keep the weights of the epoch with the smallest validation loss, and stop where it was long ago."""
    losses = [epoch.validation_loss for epoch in run.epochs]
    latest, before = losses[-1], None if run.best_epoch is None else losses[run.best_epoch - 1]
    if before is None or (latest is not None and latest < before):
        run.best_epoch = len(run.epochs)
        run.best = {name: weight.detach().clone() for name, weight in module.state_dict().items()}
    run.stopped_early = run.waited >= patience


def _refuse_unusable(optimiser: Any, schedule: Any, loss: Any, trained: list[nn.Parameter]) -> None:
    if not isinstance(optimiser, torch.optim.Optimizer) or isinstance(optimiser, torch.optim.LBFGS):
        raise BadInput(
            "optimiser must be one of torch.optim that steps on a gradient, such as Adam(module.parameters()); got "
            f"{optimiser!r:.60}."
        )
    theirs = {id(weight) for group in optimiser.param_groups for weight in group["params"]}
    if theirs.isdisjoint(map(id, trained)):
        raise BadInput(
            "The optimiser holds none of this module's weights: make it from module.parameters() of this module."
        )
    if isinstance(schedule, ReduceLROnPlateau):
        raise BadInput("ReduceLROnPlateau wants a measure at each step; use patience=…, or another scheduler.")
    if loss is not None:
        function(loss, "loss", "a function of the outputs and y, such as torch.nn.functional.mse_loss", 2)


def _settings(
    optimiser: torch.optim.Optimizer,
    schedule: LRScheduler | str | None,
    loader: Iterable[Any],
    epochs: int,
    patience: int | None,
    generators: list[torch.Generator],
) -> dict[str, Any]:
    """What makes a run that run, as JSON: a checkpoint is gone on with under these only."""
    groups = optimiser.param_groups
    return {
        "optimiser": type(optimiser).__name__,
        "rates": [float(group.get("initial_lr", group["lr"])) for group in groups],
        # Some schedules turn the momentum up and down.
        "momenta": [None if "max_momentum" in group else group.get("momentum") for group in groups],
        "weight decay": [group.get("weight_decay") for group in groups],
        "weights": [[list(weight.shape) for weight in group["params"]] for group in groups],
        "schedule": schedule if isinstance(schedule, str) else type(schedule).__name__,
        "cosine over epochs": epochs if schedule == "cosine" else None,
        "patience": patience,
        "batches": _length(loader),
        "seeds": [generator.initial_seed() for generator in generators],
    }


def _length(loader: Iterable[Any]) -> int | None:
    """The number of batches, where it is known: a DataLoader of a stream has a length that it cannot tell."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def _scheduler(
    schedule: LRScheduler | str | None, optimiser: torch.optim.Optimizer, loader: Iterable[Any], epochs: int
) -> LRScheduler | None:
    if schedule is None or isinstance(schedule, LRScheduler):
        return schedule
    if not isinstance(schedule, str) or schedule != "cosine":
        raise BadInput(
            f"schedule must be 'cosine', a scheduler of torch.optim.lr_scheduler, or None; got {shown(schedule)}."
        )
    batches = _length(loader)
    if batches is None:
        raise BadInput(
            "A cosine schedule must know how many batches there are; give the loader a length, or schedule=None."
        )
    return CosineAnnealingLR(optimiser, max(1, epochs * batches))


@contextmanager
def _bar(loader: Iterable[Any], epochs: int, shown: bool | str) -> Iterator[Callable[[Run], None]]:
    """A bar on the error stream, with the epoch and its mean loss so far."""
    what, batches = shown if isinstance(shown, str) else "training", _length(loader)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with bar(*columns, shown=bool(shown)) as progress:
        task = progress.add_task(what, total=None if batches is None else epochs * batches)

        def show(run: Run) -> None:
            text = f"{what}, epoch {len(run.epochs) + 1} of {epochs}, loss {run.loss / run.samples:.4g}"
            progress.update(task, description=text, completed=len(run.epochs) * (batches or 0) + run.batch)

        yield show
