"""`notsodeep kernel`."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from notsodeep.cli import options
from notsodeep.cli.program import app, err, out as stdout, print_json, working
from notsodeep.data.sources import Dataset, load
from notsodeep.errors import BadInput
from notsodeep.kernels.exact.kernels import exact_kernel
from notsodeep.kernels.names import Kernel
from notsodeep.kernels.stored.write import WrittenKernels, write_kernels
from notsodeep.kernels.structured.equivalent import equivalent_kernel
from notsodeep.kernels.structured.sharp import sharp_kernel
from notsodeep.linalg.eigen import top_eigenpairs
from notsodeep.linalg.low_rank import LowRankPlusDiagonal
from notsodeep.runtime.files import check_folder, output_folder, write_array, write_columns, write_json
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.statistics import MixtureStatistics, tau0 as root_mean_square_norm

Format = StrEnum("Format", ["npy", "zarr"])
Form = StrEnum("Form", ["exact", "sharp", "equivalent"])


@app.command("kernel")
def kernel_command(
    activation: options.Activation = "relu",
    var_a: options.VarA = 0.2,
    var_b: options.VarB = None,
    layers: Annotated[
        str | None, typer.Option(help="An explicit network instead of a DEQ: activations between slashes (relu/relu).")
    ] = None,
    centre: Annotated[bool, typer.Option(help="Centre the activations, as the theorems ask.")] = True,
    kernel: Annotated[Kernel, typer.Option(help="Which kernel.")] = Kernel.CONJUGATE,
    form: Annotated[
        Form, typer.Option(help="exact (n × n), or low rank + diagonal: sharp (no labels), equivalent (the theorem).")
    ] = Form.exact,
    data: options.Data = "digits",
    labels: options.Labels = None,
    tau0: options.Tau0 = None,
    standardise: options.Standardise = None,
    as_json: options.Json = False,
    out: options.Out = None,
    file_format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="Format in --out: npy, or zarr, written tile by tile, without holding the kernel; a stopped run continues.",
        ),
    ] = Format.npy,
    scheduler: options.Scheduler = None,
) -> None:
    """Compute a kernel of a DEQ or of an explicit network on the data, and describe it."""
    _check_streamed(form, file_format, scheduler, out)
    with working("reading the data") as say:
        dataset = load(data, standardise, labels)
        if layers is None:
            net: Network = Implicit(activation, var_a, var_b, centre=centre)
        else:
            net = Explicit(layers.split("/"))
            net = net.centred(root_mean_square_norm(dataset.x) if tau0 is None else tau0) if centre else net
        if out is not None and file_format is Format.zarr:
            record = _streamed(net, dataset, kernel.value, out, say, tau0=tau0, scheduler=scheduler)
            _print(record, as_json, f"{out / 'kernel.zarr'}, kernel.json")
            return
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
    _print(record, as_json, None if folder is None else f"{folder / 'kernel.npy'}, spectrum.csv, kernel.json")


def _print(record: dict[str, Any], as_json: bool, written: str | None) -> None:
    if as_json:
        print_json(record)
        return
    for name, value in record.items():
        shown = ", ".join(f"{v:.6g}" for v in value) if isinstance(value, list) else value
        stdout.print(f"{name.replace('_', ' ')}: {f'{shown:.6g}' if isinstance(shown, float) else shown}")
    if written is not None:
        stdout.print(f"written: {written}")


def _check_streamed(form: Form, file_format: Format, scheduler: str | None, out: Path | None) -> None:
    """Raise `BadInput` where a scheduler or Zarr is asked for, but not an exact kernel in a folder."""
    if file_format is Format.npy and scheduler is None:
        return
    asked = "--scheduler" if file_format is Format.npy else "--format zarr"
    if form is not Form.exact:
        raise BadInput(f"{asked} is for exact kernels; the {form.value} one is low rank + diagonal, and small.")
    if file_format is Format.npy:
        raise BadInput("--scheduler writes a kernel tile by tile: add --format zarr and --out FOLDER.")
    if out is None:
        raise BadInput("--format zarr needs a folder to write to: --out FOLDER.")


def _streamed(
    net: Network, dataset: Dataset, kernel: str, folder: Path, say: Callable[[str], None], **options: Any
) -> dict[str, Any]:
    """Write the exact kernel tile by tile, by `write_kernels` with its `options`, and the record of it."""

    def progress(done: int, total: int) -> None:
        say(f"computing the exact {kernel} kernel: {done} of {total} tiles")

    check_folder(folder)
    started = time.perf_counter()
    written = _written(net, dataset.x, folder / "kernel.zarr", kernel=kernel, progress=progress, **options)
    record = {"data": dataset.description, "network": str(net), "kernel": kernel, "form": "exact", "n": len(dataset.x)}
    record |= {"tiles_found": written.found, "tiles_computed": written.computed}
    record |= {"seconds": round(time.perf_counter() - started, 3)}
    write_json(folder / "kernel.json", record)
    return record


def _written(*arguments: Any, **options: Any) -> WrittenKernels:
    """`write_kernels`, its errors in the words of the command line."""
    try:
        return write_kernels(*arguments, **options)
    except BadInput as error:
        if "differ" not in error.data:
            raise
        raise BadInput(f"{error.what} Name another --out, or remove that folder to replace them.") from None
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on from here")
        raise typer.Exit(130) from None


def _kernel(net: Network, dataset: Dataset, kernel: str, form: str, radius: float | None) -> Any:
    if form == "sharp":
        return sharp_kernel(net, dataset.x, kernel, tau0=radius)
    if form == "equivalent":
        if radius is not None:
            raise BadInput("The theorem's equivalent takes τ0 from the data's covariance; leave out --tau0.")
        labelled = dataset.y is not None and not dataset.y.is_floating_point() and len(dataset.y.unique()) > 1
        statistics = MixtureStatistics
        stats = statistics.from_labels(dataset.x, dataset.y) if labelled else statistics.from_data(dataset.x)
        return equivalent_kernel(net, dataset.x, stats, kernel)
    return exact_kernel(net, dataset.x, None, kernel, radius)


def _describe(values: Any) -> dict[str, Any]:
    n = values.shape[0]
    if isinstance(values, LowRankPlusDiagonal):
        trace, top = float(values.trace()), values.eigvalsh(k=min(5, n))
        return {"n": n, "rank": values.rank, "trace": trace, "top_eigenvalues": top.flip(0).tolist()}
    top = top_eigenpairs(values, min(5, n)).values
    return {"n": n, "trace": float(values.diagonal().sum()), "top_eigenvalues": top.tolist()}
