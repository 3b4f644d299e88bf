"""The command line. Every command answers bad input with one clear line and exit code 2."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from notsodeep import __version__
from notsodeep.architecture import Explicit, Implicit, Network
from notsodeep.data.files import output_folder, write_array, write_columns, write_json
from notsodeep.data.sources import Dataset, load
from notsodeep.data.statistics import MixtureStatistics, tau0
from notsodeep.design import Design, design
from notsodeep.errors import BadInput, NotSoDeepError, NumericsWarning
from notsodeep.figures.design import design_figure
from notsodeep.figures.style import save
from notsodeep.kernels.equivalent import equivalent_kernel
from notsodeep.kernels.exact import conjugate_kernel, tangent_kernel
from notsodeep.kernels.sharp import sharp_kernel
from notsodeep.numerics.operators import LowRankPlusDiagonal
from notsodeep.numerics.spectrum import top_eigenvalues

app = typer.Typer(
    name="notsodeep",
    help="Turn a deep equilibrium model into an equivalent explicit network, and measure how close they are on your own data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_out, _err = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False, soft_wrap=True)


class Match(StrEnum):
    conjugate = "conjugate"
    tangent = "tangent"


class KernelName(StrEnum):
    conjugate = "conjugate"
    tangent = "tangent"
    preactivation = "preactivation"


class Form(StrEnum):
    exact = "exact"
    sharp = "sharp"
    equivalent = "equivalent"


ActivationOption = Annotated[
    str, typer.Option(help="Activation of the DEQ: a name, with parameters after a colon (leaky_relu:0.1).")
]
VarAOption = Annotated[float, typer.Option(help="σ_a², the variance of the recurrent weights.")]
VarBOption = Annotated[float | None, typer.Option(help="σ_b², the variance of the input weights. [default: 1 − var_a]")]
DataOption = Annotated[
    str,
    typer.Option(
        help="gmm:n=800,p=640 (also seed, separation, spread), digits, or a .npy, .npz, .csv or .parquet file."
    ),
]
StandardiseOption = Annotated[
    bool | None,
    typer.Option(
        "--standardise/--raw",
        help="Centre and scale the data to τ0 = 1. [default: yes, but not for gmm]",
        show_default=False,
    ),
]
Tau0Option = Annotated[float | None, typer.Option(help="τ0 to use instead of the data's root mean square norm.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
OutOption = Annotated[Path | None, typer.Option(help="Folder for the kernels, spectra, design and figure.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"notsodeep {__version__}")
        raise typer.Exit


@app.command("design")
def design_command(
    activation: ActivationOption = "relu",
    var_a: VarAOption = 0.2,
    var_b: VarBOption = None,
    data: DataOption = "digits",
    family: Annotated[
        str, typer.Option(help="auto, hard_tanh, leaky_relu, quadratic, hermite or hermite:TERMS.")
    ] = "auto",
    match: Annotated[Match, typer.Option(help="The kernel that must agree.")] = Match.conjugate,
    tau0: Tau0Option = None,
    standardise: StandardiseOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Design the explicit network that is equivalent to a DEQ on the data, and measure how close they are."""
    net = Implicit(activation, var_a, var_b)
    with _working("reading the data") as say:
        dataset = load(data, standardise)
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
        typer.echo(json.dumps(record, ensure_ascii=False))
        return
    _out.print(f"data: {dataset.description}")
    _out.print(found.summary(), markup=False)
    if folder is not None:
        _out.print(
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


@app.command("kernel")
def kernel_command(
    activation: ActivationOption = "relu",
    var_a: VarAOption = 0.2,
    var_b: VarBOption = None,
    layers: Annotated[
        str | None, typer.Option(help="An explicit network instead of a DEQ: activations between slashes (relu/relu).")
    ] = None,
    centre: Annotated[bool, typer.Option(help="Centre the activations, as the theorems ask.")] = True,
    kernel: Annotated[KernelName, typer.Option(help="Which kernel.")] = KernelName.conjugate,
    form: Annotated[
        Form, typer.Option(help="exact (n × n), or low rank + diagonal: sharp (no labels), equivalent (the theorem).")
    ] = Form.exact,
    data: DataOption = "digits",
    tau0: Tau0Option = None,
    standardise: StandardiseOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Compute a kernel of a DEQ or of an explicit network on the data, and say what it is like."""
    with _working("reading the data") as say:
        dataset = load(data, standardise)
        net = _network(activation, var_a, var_b, layers, centre, dataset, tau0)
        say(f"computing the {form.value} {kernel.value} kernel")
        started = time.perf_counter()
        values = _kernel(net, dataset, kernel.value, form.value, tau0)
        seconds = time.perf_counter() - started
        say("its largest eigenvalues")
        record = {"data": dataset.description, "network": str(net), "kernel": kernel.value, "form": form.value}
        record |= _describe(values) | {"seconds": round(seconds, 3)}
        folder = None if out is None else output_folder(out)
        if folder is not None:
            say("writing files")
            dense = values.to_dense() if isinstance(values, LowRankPlusDiagonal) else values
            write_array(folder / "kernel.npy", dense)
            write_columns(folder / "spectrum.csv", {"eigenvalue": torch.linalg.eigvalsh(dense)})
            write_json(folder / "kernel.json", record)
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False))
        return
    for name, value in record.items():
        shown = ", ".join(f"{v:.6g}" for v in value) if isinstance(value, list) else value
        _out.print(f"{name.replace('_', ' ')}: {f'{shown:.6g}' if isinstance(shown, float) else shown}", markup=False)
    if folder is not None:
        _out.print(f"written: {folder / 'kernel.npy'}, spectrum.csv, kernel.json", markup=False)


def _network(
    activation: str,
    var_a: float,
    var_b: float | None,
    layers: str | None,
    centre: bool,
    dataset: Dataset,
    radius: float | None,
) -> Network:
    if layers is None:
        return Implicit(activation, var_a, var_b, centre=centre)
    explicit = Explicit(layers.split("/"))
    return explicit.centred(tau0(dataset.x) if radius is None else radius) if centre else explicit


def _kernel(net: Network, dataset: Dataset, kernel: str, form: str, radius: float | None) -> Any:
    if form == "sharp":
        return sharp_kernel(net, dataset.x, kernel, tau0=radius)
    if form == "equivalent":
        if radius is not None:
            raise BadInput("The theorem's equivalent takes τ0 from the data's covariance; leave out --tau0.")
        labelled = dataset.y is not None and len(dataset.y.unique()) > 1
        stats = (
            MixtureStatistics.from_labels(dataset.x, dataset.y) if labelled else MixtureStatistics.from_data(dataset.x)
        )
        return equivalent_kernel(net, dataset.x, stats, kernel)
    if kernel == "conjugate":
        return conjugate_kernel(net, dataset.x, tau0=radius)
    return tangent_kernel(net, dataset.x, tau0=radius, readout="features" if kernel == "tangent" else "preactivation")


def _describe(values: Any) -> dict[str, Any]:
    n = values.shape[0]
    if isinstance(values, LowRankPlusDiagonal):
        trace, top = float(values.trace()), values.eigvalsh(k=min(5, n))
        return {"n": n, "rank": values.rank, "trace": trace, "top_eigenvalues": top.flip(0).tolist()}
    few = n <= 8  # Lanczos wants more rows than eigenvalues
    top = torch.linalg.eigvalsh(values)[-5:] if few else top_eigenvalues(lambda v: values @ v, n, 5, values)
    return {"n": n, "trace": float(values.diagonal().sum()), "top_eigenvalues": top.flip(0).tolist()}


@contextmanager
def _working(message: str) -> Iterator[Any]:
    """A spinner on the error stream, with warnings of the package turned into plain lines once the work is done."""
    with warnings.catch_warnings(record=True) as caught, _err.status(message) as status:
        warnings.simplefilter("always", NumericsWarning)
        yield status.update
    for text in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, NumericsWarning)):
        _err.print(f"note: {text}", markup=False)


def main() -> None:
    """The entry point: errors of the package in one line, exit code 2."""
    try:
        app()
    except NotSoDeepError as error:
        _err.print(f"error: {error}", markup=False)
        sys.exit(2)
    except (ArithmeticError, ValueError, RuntimeError, MemoryError) as error:
        # Numbers that nobody foresaw end in one line too; the traceback is there for who wants to report it.
        if os.environ.get("NOTSODEEP_TRACEBACK"):
            raise
        _err.print(
            f"error: {type(error).__name__}: {error}. The numbers given are beyond what this computation can hold.",
            markup=False,
        )
        _err.print("(NOTSODEEP_TRACEBACK=1 shows where.)")
        sys.exit(2)
    except KeyboardInterrupt:
        _err.print("stopped")
        sys.exit(130)


if __name__ == "__main__":
    main()
