"""The command line. Every command answers bad input with one clear line and exit code 2."""

from notsodeep.cli.program import app, main

__all__ = ["app", "main"]
