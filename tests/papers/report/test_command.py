"""`notsodeep report`."""

import json
import os

import pytest

from notsodeep.cli import experiments  # noqa: F401 (adds its command)
from tests.papers.report.made_up import whole_run


def test_prints_the_claims_and_where_the_page_is(notsodeep, run_of):
    folder = run_of(whole_run()).folder
    ran = notsodeep("report", str(folder))
    assert ran.returncode == 0, ran.stderr
    assert "not reproduced  L1.2  the paper: ≤ 0.5; ours: 0.1 (± 0.02)" in ran.stdout
    assert "6 claims: 2 reproduced, 2 sharper, 2 not reproduced" in ran.stdout
    assert str(folder / "report.html") in ran.stdout
    assert (folder / "report.html").is_file()


def test_json_and_another_place(notsodeep, run_of, tmp_path):
    folder = run_of(whole_run()).folder
    ran = notsodeep("report", str(folder), "--out", str(tmp_path / "page.html"), "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == json.loads((folder / "claims.json").read_text("utf-8"))
    assert (tmp_path / "page.html").is_file()
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("out", ["", "nowhere/page.html"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(notsodeep, run_of, tmp_path, out):
    folder = run_of(whole_run("quick")).folder
    ran = notsodeep("report", str(folder), "--out", str(tmp_path / out))
    assert ran.returncode == 2
    assert "cannot be written" in ran.stderr
    assert not (folder / "figures").exists()


def test_without_a_run(notsodeep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = notsodeep("report")
    assert ran.returncode == 2
    assert "results/records" in ran.stderr
    assert "notsodeep reproduce" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_page_never_takes_the_place_of_records(notsodeep, run_of):
    store = run_of(whole_run())
    path = store.path("L1")
    before = path.read_bytes()
    ran = notsodeep("report", str(store.folder), "--out", str(path))
    assert ran.returncode == 2
    assert "name an .html file" in ran.stderr
    assert path.read_bytes() == before


def test_a_page_never_takes_the_place_of_a_device(notsodeep, run_of, tmp_path):
    os.mkfifo(tmp_path / "pipe.html")
    ran = notsodeep("report", str(run_of(whole_run()).folder), "--out", str(tmp_path / "pipe.html"))
    assert ran.returncode == 2
    assert "is not a file" in ran.stderr
    assert (tmp_path / "pipe.html").is_fifo()
