"""`notsodeep compile`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from notsodeep.cli import options
from notsodeep.cli.program import app, err, noted, out as stdout, print_json, working
from notsodeep.cli.task import Task, load_known_task, load_task
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Match
from notsodeep.models.compiler.compile import Compiled, compile_deq
from notsodeep.models.compiler.frontier import Answers
from notsodeep.models.convolutional import ConvDEQ, ConvENN
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.models.export.onnx import to_onnx
from notsodeep.models.files.save import load, save
from notsodeep.models.training.objective import measure, score
from notsodeep.models.training.readout import in_batches
from notsodeep.models.unrolled import Unrolled
from notsodeep.runtime.files import output_folder, write_json

_SUFFIXES = (".safetensors", ".py", ".onnx")


@app.command("compile")
def compile_command(
    model: Annotated[Path, typer.Argument(help="A DEQ written by `notsodeep train` or nsd.save.", show_default=False)],
    data: options.Data = "digits",
    labels: options.Labels = None,
    family: options.Family = "auto",
    match: Annotated[Match, options.MATCH] = Match.CONJUGATE,
    width: Annotated[int | None, typer.Option(help="Units of the explicit twin. [default: the DEQ's]")] = None,
    keep: Annotated[float, typer.Option(help="The share of the DEQ's answers to keep.")] = 0.99,
    budget: Annotated[float, typer.Option(help="Seconds for all trainings together; 0 for none.")] = 100.0,
    frontier: Annotated[bool, typer.Option("--frontier", help="Show every way to pay less, not the chosen one alone.")] = False,
    seed: options.Seed = 0,
    standardise: options.Standardise = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the network (safetensors, ONNX, source) and its certificate.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Turn a DEQ into the cheapest network that keeps its answers, judged on test data, with a certificate."""
    if out is not None:
        _check_folder(out)
    with working("reading the network and the data"):
        deq = _deq(model)
        task = _task(deq, model, data, labels, seed, standardise)
        _check_shape(deq, task, model, data)
        answers = deq.out_features is not None and "readout" in deq.changed()
        if frontier and not answers:
            what = "missing" if deq.out_features is None else "as it was drawn"
            raise BadInput(f"The readout of {str(model)!r} is {what}, so there are no answers to keep: leave --frontier out.")
    with noted():
        compiled = compile_deq(
            deq,
            task.x,
            task.y,
            keep=keep,
            budget=budget,
            test=(task.test_x, task.test_y) if answers else None,
            family=family,
            match=match,
            width=width,
        )
    if not task.unseen and compiled.frontier is not None:
        seen = {part: replace(getattr(compiled, part), unseen=False) for part in ("certificate", "frontier")}
        compiled = replace(compiled, **seen)
    record = _record(compiled, task, _test(deq, compiled, task, answers))
    lines: list[str] = []
    if out is not None:
        with working("writing files"):
            lines = _write(compiled, output_folder(out), record)
    if as_json:
        print_json(record)
        return
    stdout.print(f"data: {task.description}")
    stdout.print(compiled.summary())
    if frontier and compiled.frontier is not None:
        stdout.print(compiled.frontier.table())
    for line in lines:
        stdout.print(line)


def _record(compiled: Compiled, task: Task, test: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": task.description,
        "network": compiled.certificate.network,
        "test": test,
        "twin": f"{compiled.design.explicit}" if compiled.design else None,
        "certificate": compiled.certificate.to_dict(),
        "frontier": None if compiled.frontier is None else compiled.frontier.to_dict(),
    }


def _deq(model: Path) -> DEQ:
    """The DEQ of a file; raises BadInput where it holds another network."""
    found = load(model)
    if isinstance(found, ConvDEQ | ConvENN):
        raise BadInput(f"{str(model)!r} holds a network of images, which the command line has no data for: use compile_deq.")
    if not isinstance(found, DEQ):
        raise BadInput(f"{str(model)!r} holds {_named(found)}, which is explicit already.")
    return found


def _named(network: ENN | Unrolled) -> str:
    return f"{network.net}" if isinstance(network, ENN) else f"{network.steps} steps of a DEQ"


