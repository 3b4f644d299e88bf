"""The option of the commands that can compute on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

SchedulerOption = Annotated[
    str | None,
    typer.Option(
        help="Compute on the workers of this Dask scheduler, tcp://host:port (extra [dask]). [default: this process]",
        show_default=False,
    ),
]
