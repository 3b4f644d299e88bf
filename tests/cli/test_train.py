"""`notsodeep train`: three networks, files, stopped runs, and what bad input is told."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.cli.program import print_json
from notsodeep.data import load_split
from notsodeep.models.files.save import read_tensors
from notsodeep.models.training.readout import in_batches

SMALL = ("--data", "digits", "--width", "128")


def test_the_readout_in_a_table(notsodeep):
    ran = notsodeep("train", *SMALL)
    assert ran.returncode == 0, ran.stderr
    for word in ("1438 for training", "359 to test on", "128 units", "readout (ridge", "accuracy"):
        assert word in ran.stdout
    assert float(re.findall(r"0\.\d{4}", ran.stdout)[-1]) > 0.93


@pytest.mark.parametrize("model", ["deq", "matched", "plain"])
def test_every_model_as_json_and_as_a_file(model, notsodeep, tmp_path):
    path = tmp_path / "net.safetensors"
    ran = notsodeep("train", *SMALL, "--model", model, "--epochs", "2", "--out", str(path), "--json")
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)
    assert [row["trained"] for row in record["results"]] == ["readout", "all weights, 2 epochs"]
    network = nsd.load(path)
    assert isinstance(network, nsd.DEQ if model == "deq" else nsd.ENN)
    if model != "deq":
        assert network.net.depth == 2
        assert str(network.net.layers[0]).startswith("relu") == (model == "plain")
    split = load_split("digits")
    right = in_batches(network, split.test.x.float()).argmax(1) == split.test.y
    assert float(right.double().mean()) == pytest.approx(record["results"][-1]["test"], abs=1e-9)
    assert list(tmp_path.iterdir()) == [path]


def test_the_seed_decides(notsodeep):
    first, again, other = (
        json.loads(notsodeep("train", *SMALL, "--epochs", "1", "--seed", seed, "--json").stdout)["results"]
        for seed in ("0", "0", "1")
    )
    assert first == again
    assert first != other


def test_files_with_labels(notsodeep, tmp_path):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((200, 5))
    words = np.where(x[:, 0] > 0, "yes", "no")
    rows = [[*map(str, row), word] for row, word in zip(x, words, strict=True)]
    path = tmp_path / "table.csv"
    path.write_text("a,b,c,d,e,answer\n" + "\n".join(map(",".join, rows)))
    ran = notsodeep("train", "--data", str(path), "--labels", "answer", "--width", "64", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["results"][0]["test"] > 0.85
    np.savez(tmp_path / "numbers.npz", x=x, y=x @ np.arange(5.0))
    ran = notsodeep("train", "--data", str(tmp_path / "numbers.npz"), "--width", "64", "--json")
    record = json.loads(ran.stdout)
    assert record["measure"] == "R²"
    assert record["results"][0]["test"] > 0.9


def test_early_stop(notsodeep):
    ran = notsodeep("train", *SMALL, "--epochs", "30", "--patience", "2", "--rate", "0.1", "--json")
    assert ran.returncode == 0, ran.stderr
    epochs = int(json.loads(ran.stdout)["results"][-1]["trained"].split()[2])
    assert 3 <= epochs < 30


def test_a_killed_program_is_resumed(notsodeep, tmp_path):
    """Killed in mid-training, with samples held out for --patience: the resumed run ends in the same weights."""
    run = ("train", *SMALL, "--epochs", "3", "--batch", "32", "--patience", "9", "--json", "--out")
    path, checkpoint = tmp_path / "net.safetensors", tmp_path / "net.checkpoint.safetensors"
    killed = subprocess.Popen(
        [sys.executable, "-m", "notsodeep.cli", *run, str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while killed.poll() is None and not (checkpoint.exists() and read_tensors(checkpoint).record["epochs"]):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, killed.stderr.read()
    killed.stderr.close()
    assert not path.exists()
    nsd.load(checkpoint)
    again = notsodeep(*run, str(path))
    assert again.returncode == 2
    assert "--resume" in again.stderr
    resumed = notsodeep(*run, str(path), "--resume")
    whole = notsodeep(*run, str(tmp_path / "whole.safetensors"))
    assert (resumed.returncode, whole.returncode) == (0, 0), resumed.stderr
    assert json.loads(resumed.stdout)["results"][-1] == json.loads(whole.stdout)["results"][-1]
    ours, theirs = nsd.load(path).state_dict(), nsd.load(tmp_path / "whole.safetensors").state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not checkpoint.exists()
    anew = notsodeep(*run, str(path), "--resume")
    assert "starts anew" in anew.stderr


def test_training_that_diverges_names_the_options_and_can_be_tried_again(notsodeep, tmp_path):
    out = ("--out", str(tmp_path / "net.safetensors"))
    ran = notsodeep("train", *SMALL, "--epochs", "3", "--rate", "300", *out)
    assert ran.returncode == 2
    assert "--rate below 300" in ran.stderr
    assert notsodeep("train", *SMALL, "--epochs", "1", "--rate", "1e-3", *out).returncode == 0


def test_data_of_a_small_scale(notsodeep, tmp_path):
    x = 1e-7 * np.random.default_rng(0).standard_normal((80, 4))
    np.savez(tmp_path / "tiny.npz", x=x, y=x @ np.arange(4.0) * 1e7)
    ran = notsodeep("train", "--data", str(tmp_path / "tiny.npz"), "--raw", "--width", "64", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["results"][0]["test"] > 0.8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "mlp"], "mlp"),
        (["--width", "0"], "width"),
        (["--epochs", "-1"], "epochs"),
        (["--epochs", "1", "--rate", "0"], "--rate"),
        (["--epochs", "1", "--batch", "0"], "size"),
        (["--out", "net.txt"], ".safetensors file"),
        (["--out", "nowhere/net.safetensors"], "a folder that exists"),
        (["--resume"], "--out"),
        (["--labels", "y"], "own labels"),
        (["--data", "mnist:classes=3"], "nothing to tell apart|not there"),
        (["--model", "matched", "--well-posed", "spectral"], "--well-posed"),
        (["--var-a", "5", "--var-b", "1"], "equilibrium"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, notsodeep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = notsodeep("train", *([] if "--data" in arguments else ["--data", "digits"]), "--width", "16", *arguments)
    assert ran.returncode == 2
    assert re.search(message, ran.stderr)
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_labels_that_are_all_the_same(notsodeep, tmp_path):
    x = np.random.default_rng(0).standard_normal((20, 3))
    np.savez(tmp_path / "same.npz", x=x, y=np.full(20, 0.5))
    ran = notsodeep("train", "--data", str(tmp_path / "same.npz"), "--json")
    assert (ran.returncode, "nothing to predict" in ran.stderr) == (2, True)


def test_json_has_no_nan(capsys):
    print_json({"a": [float("nan"), 1.0], "b": {"c": float("-inf")}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.0], "b": {"c": None}}


def test_odd_names_of_files(notsodeep, tmp_path):
    for arguments in (["--data", "x" * 5000 + ".csv"], ["--out", "x" * 5000 + ".safetensors"]):
        ran = notsodeep("train", "--width", "16", *arguments)
        assert ran.returncode == 2
        assert "Traceback" not in ran.stderr
    ran = notsodeep("design", "--data", "gmm:n=40,p=30", "--out", str(tmp_path / "a[/b]"))
    assert ran.returncode == 0, ran.stderr
    assert "a[/b]" in ran.stdout


def test_data_without_labels(notsodeep, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((20, 3)))
    ran = notsodeep("train", "--data", str(tmp_path / "x.npy"))
    assert ran.returncode == 2
    assert "--labels" in ran.stderr
    (tmp_path / "y.csv").write_text("1\n2\n3\n")
    ran = notsodeep("train", "--data", str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.csv"))
    assert ran.returncode == 2
    assert "20" in ran.stderr
    assert "3" in ran.stderr
