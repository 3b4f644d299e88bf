"""The program that the commands belong to, and what they share: streams, the spinner, and how errors are told."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from notsodeep import __version__
from notsodeep.errors import NotSoDeepError, NumericsWarning

# No markup: what is printed may hold brackets of its own, in a path for example.
out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


class _Program(TyperGroup):
    """Says that it was stopped, which Typer does not."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            err.print("stopped")
            raise typer.Exit(130) from None


app = typer.Typer(
    name="notsodeep",
    cls=_Program,
    help="Turn a deep equilibrium model into an equivalent explicit network, and measure how close they are on your own data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"notsodeep {__version__}")
        raise typer.Exit


@contextmanager
def working(message: str) -> Iterator[Any]:
    """A spinner on the error stream, with the package's warnings as plain lines once the work is done."""
    with noted(), err.status(message) as status:
        yield status.update


@contextmanager
def noted() -> Iterator[None]:
    """Warnings of the package as one plain line each, at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericsWarning)
        yield
    for text in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, NumericsWarning)):
        err.print(f"note: {text}")


def print_json(record: dict[str, Any]) -> None:
    """One line of JSON, which has no NaN and no infinity: they are null."""
    typer.echo(json.dumps(_finite(record), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    """The entry point: errors of the package in one line, exit code 2."""
    try:
        app()
    except NotSoDeepError as error:
        err.print(f"error: {error}")
        sys.exit(2)
    except OSError as error:
        err.print(
            f"error: {error.strerror or error}" + (f": {str(error.filename)[:200]}" if error.filename else "") + "."
        )
        sys.exit(2)
    except (ArithmeticError, ValueError, RuntimeError, MemoryError) as error:
        # Numbers that nobody foresaw end in one line too; the traceback is there for who wants to report it.
        if os.environ.get("NOTSODEEP_TRACEBACK"):
            raise
        err.print(
            f"error: {type(error).__name__}: {error}. The numbers given are beyond what this computation can hold."
        )
        err.print("(NOTSODEEP_TRACEBACK=1 shows where.)")
        sys.exit(2)
