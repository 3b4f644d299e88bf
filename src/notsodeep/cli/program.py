"""The program, its commands, and what they share: output streams, the spinner, printing of errors."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from notsodeep import __version__
from notsodeep.cli.console import printable, spell_what_cannot_be_printed, started, stopping_at_once
from notsodeep.errors import NotSoDeepError, NumericsWarning

# No markup: output may contain brackets, in a path for example.
out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

COMMANDS = {
    "design": ("design", "The explicit network equivalent to a DEQ."),
    "kernel": ("kernel", "A kernel of a DEQ or an explicit network."),
    "train": ("train", "Train a DEQ, or its explicit twin."),
    "compile": ("compile", "From a DEQ to an explicit network."),
    "advise": ("advise", "Should a task use a DEQ, the explicit network, or neither?"),
    "explore": ("explore", "Play with it, on a local web page."),
    "data": ("data", "Data sets: which there are, and getting them."),
    "reproduce": ("experiments", "The explicit equal of a DEQ: experiments, report."),
    "separate": ("experiments", "Where a DEQ is worth its cost: experiments, report."),
    "report": ("experiments", "The results of a run, as one page."),
}
"""Each command with the module that defines it, and its help in one line."""

_LONGEST = 1200  # characters of an error; the middle of a longer one is cut out


class _Program(TyperGroup):
    """The commands, each imported when it is called: `--help` should not wait for torch. Prints "stopped" on Ctrl-C."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            with stopping_at_once():
                import_module(f"notsodeep.cli.{COMMANDS[cmd_name][0]}")
            self.commands.update(typer.main.get_group(app).commands)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
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
    """Show a spinner on the error stream, then the package's warnings as plain lines."""
    with noted(), err.status(message) as status:
        yield status.update


@contextmanager
def noted() -> Iterator[None]:
    """Print warnings of the package as one plain line each, at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericsWarning)
        yield
    for text in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, NumericsWarning)):
        err.print(f"note: {text}")


def print_json(record: dict[str, Any]) -> None:
    """Print one line of JSON, with null for NaN and infinity; escapes what standard output cannot encode."""
    line = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)
    typer.echo(line if printable(line) else json.dumps(_finite(record), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    """Run the program; errors end it with one line and exit code 2."""
    started()
    spell_what_cannot_be_printed()
    try:
        app()
    except NotSoDeepError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.strerror or error}" + (f": {str(error.filename)[:200]}" if error.filename else "") + ".")
    except (ArithmeticError, ValueError, RuntimeError, MemoryError) as error:
        # Unforeseen numbers end in one line too; a traceback can be asked for.
        if os.environ.get("NOTSODEEP_TRACEBACK"):
            raise
        _fail(
            f"{type(error).__name__}: {error}. The numbers given are beyond what this computation can hold. "
            "(NOTSODEEP_TRACEBACK=1 shows where.)"
        )


def _fail(message: str) -> NoReturn:
    """Print the message as one line, whatever it quotes, and exit with code 2."""
    line = "".join(c if c.isprintable() or "\udc80" <= c <= "\udcff" else c.encode("unicode_escape").decode() for c in message)
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} […] {line[-_LONGEST // 2 :]}"
    err.print(f"error: {line}")
    sys.exit(2)