def _task(deq: DEQ, model: Path, data: str, labels: str | None, seed: int, standardise: bool | None) -> Task:
    """The data with the DEQ's own preprocessing; with that of the data's training part for a file that holds none."""
    known = deq.preprocessing
    if known is None:
        task = load_task(data, standardise, labels, seed, need_labels=False)
        if task.x.shape[1] == deq.in_features and task.outputs in (0, deq.out_features):
            err.print(f"note: {str(model)!r} does not say how its data were prepared; taken to be as {data!r} is here.")
            deq.preprocessing = task.preprocessing
        return task
    if standardise is not None and standardise != (known.standardiser is not None):
        has = (
            "was trained on raw rows"
            if standardise
            else "was trained on centred and scaled rows, and knows their mean and scale"
        )
        raise BadInput(f"The DEQ of {str(model)!r} {has}: leave --{'standardise' if standardise else 'raw'} out.")
    return load_known_task(data, labels, seed, deq, known)


def _check_shape(deq: DEQ, task: Task, model: Path, data: str) -> None:
    features = task.x.shape[1]
    if features != deq.in_features:
        raise BadInput(f"The DEQ of {str(model)!r} takes {deq.in_features} features and {data!r} has {features}.")
    if task.y is None or deq.out_features is None:
        return
    real = task.y.is_floating_point()
    if deq.out_features != task.outputs if real else deq.out_features < task.outputs:
        raise BadInput(f"The DEQ of {str(model)!r} has {deq.out_features} outputs and {data!r} needs {task.outputs}.")


def _test(deq: DEQ, compiled: Compiled, task: Task, answers: bool) -> dict[str, Any]:
    """What the DEQ and the network answer on the test data."""
    if not answers:
        return {}
    theirs, ours = (in_batches(network, task.test_x) for network in (deq, compiled.network))
    found: dict[str, Any] = {"samples": len(theirs)}
    if compiled.certificate.agreement is None:
        found["output_error"] = Answers(theirs, None, False).error(ours)
    else:
        different = (theirs.argmax(1) != ours.argmax(1)).nonzero().flatten().tolist()
        found |= {"agreement": 1.0 - len(different) / len(theirs), "different_rows": different}
    if task.test_y is not None:
        scores = {"deq": score(theirs, task.test_y), "network": score(ours, task.test_y)}
        found |= {"measure": measure(task.test_y), **scores}
    return found


def _check_folder(out: Path) -> None:
    """Raise `BadInput` where no folder can be made and written to, before the work and not after it; leaves nothing behind."""
    whole = out.absolute()
    made = [folder for folder in (whole, *whole.parents) if not os.path.lexists(folder)]
    try:
        tempfile.TemporaryFile(dir=output_folder(out)).close()
    except OSError as error:
        raise BadInput(f"Nothing can be written into the folder {str(out)!r}: {error.strerror}.") from error
    finally:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _write(compiled: Compiled, folder: Path, record: dict[str, Any]) -> list[str]:
    """Write the network, the plain one where the verdict is to deploy that, and the certificate; lines that say so.

    Files of another network, from a run before, are removed.
    """
    chosen = None if compiled.frontier is None else compiled.frontier.chosen
    networks = {"network": (compiled.network, compiled.certificate.network)}
    if chosen is not None and chosen.plain and chosen.module is not None:
        networks["plain"] = (chosen.module, f"{chosen.name}: the one to deploy")
    lines = []
    for stem in ("network", "plain"):
        files = _written(networks[stem][0], folder / stem) if stem in networks else []
        for old in folder.glob(f"{stem}.*"):
            if old.suffix in _SUFFIXES and old not in files:
                old.unlink()
        if files:
            lines.append(f"written: {', '.join(map(str, files))}  ({networks[stem][1]})")
    return [*lines, f"written: {write_json(folder / 'certificate.json', record)}"]


def _written(network: torch.nn.Module, stem: Path) -> list[Path]:
    assert isinstance(network, DEQ | ENN | Unrolled)
    written = [save(network, stem.with_suffix(".safetensors"))]
    if isinstance(network, DEQ):
        err.print("note: no source file: the DEQ needs a solver, which is in the ONNX file.")
    else:
        network.to_source(stem.with_suffix(".py"))
        written.append(stem.with_suffix(".py"))
    if importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxscript"):
        written.append(to_onnx(network, stem.with_suffix(".onnx")))
    else:
        err.print("note: no ONNX file: pip install 'notsodeep[onnx]'.")
    return written
