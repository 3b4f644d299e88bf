"""`notsodeep train`."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.table import Table
from torch import Tensor

from notsodeep.cli.options import (
    ActivationOption,
    DataOption,
    FamilyOption,
    JsonOption,
    LabelsOption,
    SeedOption,
    StandardiseOption,
    VarAOption,
    VarBOption,
)
from notsodeep.cli.program import app, err, noted, out as stdout, print_json, working
from notsodeep.cli.task import Task, load_task
from notsodeep.errors import BadInput, NotConverged
from notsodeep.matching.design import design
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.files.save import save
from notsodeep.models.training.batches import Batches
from notsodeep.models.training.checkpoint import has_begun
from notsodeep.models.training.fit import fit
from notsodeep.models.training.objective import measure, score
from notsodeep.models.training.readout import fit_readout, in_batches, scale_to_logits
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.statistics import tau0

_DESIGN_SAMPLES = 1000
_VALIDATION = 0.1


class Model(StrEnum):
    deq = "deq"
    matched = "matched"
    plain = "plain"


class Optimiser(StrEnum):
    sgd = "sgd"
    adam = "adam"
    adamw = "adamw"


class WellPosed(StrEnum):
    spectral = "spectral"
    monotone = "monotone"


@app.command("train")
def train_command(
    model: Annotated[
        Model, typer.Option(help="deq, the explicit network matched to it, or the plain one of as many layers.")
    ] = Model.deq,
    data: DataOption = "digits",
    labels: LabelsOption = None,
    activation: ActivationOption = "relu",
    var_a: VarAOption = 0.2,
    var_b: VarBOption = None,
    family: FamilyOption = "auto",
    width: Annotated[int, typer.Option(help="Units of each layer.")] = 1024,
    epochs: Annotated[int, typer.Option(help="Epochs of training on all weights; 0 fits the readout only.")] = 0,
    optimiser: Annotated[Optimiser, typer.Option(help="Which optimiser.")] = Optimiser.adam,
    rate: Annotated[float, typer.Option(help="Its rate, which falls to zero like a cosine.")] = 1e-2,
    batch: Annotated[int, typer.Option(help="Samples a step.")] = 128,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without progress on a tenth of the training data.")
    ] = None,
    well_posed: Annotated[
        WellPosed | None, typer.Option(help="Keep the DEQ solvable while it is trained; slow for wide ones.")
    ] = None,
    seed: SeedOption = 0,
    standardise: StandardiseOption = None,
    out: Annotated[Path | None, typer.Option(help="The file to write, NAME.safetensors.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run of this --out that was stopped.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network: its readout in closed form, then, with --epochs, all its weights."""
    checkpoint = _checkpoint(out, epochs, resume)
    going_on = resume and checkpoint is not None and has_begun(checkpoint)
    if resume and not going_on:
        err.print("note: there is no unfinished run to go on with; this one begins anew.")
    draw = torch.Generator().manual_seed(seed)
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with working("reading the data") as say:
        task = load_task(data, standardise, labels, seed)
        assert task.y is not None
        say(f"building the {model.value} network")
        network = _network(model, Implicit(activation, var_a, var_b), family, task, width, well_posed, draw)
        if not going_on:
            say("fitting the readout")
            ridge = fit_readout(network, Batches(task.x, task.y, 1024)).ridge
            rows.append({"trained": "readout", "ridge": ridge} | _scores(network, task))
            if epochs and not task.y.is_floating_point():
                scale_to_logits(network, Batches(task.x, task.y, 1024, draw))
    if epochs:
        with noted():
            history = _train(network, task, epochs, optimiser, rate, batch, patience, seed, draw, checkpoint, resume)
        rows.append({"trained": f"all weights, {len(history.epochs)} epochs"} | _scores(network, task))
    record = {"data": task.description, "network": f"{network.net}", "width": width, "measure": measure(task.y)}
    record |= {"results": rows, "seconds": round(time.perf_counter() - started, 1)}
    if out is not None:
        record["file"] = str(save(network, out))
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    (print_json if as_json else _print)(record)


def _print(record: dict[str, Any]) -> None:
    stdout.print(f"data: {record['data']}")
    stdout.print(f"network: {record['network']}, {record['width']} units a layer")
    stdout.print(_table(record["results"], record["measure"]))
    kept = f"written: {record['file']}" if "file" in record else "not kept: --out FILE.safetensors keeps it"
    stdout.print(f"{record['seconds']} s; {kept}")


def _checkpoint(out: Path | None, epochs: int, resume: bool) -> Path | None:
    """Where a run writes itself down: beside its result. What cannot be written is refused before the work."""
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
    model: Model,
    net: Implicit,
    family: str,
    task: Task,
    width: int,
    well_posed: WellPosed | None,
    draw: torch.Generator,
) -> DEQ | ENN:
    features, radius = task.x.shape[1], float(f"{tau0(task.x):.6g}")  # what is beyond is rounding
    if model is Model.deq:
        kept = None if well_posed is None else well_posed.value
        return DEQ(net, features, width, task.outputs, tau0=radius, readout_bias=True, well_posed=kept, generator=draw)
    if well_posed is not None:
        raise BadInput("--well-posed is about a DEQ's equilibrium; an explicit network has none.")
    explicit = design(net, x=task.x[:_DESIGN_SAMPLES], tau0=radius, family=family).explicit
    if model is Model.plain:
        explicit = Explicit([net.phi] * explicit.depth).centred(radius)
    return ENN(explicit, features, width, task.outputs, readout_bias=True, generator=draw)


def _train(
    network: DEQ | ENN,
    task: Task,
    epochs: int,
    optimiser: Optimiser,
    rate: float,
    batch: int,
    patience: int | None,
    seed: int,
    draw: torch.Generator,
    checkpoint: Path | None,
    resume: bool,
) -> Any:
    if not 0.0 < rate < float("inf"):
        raise BadInput(f"--rate must be a positive number, got {rate:g}.")
    kinds: dict[Optimiser, Any] = {
        Optimiser.sgd: torch.optim.SGD,
        Optimiser.adam: torch.optim.Adam,
        Optimiser.adamw: torch.optim.AdamW,
    }
    x, y, validation = task.x, task.y, None
    assert y is not None
    if patience is not None:
        held = max(1, round(_VALIDATION * len(x)))
        # By a generator of its own: a resumed run must hold out the same samples.
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        validation = Batches(x[order[:held]], y[order[:held]], 1024)
        x, y = x[order[held:]], y[order[held:]]
    try:
        return fit(
            network,
            Batches(x, y, batch, draw),
            epochs,
            optimiser=kinds[optimiser](network.parameters(), lr=rate),
            validation=validation,
            patience=patience,
            checkpoint=checkpoint,
            resume=resume,
        )
    except NotConverged as error:
        raise NotConverged(
            f"{error} Here: a --rate below {rate:g}, or --well-posed spectral for a DEQ.", **error.data
        ) from error


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
