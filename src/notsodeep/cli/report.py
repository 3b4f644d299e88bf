"""`notsodeep report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from notsodeep.cli.options import JsonOption
from notsodeep.cli.program import app, err, out as stdout, working
from notsodeep.papers.records import Store
from notsodeep.papers.report.write import Results, claims_json, write_results


@app.command("report")
def report_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a run of `reproduce` or `separate`.")] = Path("results"),
    out: Annotated[
        Path | None, typer.Option(help="File to write the page to. [default: report.html in the folder]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the figures of a run and write them down: report.html, one page that opens offline, README.md, claims.json."""
    with working("drawing"):
        results = write_results(Store(folder), folder, out)
    if as_json:
        typer.echo(claims_json(results.claims))
        _tell_left_out(results)
    else:
        print_results(results)


def print_results(results: Results) -> None:
    """The claims, how many hold, and where the page is."""
    for claim in results.claims:
        spread = f" ({claim.spread})" if claim.spread else ""
        stdout.print(f"{claim.verdict:<14}  {claim.id}  the paper: {claim.paper}; ours: {claim.ours}{spread}")
    stdout.print(results.verdicts)
    stdout.print(
        f"page: {results.page}  (also README.md, claims.json and {len(results.figures) // 2} figures in {results.folder})"
    )
    _tell_left_out(results)


def _tell_left_out(results: Results) -> None:
    for sentence in results.left_out:
        err.print(f"note: {sentence}")
