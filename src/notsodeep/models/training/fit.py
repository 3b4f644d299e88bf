"""The training loop over a loader of (x, y) batches."""

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
from notsodeep.models.training.checkpoint import Checkpoint, Epoch, Randomness, Run
from notsodeep.models.training.objective import Loss, evaluate, pair, require_batches, usual_loss
from notsodeep.runtime.progress import bar

_SECONDS = 60.0  # of work that may be lost
_RATE = 1e-3


@dataclass(frozen=True)
class History:
    """Losses of a training run, epoch by epoch."""

    epochs: tuple[Epoch, ...]
    """each with `loss`, `validation_loss` and `validation_accuracy`"""
    best_epoch: int | None
    """number, from 1, of the epoch whose weights were kept; None without `patience`"""
    stopped_early: bool
    """whether `patience` ended the run"""

    @property
    def last(self) -> Epoch:
        """The last epoch."""
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
    """Train `module`, in place, on the (x, y) batches of `loader`.

    Args:
        module: Any torch module; weights that do not require a gradient stay as they are.
        loader: A DataLoader, `Batches` or a list of batches, gone through once per epoch.
        epochs: How many epochs.
        optimiser: One of torch's, on the module's parameters; Adam with rate 1e-3 by default.
        loss: loss(out, y); by default cross-entropy for classes and the mean square error for real numbers.
        schedule: "cosine" lets the rate fall to zero over all batches; or None, or a scheduler of torch's, stepped after each.
        validation: Batches to evaluate the module on after every epoch.
        patience: Stop after this many epochs without a better validation loss, and restore the weights of the best epoch.
        checkpoint: A file written after every epoch, and every minute within one, complete or not at all; `load` opens it.
        resume: Continue from `checkpoint`, to the same numbers as without the interruption (with the same loader and machine).
        progress: Show a progress bar, with this text if it is one.

    Returns:
        The losses, epoch by epoch.

    Raises:
        BadInput: An argument does not fit, or the checkpoint is of another run.
        NotConverged: The loss is no longer finite, or an equilibrium was not found.
    """
    instance(module, nn.Module, "module", "a network, a torch.nn.Module")
    for name, batches in (("loader", loader), ("validation", validation)):
        if batches is not None or name == "loader":
            require_batches(batches, name)
    resume, progress = flag(resume, "resume"), progress if isinstance(progress, str) else flag(progress, "progress")
    checkpoint = None if checkpoint is None else path(checkpoint, "checkpoint")
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    if not trained:
        raise BadInput("The module has no weight to train: all are frozen, or there are none.")
    epochs = count(epochs, "epochs")
    if patience is not None and validation is None:
        raise BadInput("patience needs a validation loader, to see whether an epoch was better.")
    patience = None if patience is None else count(patience, "patience")
    optimiser = torch.optim.Adam(trained, lr=_RATE) if optimiser is None else optimiser
    _check_usable(optimiser, schedule, loss, trained)
    scheduler = _scheduler(schedule, optimiser, loader, epochs)
    training = _Trainer(module, optimiser, scheduler, loss or usual_loss, Randomness.of(trained[0].device, loader, validation))
    run = Run()
    if checkpoint is not None:
        settings = _settings(training, schedule, _length(loader), epochs, patience)
        training.saved = Checkpoint(checkpoint, module, optimiser, scheduler, training.randomness, settings)
        run = training.saved.begin(resume)
    with _bar(loader, epochs, progress) as show:
        while len(run.epochs) < epochs and not run.stopped_early:
            training.epoch(run, loader, show)
            measured = (None, None) if validation is None else evaluate(module, validation, training.loss)
            run.epochs.append(Epoch(run.loss / run.samples, *measured))
            run.batch, run.loss, run.samples = 0, 0.0, 0
            if patience is not None:
                _choose(run, module, patience)
            if training.saved is not None:
                training.saved.write(run)
    if run.best:
        module.load_state_dict(run.best)
    return History(tuple(run.epochs), run.best_epoch, run.stopped_early)


