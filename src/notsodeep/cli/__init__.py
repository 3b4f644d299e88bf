"""The command line. Every command answers bad input with one clear line and exit code 2."""

from notsodeep.cli import starting  # noqa: F401 (first: Ctrl-C during the other imports ends quietly)
from notsodeep.cli.program import app, main

__all__ = ["app", "main"]
