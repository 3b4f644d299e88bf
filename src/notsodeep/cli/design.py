"""`notsodeep design`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch

from notsodeep.cli import options
from notsodeep.cli.program import app, out as stdout, print_json, working
from notsodeep.data.sources import load
from notsodeep.figures.design import design_figure
from notsodeep.figures.style import save
from notsodeep.kernels.names import Match
from notsodeep.matching.design import design
from notsodeep.matching.result import Design
from notsodeep.runtime.files import output_folder, write_array, write_columns, write_json
from notsodeep.theory.architecture import Implicit


@app.command("design")
def design_command(
    activation: options.Activation = "relu",
    var_a: options.VarA = 0.2,
    var_b: options.VarB = None,
    data: options.Data = "digits",
    labels: options.Labels = None,
    family: options.Family = "auto",
    match: Annotated[Match, options.MATCH] = Match.CONJUGATE,
    tau0: options.Tau0 = None,
    standardise: options.Standardise = None,
    as_json: options.Json = False,
    out: options.Out = None,
) -> None:
    """Design the explicit network equivalent to a DEQ on the data, and measure how close they are."""
    net = Implicit(activation, var_a, var_b)
    with working("reading the data") as say:
        dataset = load(data, standardise, labels)
        say("designing, and measuring exact kernels")
        found = design(net, dataset.x, tau0=tau0, family=family, match=match)
        record = {"data": dataset.description, **found.to_dict()}
        # Only now: a design that fails leaves not even a folder behind.
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
        stdout.print(f"figure: {folder / 'design.png'}  (also design.svg, design.json, spectrum.csv and the kernels as .npy)")


def _write_design(found: Design, folder: Path) -> None:
    measured = found.measured
    assert measured is not None
    kernels = {"deq": measured.kernel, "explicit": measured.explicit_kernel, "undesigned": measured.plain_kernel}
    spectra = {name: torch.linalg.eigvalsh(kernel) for name, kernel in kernels.items()}
    write_array(folder / "deq_kernel.npy", measured.kernel)
    write_array(folder / "explicit_kernel.npy", measured.explicit_kernel)
    write_columns(folder / "spectrum.csv", spectra)
    save(design_figure(found, spectra), folder, "design")
