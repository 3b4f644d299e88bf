"""`notsodeep advise`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from notsodeep.advice.advise import advise
from notsodeep.advice.race import race
from notsodeep.cli import options
from notsodeep.cli.program import app, out as stdout, print_json, working
from notsodeep.data.sources import Dataset, as_found
from notsodeep.data.targets import LABEL_FILES, is_number
from notsodeep.errors import BadInput


@app.command("advise")
def advise_command(
    data: options.Data = "digits",
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            "--target",
            help="Labels of a file: a column by name or number, an array of an .npz, or another file, which may also follow "
            "the data after a comma (X.npy,y.npy). [default: a last column named label, y, class or target]",
            show_default=False,
        ),
    ] = None,
    numbers: Annotated[
        bool, typer.Option("--numbers", help="The labels are numbers to predict, not classes, even where all are whole.")
    ] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Train both kinds at equal FLOPs and let that decide; takes a minute or two.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="With --train: networks per kind.")] = 5,
    steps: Annotated[int, typer.Option(help="With --train: batches per network.")] = 1500,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Say whether a task should use a DEQ, the explicit network matched to it, or neither, with the measurements behind it."""
    with working("reading the data") as say:
        path, labels = _apart(data, labels)
        dataset = as_found(path, labels)
        y = _labels(dataset, data, numbers)
        found = advise(dataset.x, y, seed=seed, say=say)
        if train:
            random = torch.Generator().manual_seed(seed)
            found = found.with_race(race(dataset.x, y, seeds=seeds, steps=steps, generator=random, say=say))
    if as_json:
        print_json({"data": dataset.description, **found.to_dict()})
        return
    stdout.print(f"data: {dataset.description}")
    stdout.print(found.summary())


def _apart(data: str, labels: str | None) -> tuple[str, str | None]:
    """Split X.npy,y.npy into samples and labels, unless one file has that name."""
    first, comma, second = data.rpartition(",")
    if not comma or not Path(first).suffix or Path(second).suffix.lower() not in LABEL_FILES or Path(data).is_file():
        return data, labels
    if labels is not None:
        raise BadInput(f"{data!r} names a file of labels, and so does --labels {labels}; leave one of them out.")
    return first, second


def _labels(dataset: Dataset, data: str, numbers: bool) -> Tensor:
    y = dataset.y
    if y is None:
        raise BadInput(f"{data!r} has no labels to learn; say where they are with --labels.")
    if numbers and not all(map(is_number, dataset.classes or ())):
        raise BadInput(f"The labels of {data!r} are words; leave --numbers out.")
    if numbers:
        return y.double()
    kinds = 0 if y.is_floating_point() else len(y.unique())
    if 2 * kinds > len(y):
        raise BadInput(f"{data!r} has {kinds} classes for {len(y)} samples; if these are numbers to predict, say --numbers.")
    return y
