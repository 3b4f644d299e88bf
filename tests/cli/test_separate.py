"""`notsodeep separate`: the second paper's experiments, beside those of `notsodeep reproduce`."""

import json
import sys

import pytest

from tests.cli.test_reproduce import SMALL as SMALL_L1, lines

_SETTINGS = ("data=made-up", "train=64", "test=20", "maps=8", "channels=4/8", "epochs=1", "seeds=1")
SMALL = [word for setting in _SETTINGS for word in ("--set", f"W7.{setting}")]


def test_one_folder_holds_both_papers(notsodeep, tmp_path):
    pytest.importorskip("captum")
    folder = tmp_path / "run"
    assert notsodeep("reproduce", "L1", *SMALL_L1, "--out", str(folder)).returncode == 0
    ran = notsodeep("separate", "w7", *SMALL, "--out", str(folder))
    assert ran.returncode == 0, ran.stderr
    assert "records: 2 computed now, 0 found" in ran.stdout
    assert "W7: 0 of 2 done, about" in ran.stderr
    assert (len(lines(folder, "L1")), len(lines(folder, "W7"))) == (4, 2)
    claims = json.loads((folder / "claims.json").read_text())
    commands = {claim["id"][:2]: claim["command"] for claim in claims}
    assert commands == {"L1": "notsodeep reproduce L1 --quick", "W7": "notsodeep separate W7 --quick"}
    again = json.loads(notsodeep("separate", "W7", *SMALL, "--out", str(folder), "--json").stdout)
    assert (again["computed"], again["found"]) == (0, 2)
    assert again["claims"] == claims


def test_without_a_name_it_lists_its_own(notsodeep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = notsodeep("separate", "--full")
    assert ran.returncode == 0
    assert "W7  Where a multiscale DEQ and a ResNet look" in ran.stdout
    assert "channels = 64/128" in ran.stdout
    assert "L1" not in ran.stdout
    assert "`notsodeep separate all --full`" in ran.stdout
    assert "W7" not in notsodeep("reproduce").stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["separate", "L1"], "run `notsodeep reproduce L1`"),
        (["reproduce", "w7"], "run `notsodeep separate W7`"),
        (["separate", "W9"], "no experiment 'W9'; there are W"),
        (["separate", "W7", "--set", "epochs=3"], "`notsodeep separate` lists the settings"),
        (["separate", "W7", "--set", "W7.epoch=3"], "no setting 'epoch'"),
        (["separate", "W7", "--set", "L1.seeds=1"], "not among the experiments to run"),
    ],
)
def test_bad_input_is_one_line(notsodeep, tmp_path, arguments, message):
    ran = notsodeep(*arguments, "--out", str(tmp_path / "run"))
    assert ran.returncode == 2
    assert message in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["reproduce", "separate"])
def test_help_names_its_own_experiments(notsodeep, command):
    ran = notsodeep(command, "--help")
    assert ran.returncode == 0
    assert ("L1, L2" in ran.stdout) == (command == "reproduce")
    assert ("W7" in ran.stdout) == (command == "separate")
    assert "What was computed before" in " ".join(ran.stdout.split())


def test_what_needs_an_extra_that_is_not_there_says_so(notsodeep, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    ran = notsodeep("separate", "W7", *SMALL, "--out", str(tmp_path / "run"))
    assert ran.returncode == 2
    assert "left out, W7: Grad-CAM needs captum" in ran.stderr
    assert "no records" not in ran.stderr
    assert "Traceback" not in ran.stderr
