"""The command line. Every command answers bad input with one clear line and exit code 2."""

from notsodeep.cli import (  # noqa: F401 (each adds its command)
    advise,
    compile,
    data,
    design,
    explore,
    kernel,
    report,
    reproduce,
    separate,
    train,
)
from notsodeep.cli.program import app, main

__all__ = ["app", "main"]
