"""Every example runs: in quick mode here, in full among the slow tests where that is longer."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
LONGER = [path for path in EXAMPLES if "NOTSODEEP_QUICK" in path.read_text()]


def test_they_are_numbered_from_one():
    assert [int(path.stem.partition("_")[0]) for path in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, capsys, monkeypatch):
    monkeypatch.setenv("NOTSODEEP_QUICK", "1")
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("path", LONGER, ids=lambda path: path.stem)
def test_example_runs_in_full(path, capsys, monkeypatch):
    monkeypatch.delenv("NOTSODEEP_QUICK", raising=False)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
