"""The code of the README and of the pages in docs/ runs: Python as it stands, commands through the program's own runner."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from notsodeep.cli import app

from .pages import PAGES, blocks, name

WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
COMMANDS = [
    pytest.param(line, shown, id=f"{name(page)}: {line}")
    for page in PAGES
    for block in blocks(page, "console")
    if block.not_run is None
    for line, *shown in (part.splitlines() for part in block.text.split("$ ")[1:])
]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_python_blocks_run(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of them write files
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        if block.not_run is None:
            exec(compile(block.text, page.name, "exec"), names)
    assert capsys.readouterr().out


@pytest.mark.parametrize(("line", "shown"), COMMANDS)
def test_commands_run_and_print_what_is_shown(line, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(line)
    assert program == "notsodeep"
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    printed = {_words(text): _numbers(text) for text in ran.output.splitlines()}
    for text in shown[:3]:  # below that are round-off and times
        assert _words(text) in printed
        if "≈" not in text:  # the weights of a fit end elsewhere on another machine, along directions that hardly count
            assert printed[_words(text)] == pytest.approx(_numbers(text), rel=0.02, abs=2e-3)


def _words(text):
    return " ".join(re.sub(r"[-−+]? ?\d[\d.]*(e-\d+)?", "#", text).split())


def _numbers(text):
    return [float(found.replace("−", "-").replace(" ", "")) for found in re.findall(r"[-−+]? ?\d[\d.]*(?:e-\d+)?", text)]


def test_the_pages_that_promise_code_have_it():
    names = {name(page) for page in WITH_PYTHON}
    assert {"README.md", "docs/start.md", "docs/networks.md", "docs/extend/solver.md"} <= names
    assert len(COMMANDS) >= 2


def test_few_blocks_are_not_run():
    reasons = [(name(page), block.not_run) for page in PAGES for kind in ("python", "console") for block in blocks(page, kind)]
    skipped = [pair for pair in reasons if pair[1] is not None]
    assert len(skipped) <= 3, skipped
    marks = sum(page.read_text().count("<!-- not run") for page in PAGES)
    assert marks == len(skipped)  # every mark stands right before its block
