"""`notsodeep compile`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from notsodeep.cli import options
from notsodeep.cli.program import app, err, noted, out as stdout, print_json, working
from notsodeep.cli.task import Task, load_known_task, load_task
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Match
from notsodeep.models.compile import Compiled, compile_deq
from notsodeep.models.deq import DEQ
from notsodeep.models.files.save import load, save
from notsodeep.models.training.objective import measure, score
from notsodeep.models.training.readout import in_batches
from notsodeep.runtime.files import output_folder, write_json


@app.command("compile")
def compile_command(
    model: Annotated[Path, typer.Argument(help="A DEQ written by `notsodeep train` or nsd.save.", show_default=False)],
    data: options.Data = "digits",
    labels: options.Labels = None,
    family: options.Family = "auto",
    match: Annotated[Match, options.MATCH] = Match.CONJUGATE,
    width: Annotated[int | None, typer.Option(help="Units of the explicit network. [default: the DEQ's]")] = None,
    distil: Annotated[int, typer.Option(help="Epochs of training on the DEQ's answers.")] = 0,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Measure every way to pay less on the test data, and say what to deploy.")
    ] = False,
    keep: Annotated[float, typer.Option(help="With --frontier: the share of the DEQ's answers to keep.")] = 0.99,
    seed: options.Seed = 0,
    standardise: options.Standardise = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the network (safetensors, ONNX, source) and its certificate.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Turn a DEQ into an explicit network on data like its own, with a certificate of what was kept."""
    wanted: dict[str, Any] = {"family": family, "match": match, "width": width}
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"{str(out)!r} is a file; --out names a folder.")
    with working("reading the network and the data") as say:
        deq = load(model)
        if not isinstance(deq, DEQ):
            raise BadInput(f"{str(model)!r} holds {deq.net}, which is explicit already.")
        task = _task(deq, model, data, labels, seed, standardise)
        _check_shape(deq, task, model, data)
        say("compiling")
        if not distil:
            compiled = compile_deq(deq, task.x, task.y, **wanted)
    if distil:  # shows a bar of its own
        with noted():
            compiled = compile_deq(deq, task.x, task.y, **wanted, distil=distil)
    with working("judging it on the test data") as say:
        test = _test(deq, compiled, task)
        record = {"data": task.description, "explicit": f"{compiled.network.net}", "test": test}
        record["certificate"] = compiled.certificate.to_dict()
        ways = None
        if frontier:
            say("measuring every way to pay less")
            ways = compiled.frontier(task.y, test=(task.test_x, task.test_y), keep=keep)
            record["frontier"] = ways.to_dict()
        files = []
        if out is not None:
            say("writing files")
            files = _write(compiled, output_folder(out), record)
            for network in () if ways is None else ways.plain:
                files.append(save(network, out / f"plain-{network.width}.safetensors"))
    if as_json:
        print_json(record)
        return
    stdout.print(f"data: {task.description}")
    stdout.print(compiled.summary())
    for line in _lines(test, task):
        stdout.print(line)
    if ways is not None:
        stdout.print(ways.summary())
    if files:
        stdout.print("written: " + ", ".join(map(str, files)))


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


def _test(deq: DEQ, compiled: Compiled, task: Task) -> dict[str, Any]:
    """Agreement and scores of both networks on samples that neither was fitted to."""
    if deq.out_features is None or "readout" not in deq.changed():
        return {}
    theirs, ours = (in_batches(network, task.test_x) for network in (deq, compiled.network))
    found: dict[str, Any] = {"samples": len(theirs)}
    if task.test_y is not None and task.test_y.is_floating_point():
        spread = (theirs - theirs.mean(0)).square().mean().clamp(min=torch.finfo(theirs.dtype).tiny)
        found["output_error"] = float(((ours - theirs).square().mean() / spread).sqrt())
    elif theirs.shape[1] > 1:
        different = (theirs.argmax(1) != ours.argmax(1)).nonzero().flatten().tolist()
        found |= {"agreement": 1.0 - len(different) / len(theirs), "different_rows": different}
    if task.test_y is not None:
        found |= {"deq": score(theirs, task.test_y), "explicit": score(ours, task.test_y)}
    return found


def _lines(test: dict[str, Any], task: Task) -> list[str]:
    lines = []
    if "deq" in test and task.test_y is not None:
        lines.append(
            f"{measure(task.test_y)} on {test['samples']} test samples: DEQ {test['deq']:.4f}, explicit {test['explicit']:.4f} "
            f"({test['explicit'] - test['deq']:+.4f})"
        )
    if "output_error" in test:
        lines.append(f"their numbers differ by {test['output_error']:.1%} of their spread")
    if "agreement" in test:
        lines.append(f"same answer on {test['agreement']:.1%} of them")
    return lines


def _write(compiled: Compiled, folder: Path, record: dict[str, Any]) -> list[Path]:
    network = compiled.network
    written = [save(network, folder / "network.safetensors")]
    network.to_source(folder / "network.py")
    written.append(folder / "network.py")
    if importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxscript"):
        written.append(network.to_onnx(folder / "network.onnx"))
    else:
        err.print("note: no ONNX file: pip install 'notsodeep[onnx]'.")
    return [*written, write_json(folder / "certificate.json", record)]
