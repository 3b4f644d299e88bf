"""The commands that run experiments: one body, and one set of options."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.text import Text

from notsodeep.cli.options import JsonOption, SchedulerOption
from notsodeep.cli.program import app, err, noted, out as stdout, print_json, working
from notsodeep.cli.report import print_results
from notsodeep.errors import BadInput
from notsodeep.papers.experiment import Experiment
from notsodeep.papers.records import Store
from notsodeep.papers.registry import EXPERIMENTS, chosen, of_command
from notsodeep.papers.report.write import write_results
from notsodeep.papers.runner import Outcome, Progress, run
from notsodeep.runtime.files import output_folder
from notsodeep.runtime.progress import bar

# No `from __future__ import annotations`: an annotation that is text could not name the command's own experiments.


FullOption = Annotated[
    bool,
    typer.Option(
        "--full/--quick",
        help="The paper's sizes (a GPU helps), or minutes on two cores. [default: quick]",
        show_default=False,
    ),
]
RunOption = Annotated[
    Path, typer.Option(help="Folder of the records, figures and report; a run that was stopped goes on from it.")
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")]

_SAID_EVERY = 30.0  # seconds, where there is no bar
_SHOWN = ("kind", "network", "target", "dimension", "data", "activation", "n", "width", "device", "seed")
_GOES_ON = "What was computed before, with the same settings, is not computed again."


def experiments_command(command: str, about: str, changes: str) -> None:
    """Add `notsodeep COMMAND`, which runs the experiments of the registry that are its own; `changes` are examples of --set."""
    own = of_command(command)

    def body(
        names: Annotated[
            list[str] | None,
            typer.Argument(help=f"{', '.join(own)}, or all; none lists them with their settings.", show_default=False),
        ] = None,
        full: FullOption = False,
        out: RunOption = Path("results"),
        device: DeviceOption = "auto",
        scheduler: SchedulerOption = None,
        change: Annotated[
            list[str] | None,
            typer.Option("--set", help=f"Change a setting: {changes} (repeatable).", show_default=False),
        ] = None,
        as_json: JsonOption = False,
    ) -> None:
        if names:
            _run(chosen(names, command), full, out, device, scheduler, change or [], as_json)
        else:
            _list(command, full, as_json)

    app.command(command, help=f"{about}\n\n{_GOES_ON}")(body)


def _run(
    experiments: list[Experiment],
    full: bool,
    out: Path,
    device: str,
    scheduler: str | None,
    changes: list[str],
    as_json: bool,
) -> None:
    configs = _configs(experiments, full, changes)
    where = _device(device) if scheduler is None else _workers_device(device)
    store = Store(output_folder(out))
    for experiment in experiments:
        store.records(experiment.name)  # a damaged file is told before the work
    try:
        with noted(), _shown() as show:
            outcome = run(configs, store, where, show, scheduler)
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    if not outcome.computed + outcome.found:
        _tell_left_out(outcome)  # with nothing to report, why is all there is to say
    with working("drawing figures and writing the report"):
        results = write_results(store, out)
    if as_json:
        print_json(
            {
                "computed": outcome.computed,
                "found": outcome.found,
                "left_out": outcome.left_out,
                "claims": [c.to_dict() for c in results.claims],
            }
        )
    else:
        print_results(results)
        stdout.print(f"records: {outcome.computed} computed now, {outcome.found} found")
    _tell_left_out(outcome)


def _list(command: str, full: bool, as_json: bool) -> None:
    """Each experiment of the command with the settings of this size."""
    own = of_command(command)
    if as_json:
        print_json({name: {"title": each.title, "settings": asdict(each.config(full))} for name, each in own.items()})
        return
    for experiment in own.values():
        stdout.print(f"{experiment.name}  {experiment.title}")
        config = experiment.config(full)
        for field in fields(config):
            value = getattr(config, field.name)
            stdout.print(f"      {field.name} = {'/'.join(map(str, value)) if isinstance(value, tuple) else value}")
    stdout.print(
        f"Run some with `notsodeep {command} {' '.join(list(own)[:2])}`, all with `notsodeep {command} all "
        f"--{'full' if full else 'quick'}`."
    )


def _configs(experiments: list[Experiment], full: bool, changes: list[str]) -> list[tuple[Experiment, Any]]:
    asked: dict[str, dict[str, str]] = {}
    for text in changes:
        left, equals, value = text.partition("=")
        name, dot, setting = left.partition(".")
        if not (equals and dot) or name.upper() not in EXPERIMENTS:
            raise BadInput(
                f"--set takes EXPERIMENT.SETTING=VALUE, got {text!r}; `notsodeep {experiments[0].command}` lists the settings."
            )
        if name.upper() not in {experiment.name for experiment in experiments}:
            raise BadInput(f"--set {text} is about {name.upper()}, which is not among the experiments to run.")
        asked.setdefault(name.upper(), {})[setting.strip()] = value.strip()
    return [(experiment, experiment.config(full, asked.get(experiment.name))) for experiment in experiments]


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _refuse_unknown(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: torch sees no CUDA device here. Use --device cpu.")
    return torch.device(name)


def _workers_device(name: str) -> torch.device | None:
    """None: each worker's own. What a worker lacks, it says itself."""
    _refuse_unknown(name)
    return None if name == "auto" else torch.device(name)


def _refuse_unknown(device: str) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise BadInput(f"--device must be auto, cpu or cuda, got {device!r}.")


class _Left(ProgressColumn):
    """The remaining time, running down between two reports."""

    def render(self, task: Task) -> Text:
        until = task.fields["until"]
        return Text("" if until is None else f"about {_duration(max(until - time.monotonic(), 1.0))} left")


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal; elsewhere a line for each experiment, and every half minute."""
    with bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Left()) as progress:
        task = progress.add_task("", total=None, until=None)
        said: dict[str, Any] = {"at": -_SAID_EVERY, "experiment": ""}

        def show(now: Progress) -> None:
            doing = ", ".join(str(now.doing[key]) for key in _SHOWN if key in now.doing) if now.doing else "done"
            until = time.monotonic() + now.remaining if now.doing else None
            progress.update(
                task, description=f"{now.experiment} {doing}", completed=now.done, total=now.total, until=until
            )
            late = time.monotonic() - said["at"] > _SAID_EVERY or now.experiment != said["experiment"]
            if progress.disable and now.doing and late:
                err.print(
                    f"{now.experiment}: {now.done} of {now.total} done, about {_duration(now.remaining)} left ({doing})"
                )
                said.update(at=time.monotonic(), experiment=now.experiment)

        yield show


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def _tell_left_out(outcome: Outcome) -> None:
    if outcome.left_out:
        for name, why in outcome.left_out.items():
            err.print(f"left out, {name}: {why}")
        raise typer.Exit(2)


experiments_command(
    "reproduce",
    "Run the experiments of Ling et al. (2024), on the explicit network that equals a wide DEQ, and write a report of every "
    "claim beside the number found here.",
    "L5.seeds=1, L1.sizes=200/400",
)


experiments_command(
    "separate",
    "Run the experiments of Wu et al. (2024), on what a DEQ does that an explicit network of its cost does not, and write a "
    "report of every claim beside the number found here.",
    "W7.seeds=1, W7.channels=16/32",
)
