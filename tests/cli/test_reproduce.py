"""`notsodeep reproduce`: what it writes, what it refuses, and that a kill costs nothing that was recorded."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

SMALL = ["--set", "L1.sizes=60/120", "--set", "L1.activations=relu/tanh", "--set", "L1.seeds=1"]


def lines(folder, experiment="L1"):
    path = folder / "records" / f"{experiment}.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def test_it_writes_records_figures_claims_and_the_report(notsodeep, tmp_path):
    ran = notsodeep("reproduce", "l1", *SMALL, "--out", str(tmp_path / "run"))
    assert ran.returncode == 0, ran.stderr
    folder = tmp_path / "run"
    assert len(lines(folder)) == 4
    assert {"report.html", "claims.json", "README.md", "figures", "records"} == {p.name for p in folder.iterdir()}
    claims = json.loads((folder / "claims.json").read_text())
    assert "L1.relu.conjugate" in {claim["id"] for claim in claims}
    assert "records: 4 computed now, 0 found" in ran.stdout
    assert "L1: 0 of 4 done, about" in ran.stderr
    again = notsodeep("reproduce", "L1", *SMALL, "--out", str(folder), "--json")
    assert json.loads(again.stdout)["computed"] == 0
    assert json.loads(again.stdout)["found"] == 4
    assert json.loads(again.stdout)["claims"] == claims


def test_without_a_name_it_lists_what_there_is(notsodeep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = notsodeep("reproduce", "--full")
    assert ran.returncode == 0
    assert "L5  Test accuracy against width" in ran.stdout
    assert "widths = 32/64/128/256/512/1024/2048/4096/8192" in ran.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["L9"], "no experiment 'L9'; there are L1, L2"),
        (["L1", "--set", "L1.size=3"], "no setting 'size'"),
        (["L1", "--set", "seeds=3"], "EXPERIMENT.SETTING=VALUE"),
        (["L1", "--set", "L5.seeds=3"], "not among the experiments to run"),
        (["L1", "--set", "L1.seeds=few"], "must be a whole number"),
        (["L1", "--device", "tpu"], "must be auto, cpu or cuda"),
        (["L1", "--set", "L1.sizes=-5"], "must be above 0"),
        (["L1", "--set", "L1.seeds=0"], "must be above 0"),
        (["L5", "--set", "L5.data=nosuch"], "no data set 'nosuch'"),
        (["L5", "--set", "L5.data=digits", "--set", "L5.infinite_samples=5000"], "5000 samples to train on"),
        (["L1", "--set", "L1.activations=wavelet"], "wavelet"),
    ],
)
def test_bad_input_is_one_line(notsodeep, tmp_path, arguments, message):
    ran = notsodeep("reproduce", *arguments, "--out", str(tmp_path / "run"))
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not lines(tmp_path / "run")


def test_a_file_in_the_place_of_the_folder(notsodeep, tmp_path):
    (tmp_path / "run").write_text("mine")
    ran = notsodeep("reproduce", "L1", *SMALL, "--out", str(tmp_path / "run"))
    assert ran.returncode == 2
    assert "is a file" in ran.stderr
    assert (tmp_path / "run").read_text() == "mine"


def test_data_that_are_not_there_leave_the_rest(notsodeep, tmp_path, monkeypatch):
    monkeypatch.delenv("NOTSODEEP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = ["--set", "L4.mixture_n=60", "--set", "L4.mixture_p=50", "--set", "L4.mixture_seeds=1", "--set", "L4.images=60"]
    ran = notsodeep("reproduce", "L4", *small, "--out", str(tmp_path / "run"))
    assert ran.returncode == 2
    assert "left out, L4: mnist needs 2 files" in ran.stderr
    assert [json.loads(line)["config"]["data"] for line in lines(tmp_path / "run", "L4")] == ["gmm"]
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_damaged_record_is_named_before_the_work(notsodeep, tmp_path):
    folder = tmp_path / "run"
    (folder / "records").mkdir(parents=True)
    (folder / "records" / "L1.jsonl").write_text("nonsense\n")
    ran = notsodeep("reproduce", "L1", *SMALL, "--out", str(folder))
    assert ran.returncode == 2
    assert "line 1, is not a record" in ran.stderr


def test_a_killed_run_goes_on_and_ends_in_the_same_numbers(notsodeep, tmp_path):
    settings = ["--set", "L1.sizes=100/400/800", "--set", "L1.activations=relu", "--set", "L1.seeds=3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "notsodeep.cli", "reproduce", "L1", *settings, "--out", str(killed)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while len(lines(killed)) < 4 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    before = lines(killed)
    assert 4 <= len(before) < 9
    ran = notsodeep("reproduce", "L1", *settings, "--out", str(killed))
    assert f"records: {9 - len(before)} computed now, {len(before)} found" in ran.stdout
    assert lines(killed)[: len(before)] == before  # nothing was computed twice
    notsodeep("reproduce", "L1", *settings, "--out", str(whole))
    numbers = [[json.loads(line)["values"] for line in lines(folder)] for folder in (killed, whole)]
    assert numbers[0] == numbers[1]
