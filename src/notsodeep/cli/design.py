"""`notsodeep design`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from notsodeep.cli.options import (
    ActivationOption,
    DataOption,
    FamilyOption,
    JsonOption,
    LabelsOption,
    OutOption,
    StandardiseOption,
    Tau0Option,
    VarAOption,
    VarBOption,
)
from notsodeep.cli.program import app, out as stdout, print_json, working
from notsodeep.data.sources import load
from notsodeep.figures.design import design_figure
from notsodeep.figures.style import save
from notsodeep.matching.design import design
from notsodeep.matching.result import Design
from notsodeep.runtime.files import output_folder, write_array, write_columns, write_json
from notsodeep.theory.architecture import Implicit


class Match(StrEnum):
    conjugate = "conjugate"
    tangent = "tangent"


@app.command("design")
def design_command(
    activation: ActivationOption = "relu",
    var_a: VarAOption = 0.2,
    var_b: VarBOption = None,
    data: DataOption = "digits",
    labels: LabelsOption = None,
    family: FamilyOption = "auto",
    match: Annotated[Match, typer.Option(help="The kernel that must agree.")] = Match.conjugate,
    tau0: Tau0Option = None,
    standardise: StandardiseOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Design the explicit network that is equivalent to a DEQ on the data, and measure how close they are."""
    net = Implicit(activation, var_a, var_b)
    with working("reading the data") as say:
        dataset = load(data, standardise, labels)
        say("designing, and measuring exact kernels")
        found = design(net, dataset.x, tau0=tau0, family=family, match=match.value)
        record = {"data": dataset.description, **found.to_dict()}
        # Only now: a design that fails leaves nothing behind, not even a folder.
        folder = None if out is None else output_folder(out)
        if folder is not None:
            say("computing spectra and writing files")
            _write_design(found, folder)
            write_json(folder / "design.json", record)
    if as_json:
        print_json(record)
        return
    stdout.print(f"data: {dataset.description}")
    stdout.print(found.summary())
    if folder is not None:
        stdout.print(
            f"figure: {folder / 'design.png'}  (also design.svg, design.json, spectrum.csv and the kernels as .npy)"
        )


def _write_design(found: Design, folder: Path) -> None:
    measured = found.measured
    assert measured is not None
    kernels = {"deq": measured.kernel, "explicit": measured.explicit_kernel, "undesigned": measured.plain_kernel}
    spectra = {name: torch.linalg.eigvalsh(kernel) for name, kernel in kernels.items()}
    write_array(folder / "deq_kernel.npy", measured.kernel)
    write_array(folder / "explicit_kernel.npy", measured.explicit_kernel)
    write_columns(folder / "spectrum.csv", spectra)
    save(design_figure(found, spectra), folder, "design")
