"""The command line. Every command answers bad input with one clear line and exit code 2."""

from notsodeep.cli import compile, data, design, kernel, report, reproduce, train  # noqa: F401 (each adds its command)
from notsodeep.cli.program import app, main

__all__ = ["app", "main"]
