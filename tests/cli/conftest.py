"""The command line, run in this process."""

import sys
from dataclasses import dataclass

import pytest

from notsodeep.cli import main


@dataclass(frozen=True)
class Ran:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def notsodeep(monkeypatch, capsys):
    """Run the command line in this process."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["notsodeep", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
