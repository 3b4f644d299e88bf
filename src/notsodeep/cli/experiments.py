"""The commands on experiments: `reproduce` and `separate` run them, `report` draws a run again."""

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

from notsodeep.cli import options
from notsodeep.cli.program import app, err, noted, out as stdout, print_json, working
from notsodeep.errors import BadInput
from notsodeep.papers.experiment import Experiment
from notsodeep.papers.records import Store
from notsodeep.papers.registry import EXPERIMENTS, chosen, of_command
from notsodeep.papers.report.words import duration
from notsodeep.papers.report.write import Results, claims_json, write_results
from notsodeep.papers.runner import Outcome, RunProgress, run
from notsodeep.runtime.files import output_folder
from notsodeep.runtime.progress import bar

# No `from __future__ import annotations`: the annotations of a command name its own experiments.

FullOption = Annotated[
    bool,
    typer.Option(
        "--full/--quick", help="The paper's sizes (a GPU helps), or minutes on two cores. [default: quick]", show_default=False
    ),
]
RunOption = Annotated[Path, typer.Option(help="Folder of the records, figures and report; a stopped run continues from it.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")]

_SAID_EVERY = 30.0  # seconds between lines where there is no bar
_SHOWN = ("kind", "network", "target", "dimension", "data", "activation", "n", "width", "device", "seed")
_GOES_ON = "What was computed before, with the same settings, is not computed again."


def experiments_command(command: str, about: str, changes: str) -> None:
    """Add `notsodeep COMMAND`, which runs its experiments of the registry; `changes` are examples of --set."""
    own = of_command(command)

    def body(
        names: Annotated[
            list[str] | None,
            typer.Argument(help=f"{', '.join(own)}, or all; none lists them with their settings.", show_default=False),
        ] = None,
        full: FullOption = False,
        out: RunOption = Path("results"),
        device: DeviceOption = "auto",
        scheduler: options.Scheduler = None,
        change: Annotated[
            list[str] | None, typer.Option("--set", help=f"Change a setting: {changes} (repeatable).", show_default=False)
        ] = None,
        as_json: options.Json = False,
    ) -> None:
        if names:
            configs = _configs(chosen(names, command), full, change or [])
            _run(configs, out, _device(device, elsewhere=scheduler is not None), scheduler, as_json)
        else:
            _list(command, full, as_json)

    app.command(command, help=f"{about}\n\n{_GOES_ON}")(body)


def _run(
    configs: list[tuple[Experiment, Any]], out: Path, device: torch.device | None, scheduler: str | None, as_json: bool
) -> None:
    store = Store(output_folder(out))
    for experiment, _ in configs:
        store.records(experiment.name)  # raises for a damaged file before the work
    try:
        with noted(), _shown() as show:
            outcome = run(configs, store, device, show, scheduler)
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    if not outcome.computed + outcome.found:
        _end_if_left_out(outcome)
    with working("drawing figures and writing the report"):
        results = write_results(store, out)
    if as_json:
        counts = {"computed": outcome.computed, "found": outcome.found, "left_out": outcome.left_out}
        print_json(counts | {"claims": [claim.to_dict() for claim in results.claims]})
    else:
        _print_results(results)
        stdout.print(f"records: {outcome.computed} computed now, {outcome.found} found")
    _end_if_left_out(outcome)


def _list(command: str, full: bool, as_json: bool) -> None:
    """Print each experiment of the command with its settings at this size."""
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


def _device(name: str, elsewhere: bool) -> torch.device | None:
    """The device to compute on; None, with workers elsewhere, lets each choose its own and report what it lacks."""
    if name not in ("auto", "cpu", "cuda"):
        raise BadInput(f"--device must be auto, cpu or cuda, got {name!r}.")
    if elsewhere:
        return None if name == "auto" else torch.device(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: torch sees no CUDA device here. Use --device cpu.")
    return torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")


class _Left(ProgressColumn):
    """The remaining time, counting down between two reports."""

    def render(self, task: Task) -> Text:
        until = task.fields["until"]
        return Text("" if until is None else f"about {duration(max(until - time.monotonic(), 1.0))} left")


@contextmanager
def _shown() -> Iterator[Callable[[RunProgress], None]]:
    """Show a bar on a terminal; elsewhere print a line per experiment and every half minute."""
    with bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Left()) as progress:
        task = progress.add_task("", total=None, until=None)
        said: dict[str, Any] = {"at": -_SAID_EVERY, "experiment": ""}

        def show(now: RunProgress) -> None:
            doing = ", ".join(str(now.doing[key]) for key in _SHOWN if key in now.doing) if now.doing else "done"
            until = time.monotonic() + now.remaining if now.doing else None
            progress.update(task, description=f"{now.experiment} {doing}", completed=now.done, total=now.total, until=until)
            late = time.monotonic() - said["at"] > _SAID_EVERY or now.experiment != said["experiment"]
            if progress.disable and now.doing and late:
                err.print(f"{now.experiment}: {now.done} of {now.total} done, about {duration(now.remaining)} left ({doing})")
                said.update(at=time.monotonic(), experiment=now.experiment)

        yield show


def _end_if_left_out(outcome: Outcome) -> None:
    """Print what was left out and why, and exit with code 2, if anything was."""
    if outcome.left_out:
        for name, why in outcome.left_out.items():
            err.print(f"left out, {name}: {why}")
        raise typer.Exit(2)


@app.command("report")
def report_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a run of `reproduce` or `separate`.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="File to write the page to. [default: report.html in the folder]")] = None,
    as_json: options.Json = False,
) -> None:
    """Draw the figures of a run and write report.html, one page that opens offline, README.md and claims.json."""
    with working("drawing"):
        results = write_results(Store(folder), folder, out)
    if as_json:
        typer.echo(claims_json(results.claims))
        _note_left_out(results)
    else:
        _print_results(results)


def _print_results(results: Results) -> None:
    """Print the claims, how many hold, and where the page is."""
    for claim in results.claims:
        spread = f" ({claim.spread})" if claim.spread else ""
        stdout.print(f"{claim.verdict:<14}  {claim.id}  the paper: {claim.paper}; ours: {claim.ours}{spread}")
    stdout.print(results.verdicts)
    stdout.print(
        f"page: {results.page}  (also README.md, claims.json and {len(results.figures) // 2} figures in {results.folder})"
    )
    _note_left_out(results)


def _note_left_out(results: Results) -> None:
    for sentence in results.left_out:
        err.print(f"note: {sentence}")


experiments_command(
    "reproduce",
    "Run the experiments of Ling et al. (2024), on the explicit network that equals a wide DEQ, and write a report of every "
    "claim with the number found here.",
    "L5.seeds=1, L1.sizes=200/400",
)
experiments_command(
    "separate",
    "Run the experiments of Wu et al. (2024), on what a DEQ does that an explicit network of its cost does not, and write a "
    "report of every claim with the number found here.",
    "W7.seeds=1, W7.channels=16/32",
)