@dataclass
class _Trainer:
    """A module and all that an epoch of its training needs."""

    module: nn.Module
    optimiser: torch.optim.Optimizer
    scheduler: LRScheduler | None
    loss: Loss
    randomness: Randomness
    saved: Checkpoint | None = None

    def epoch(self, run: Run, loader: Iterable[Any], show: Callable[[Run], None]) -> None:
        """Train for one epoch, or the rest of one."""
        was, written = self.module.training, time.monotonic()
        self.module.train()
        for x, y in self._remaining(run, loader):
            number = self._step(run, x, y)
            run.batch, run.loss, run.samples = run.batch + 1, run.loss + number * len(x), run.samples + len(x)
            show(run)
            if self.saved is not None and time.monotonic() - written > _SECONDS:
                self.saved.write(run)
                written = time.monotonic()
        self.module.train(was)
        if run.samples == 0:
            raise BadInput(
                f"The loader gave no batch in epoch {len(run.epochs) + 1}; a generator can be gone through once only: pass a "
                "DataLoader, a list, or Batches(x, y)."
            )

    def _step(self, run: Run, x: Tensor, y: Tensor) -> float:
        """One step of the optimiser; the loss before it."""
        value = self.loss(self.module(x), y)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise BadInput(f"loss(out, y) must be one number, a tensor of no axes; it returned {shown(value)}.")
        number = float(value.item())
        if not math.isfinite(number):
            raise NotConverged(
                f"The loss is {number} in epoch {len(run.epochs) + 1}, batch {run.batch + 1}: training has diverged. "
                "Take a lower rate; for a DEQ, well_posed='spectral' keeps its map a contraction.",
                residual=number,
                steps=run.batch,
            )
        self.optimiser.zero_grad(set_to_none=True)
        value.backward()
        self.optimiser.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return number

    def _remaining(self, run: Run, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of this epoch that are still to do.

        In mid-epoch the generators go back to its start, so the loader gives the same batches; those done are skipped.
        """
        now, like = self.randomness.capture(), next(w for w in self.module.parameters() if w.requires_grad)
        if run.batch:
            self.randomness.restore(run.epoch_start)
        else:
            run.epoch_start = now
        batches = iter(loader)
        if run.batch:
            for _ in islice(batches, run.batch):
                pass
            # Before the next batch is fetched: fetching it, or finding that there is none, may draw from them too.
            self.randomness.restore(now)
        for batch in batches:
            yield pair(batch, like)


def _choose(run: Run, module: nn.Module, patience: int) -> None:
    """Keep the weights of the epoch with the smallest validation loss; stop when it is `patience` epochs ago."""
    losses = [epoch.validation_loss for epoch in run.epochs]
    latest, before = losses[-1], None if run.best_epoch is None else losses[run.best_epoch - 1]
    if before is None or (latest is not None and latest < before):
        run.best_epoch = len(run.epochs)
        run.best = {name: weight.detach().clone() for name, weight in module.state_dict().items()}
    run.stopped_early = len(run.epochs) - (run.best_epoch or 0) >= patience


def _check_usable(optimiser: Any, schedule: Any, loss: Any, trained: list[nn.Parameter]) -> None:
    if not isinstance(optimiser, torch.optim.Optimizer) or isinstance(optimiser, torch.optim.LBFGS):
        raise BadInput(
            "optimiser must be one of torch.optim that steps on a gradient, such as Adam(module.parameters()); got "
            f"{optimiser!r:.60}."
        )
    theirs = {id(weight) for group in optimiser.param_groups for weight in group["params"]}
    if theirs.isdisjoint(map(id, trained)):
        raise BadInput("The optimiser holds none of this module's weights: make it from module.parameters() of this module.")
    if isinstance(schedule, ReduceLROnPlateau):
        raise BadInput("ReduceLROnPlateau wants a measure at each step; use patience=…, or another scheduler.")
    if loss is not None:
        function(loss, "loss", "a function of the outputs and y, such as torch.nn.functional.mse_loss", 2)


def _settings(
    training: _Trainer, schedule: LRScheduler | str | None, batches: int | None, epochs: int, patience: int | None
) -> dict[str, Any]:
    """The settings that a run must share with the checkpoint it continues, as JSON."""
    groups = training.optimiser.param_groups
    return {
        "optimiser": type(training.optimiser).__name__,
        "rates": [float(group.get("initial_lr", group["lr"])) for group in groups],
        # Some schedules turn the momentum up and down.
        "momenta": [None if "max_momentum" in group else group.get("momentum") for group in groups],
        "weight decay": [group.get("weight_decay") for group in groups],
        "weights": [[list(weight.shape) for weight in group["params"]] for group in groups],
        "schedule": schedule if isinstance(schedule, str) else type(schedule).__name__,
        "cosine over epochs": epochs if schedule == "cosine" else None,
        "patience": patience,
        "batches": batches,
        "seeds": [generator.initial_seed() for generator in training.randomness.generators],
    }


def _length(loader: Iterable[Any]) -> int | None:
    """Number of batches, if known: len() of a DataLoader over a stream raises."""
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
        raise BadInput(f"schedule must be 'cosine', a scheduler of torch.optim.lr_scheduler, or None; got {shown(schedule)}.")
    batches = _length(loader)
    if batches is None:
        raise BadInput("A cosine schedule must know how many batches there are; give the loader a length, or schedule=None.")
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
