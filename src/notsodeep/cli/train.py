"""`notsodeep train`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.table import Table
from torch import Tensor

from notsodeep.cli import options
from notsodeep.cli.program import app, err, noted, out as stdout, print_json, working
from notsodeep.cli.task import Task, load_task
from notsodeep.data.standardiser import rounded_tau0
from notsodeep.errors import BadInput, NotConverged
from notsodeep.matching.design import design
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.files.save import save
from notsodeep.models.training.checkpoint import has_begun
from notsodeep.models.training.fit import fit
from notsodeep.models.training.objective import Batches, measure, score
from notsodeep.models.training.readout import fit_readout, in_batches, scale_to_logits
from notsodeep.theory.architecture import Explicit, Implicit

_DESIGN_SAMPLES = 1000
_VALIDATION = 0.1

Model = StrEnum("Model", ["deq", "matched", "plain"])
Optimiser = StrEnum("Optimiser", ["sgd", "adam", "adamw"])
WellPosed = StrEnum("WellPosed", ["spectral", "monotone"])
_OPTIMISERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@app.command("train")
def train_command(
    model: Annotated[
        Model, typer.Option(help="deq, the explicit network matched to it, or a plain one of as many layers.")
    ] = Model.deq,
    data: options.Data = "digits",
    labels: options.Labels = None,
    activation: options.Activation = "relu",
    var_a: options.VarA = 0.2,
    var_b: options.VarB = None,
    family: options.Family = "auto",
    width: Annotated[int, typer.Option(help="Units per layer.")] = 1024,
    epochs: Annotated[int, typer.Option(help="Epochs of training on all weights; 0 fits the readout only.")] = 0,
    optimiser: Annotated[Optimiser, typer.Option(help="Which optimiser.")] = Optimiser.adam,
    rate: Annotated[float, typer.Option(help="Learning rate; it falls to zero like a cosine.")] = 1e-2,
    batch: Annotated[int, typer.Option(help="Samples per step.")] = 128,
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many epochs without progress on a tenth of the training data.")
    ] = None,
    well_posed: Annotated[
        WellPosed | None, typer.Option(help="Keep the DEQ solvable while it is trained; slow for wide ones.")
    ] = None,
    seed: options.Seed = 0,
    standardise: options.Standardise = None,
    per_feature: Annotated[
        bool, typer.Option("--per-feature", help="Scale each feature by itself, for columns in different units.")
    ] = False,
    numbers: Annotated[bool, typer.Option("--numbers", help="Whole labels too are numbers to predict, not classes.")] = False,
    out: Annotated[Path | None, typer.Option(help="The file to write, NAME.safetensors.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the stopped run of this --out.")] = False,
    as_json: options.Json = False,
) -> None:
    """Train a network: its readout in closed form, then, with --epochs, all its weights."""
    checkpoint = _checkpoint(out, epochs, resume)
    going_on = resume and checkpoint is not None and has_begun(checkpoint)
    if resume and not going_on:
        err.print("note: there is no unfinished run to continue; this one starts anew.")
    draw = torch.Generator().manual_seed(seed)
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with working("reading the data") as say:
        task = load_task(data, standardise, labels, seed, per_feature=per_feature, numbers=numbers)
        assert task.y is not None
        say(f"building the {model.value} network")
        net = Implicit(activation, var_a, var_b)
        network = _network(model, net, task, width, family=family, well_posed=well_posed, draw=draw)
        network.preprocessing = task.preprocessing
        if not going_on:
            say("fitting the readout")
            rows.append(_fit_readout(network, task, draw if epochs else None))
    if epochs:
        descent = _Descent(epochs, optimiser, rate, batch, patience)
        rows.append(descent.run(network, task, seed, draw, checkpoint=checkpoint, resume=resume))
    record = {"data": task.description, "network": f"{network.net}", "width": width, "measure": measure(task.y)}
    record |= {"results": rows, "seconds": round(time.perf_counter() - started, 1)}
    if out is not None:
        record["file"] = str(save(network, out))
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    (print_json if as_json else _print)(record)


def _fit_readout(network: DEQ | ENN, task: Task, draw: torch.Generator | None) -> dict[str, Any]:
    """Fit the readout in closed form, scaled to logits where `draw` says that training follows, and score it before that."""
    assert task.y is not None
    ridge = fit_readout(network, Batches(task.x, task.y, 1024)).ridge
    row = {"trained": "readout", "ridge": ridge} | _scores(network, task)
    if draw is not None and not task.y.is_floating_point():
        scale_to_logits(network, Batches(task.x, task.y, 1024, draw))
    return row


@dataclass(frozen=True)
class _Descent:
    """How all weights are trained."""

    epochs: int
    optimiser: Optimiser
    rate: float
    batch: int
    patience: int | None

    def run(self, network: DEQ | ENN, task: Task, seed: int, draw: torch.Generator, **saved: Any) -> dict[str, Any]:
        """Train the network, and score it; `saved` are the checkpoint and whether to resume."""
        if not 0.0 < self.rate < float("inf"):
            raise BadInput(f"--rate must be a positive number, got {self.rate:g}.")
        training, validation = _held_out(task, self.patience, seed)
        optimiser = _OPTIMISERS[self.optimiser](network.parameters(), lr=self.rate)
        saved |= {"optimiser": optimiser, "validation": validation, "patience": self.patience}
        try:
            with noted():
                history = fit(network, Batches(*training, self.batch, draw), self.epochs, **saved)
        except NotConverged as error:
            advice = f"Here: a --rate below {self.rate:g}, or --well-posed spectral for a DEQ."
            raise NotConverged(f"{error} {advice}", **error.data) from error
        return {"trained": f"all weights, {len(history.epochs)} epochs"} | _scores(network, task)


def _print(record: dict[str, Any]) -> None:
    stdout.print(f"data: {record['data']}")
    stdout.print(f"network: {record['network']}, {record['width']} units per layer")
    stdout.print(_table(record["results"], record["measure"]))
    kept = f"written: {record['file']}" if "file" in record else "not kept: --out FILE.safetensors keeps it"
    stdout.print(f"{record['seconds']} s; {kept}")


def _checkpoint(out: Path | None, epochs: int, resume: bool) -> Path | None:
    """The checkpoint of a run, next to its result; raises before the work where --out cannot be written."""
    if out is None:
        if resume:
            raise BadInput("--resume goes on with the run of a file; name it with --out.")
        return None
    if out.suffix != ".safetensors" or out.is_dir() or not out.parent.is_dir():
        raise BadInput(f"{str(out)!r} cannot be written: --out names a .safetensors file in a folder that exists.")
    checkpoint = out.with_suffix(".checkpoint.safetensors") if epochs else None
    if checkpoint is not None and has_begun(checkpoint) and not resume:
        raise BadInput(f"There is an unfinished run, {str(checkpoint)!r}: go on with it by --resume, or remove it.")
    return checkpoint


def _network(
    model: Model, net: Implicit, task: Task, width: int, *, family: str, well_posed: WellPosed | None, draw: torch.Generator
) -> DEQ | ENN:
    features, radius = task.x.shape[1], rounded_tau0(task.x)
    if model is Model.deq:
        kept = None if well_posed is None else well_posed.value
        return DEQ(net, features, width, task.outputs, tau0=radius, readout_bias=True, well_posed=kept, generator=draw)
    if well_posed is not None:
        raise BadInput("--well-posed is about a DEQ's equilibrium; an explicit network has none.")
    explicit = design(net, x=task.x[:_DESIGN_SAMPLES], tau0=radius, family=family).explicit
    if model is Model.plain:
        explicit = Explicit([net.phi] * explicit.depth).centred(radius)
    return ENN(explicit, features, width, task.outputs, readout_bias=True, generator=draw)


def _held_out(task: Task, patience: int | None, seed: int) -> tuple[tuple[Tensor, Tensor], Batches | None]:
    """(x, y) to train on and, with patience, a tenth of them as validation batches."""
    x, y = task.x, task.y
    assert y is not None
    if patience is None:
        return (x, y), None
    held = max(1, round(_VALIDATION * len(x)))
    # By a generator of its own: a resumed run must hold out the same samples.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return (x[order[held:]], y[order[held:]]), Batches(x[order[:held]], y[order[:held]], 1024)


def _scores(network: DEQ | ENN, task: Task) -> dict[str, float]:
    parts: dict[str, tuple[Tensor, Tensor | None]] = {"train": (task.x, task.y), "test": (task.test_x, task.test_y)}
    return {name: score(in_batches(network, x), y) for name, (x, y) in parts.items() if y is not None}


def _table(rows: list[dict[str, Any]], measure: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("trained")
    table.add_column(f"{measure}, training data", justify="right")
    table.add_column("test data", justify="right")
    for row in rows:
        ridge = f" (ridge {row['ridge']:.1e})" if "ridge" in row else ""
        table.add_row(row["trained"] + ridge, f"{row['train']:.4f}", f"{row['test']:.4f}")
    return table
