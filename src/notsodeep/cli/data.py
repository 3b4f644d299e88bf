"""`notsodeep data`: what sets there are, fetching them, and the features of one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from notsodeep.cli.program import COMMANDS, app, out as stdout
from notsodeep.data.cache import obtain, search_folders
from notsodeep.data.image_sets import IMAGE_SETS
from notsodeep.data.vgg_features import make_features
from notsodeep.errors import BadInput

sets = typer.Typer(help=COMMANDS["data"][1], no_args_is_help=True, rich_markup_mode=None)
app.add_typer(sets, name="data")

Name = StrEnum("Name", list(IMAGE_SETS))  # type: ignore[misc]


@sets.command("list", short_help="The known sets, and where they are.")
def list_command() -> None:
    """The known sets, and where each was found."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("name", "features", "files", "found in"):
        table.add_column(column)
    for name, known in IMAGE_SETS.items():
        files = dict.fromkeys(file.path for part in known.files.values() for file in part)
        there = {path: folder for path in files for folder in reversed(search_folders()) if (folder / path).is_file()}
        folders = ", ".join(dict.fromkeys(map(str, there.values())))
        table.add_row(name, str(known.features), f"{len(there)} of {len(files)}", folders or "—")
    stdout.print(table)
    stdout.print(f"looked in: {', '.join(map(str, search_folders()))}")


@sets.command("fetch", short_help="Check a set, and get what is missing.")
def fetch_command(name: Annotated[Name, typer.Argument(help="Which set.", show_default=False)]) -> None:
    """Check the files of a set, and download those that are missing."""
    known = IMAGE_SETS[name.value]
    files = list(dict.fromkeys(file for part in known.files.values() for file in part))
    for path in obtain(files, name.value, archive=known.archive):
        stdout.print(f"{path}: whole")


@sets.command("features", short_help="Compute CIFAR-10's VGG-19 features.")
def features_command(
    name: Annotated[str, typer.Argument(help="The set whose features to compute: cifar10.")] = "cifar10",
    out: Annotated[Path | None, typer.Option(help="Data folder to write to. [default: the cache]")] = None,
) -> None:
    """Compute CIFAR-10's VGG-19 features with torchvision's ImageNet weights (needs torchvision)."""
    if name != "cifar10":
        raise BadInput(f"VGG-19 features are known for cifar10, not for {name!r}.")
    stdout.print(f"written: {make_features(out)}")
