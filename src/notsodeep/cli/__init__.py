"""The command line. Bad input ends every command with one clear line and exit code 2."""

from notsodeep.cli import console  # noqa: F401 (first: Ctrl-C during the other imports then ends quietly)
from notsodeep.cli.program import app, main

__all__ = ["app", "main"]
