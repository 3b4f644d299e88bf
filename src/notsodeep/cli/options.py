"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _folder(text: str) -> Path:
    """The folder named; pathlib would take an empty text for the current one."""
    if not text:
        raise typer.BadParameter("it is empty; name a folder, or . for this one.")
    return Path(text)


Activation = Annotated[
    str,
    typer.Option(
        help="Activation of the DEQ: a name, with parameters after a colon (leaky_relu:0.1), or an expression in x, such as "
        "'x*tanh(x)'."
    ),
]
VarA = Annotated[float, typer.Option(help="σ_a², the variance of the recurrent weights.")]
VarB = Annotated[float | None, typer.Option(help="σ_b², the variance of the input weights. [default: 1 − var_a]")]
Family = Annotated[
    str,
    typer.Option(
        help="auto or auto:1 (one layer), fitted, fitted:2, fitted:matched, fitted:2:matched, rescaled, matched, hard_tanh, "
        "leaky_relu, quadratic, hermite or hermite:TERMS."
    ),
]
MATCH = typer.Option(help="The kernel that must agree, or both: gains of the layers then match the tangent one.")

Data = Annotated[
    str,
    typer.Option(
        help="gmm:n=800,p=640 (also seed, separation, spread), digits, mnist, fashion-mnist, cifar10, cifar10-vgg19 (with "
        "n=2000, classes=6/8, split=test, seed, batches), or a .npy, .npz, .csv or .parquet file."
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="Labels of a file: a column by name or number, an array of an .npz, or another file. [default: a last column "
        "named label, y, class or target]",
        show_default=False,
    ),
]
Standardise = Annotated[
    bool | None,
    typer.Option(
        "--standardise/--raw", help="Centre and scale the data to τ0 = 1. [default: yes, but not for gmm]", show_default=False
    ),
]
Tau0 = Annotated[float | None, typer.Option(help="τ0 to use instead of the data's root mean square norm.")]

Seed = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Seed of the weights, the order of samples, and the held-out part.")
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help="Compute on the workers of this Dask scheduler, tcp://host:port (extra [dask]). [default: this process]",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Out = Annotated[Path | None, typer.Option(parser=_folder, metavar="<path>", help="Folder to write the results to.")]
