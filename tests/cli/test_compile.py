"""`notsodeep compile`: from a file to an explicit network, its files and its certificate."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import load_split


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A DEQ trained a little on digits."""
    path = tmp_path_factory.mktemp("model") / "deq.safetensors"
    split = load_split("digits")
    x, y = split.train.x.float(), split.train.y
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), 64, 96, 10, readout_bias=True, generator=torch.Generator().manual_seed(0))
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 128)
    nsd.fit_readout(deq, batches)
    nsd.fit(deq, batches, 2, progress=False)
    return nsd.save(deq, path)


def test_the_table_and_the_files(model, notsodeep, tmp_path):
    pytest.importorskip("onnx")
    ran = notsodeep("compile", str(model), "--data", "digits", "--out", str(tmp_path / "out"))
    assert ran.returncode == 0, ran.stderr
    for word in ("same answer", "accuracy on 359 test samples", "MFLOP", "written:"):
        assert word in ran.stdout
    folder = tmp_path / "out"
    assert sorted(path.name for path in folder.iterdir()) == [
        "certificate.json",
        "network.onnx",
        "network.py",
        "network.safetensors",
    ]
    record = json.loads((folder / "certificate.json").read_text())
    assert record["test"]["samples"] == 359
    assert abs(record["test"]["deq"] - record["test"]["explicit"]) < 0.03
    network = nsd.load(folder / "network.safetensors")
    split = load_split("digits")
    right = network(split.test.x.float()).argmax(1) == split.test.y
    assert float(right.double().mean()) == pytest.approx(record["test"]["explicit"])
    ran = subprocess.run([sys.executable, "-I", folder / "network.py"], capture_output=True, text=True, check=True)
    assert "(n, 64)" in ran.stdout


def test_both_kernels_by_a_family_of_ones_own(model, notsodeep, tmp_path):
    ran = notsodeep(
        "compile", str(model), "--data", "digits", "--match", "both", "--family", "matched", "--out", str(tmp_path), "--json"
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)["certificate"]
    assert found["match"] == "both"
    assert max(found["kernel_gap"], found["tangent_gap"]) < 0.01
    assert nsd.load(tmp_path / "network.safetensors").net.gains == tuple(found["gains"])
    assert json.loads((tmp_path / "certificate.json").read_text())["certificate"] == found


def test_as_json_and_with_distillation(model, notsodeep):
    ran = notsodeep("compile", str(model), "--data", "digits", "--distil", "1", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["certificate"]["distilled_epochs"] == 1


def test_the_frontier_on_the_test_data(model, notsodeep, tmp_path):
    ran = notsodeep("compile", str(model), "--data", "digits", "--frontier", "--keep", "0.9", "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    for word in ("the DEQ cut after 3 steps", "a plain network, 2 layers of 96", "ms per 1,000", "To do so:"):
        assert word in ran.stdout
    record = json.loads((tmp_path / "certificate.json").read_text())
    found = record["frontier"]
    assert found["verdict"] in ran.stdout
    assert (found["samples"], found["keep"], found["measure"]) == (359, 0.9, "accuracy")
    deq, twin = (next(way for way in found["ways"] if way["name"].startswith(name)) for name in ("the DEQ", "explicit"))
    assert (deq["score"], twin["score"]) == (record["test"]["deq"], record["test"]["explicit"])
    assert twin["agreement"] == record["test"]["agreement"]
    plain, split = nsd.load(tmp_path / "plain-96.safetensors"), load_split("digits")
    right = plain(split.test.x.float()).argmax(1) == split.test.y
    assert float(right.double().mean()) == pytest.approx(next(w for w in found["ways"] if w["plain"])["score"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "gmm:n=50,p=20"], "takes 64 features"),
        (["--data", "digits", "--family", "cubic"], "no family"),
        (["--data", "digits", "--family", "quadratic", "--match", "both"], "No quadratic network"),
        (["--data", "digits", "--match", "ntk"], "'ntk' is not one of 'conjugate', 'tangent', 'both'"),
        (["--data", "digits", "--distil", "-1"], "distil"),
        (["--data", "digits", "--frontier", "--keep", "2"], "at most 1"),
    ],
)
def test_bad_input(arguments, message, model, notsodeep, tmp_path):
    ran = notsodeep("compile", str(model), *arguments, "--out", str(tmp_path / "out"))
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stdout == ""
    assert not (tmp_path / "out").exists()


def test_files_that_hold_no_deq(notsodeep, tmp_path):
    missing = notsodeep("compile", str(tmp_path / "none.safetensors"))
    assert (missing.returncode, "no file" in missing.stderr) == (2, True)
    (tmp_path / "bad.safetensors").write_bytes(b"not a model")
    bad = notsodeep("compile", str(tmp_path / "bad.safetensors"))
    assert (bad.returncode, "not a whole" in bad.stderr) == (2, True)
    path = nsd.save(nsd.ENN(nsd.Explicit("relu"), 64, 8, 10), tmp_path / "enn.safetensors")
    explicit = notsodeep("compile", str(path))
    assert (explicit.returncode, "explicit already" in explicit.stderr) == (2, True)
    small = nsd.save(nsd.DEQ(nsd.Implicit("relu", 0.2), 64, 8, 3), tmp_path / "small.safetensors")
    few = notsodeep("compile", str(small), "--data", "digits")
    assert (few.returncode, "3 outputs" in few.stderr) == (2, True)


def test_data_of_another_task(model, notsodeep, tmp_path):
    x = np.random.default_rng(0).standard_normal((60, 64))
    np.savez(tmp_path / "real.npz", x=x, y=x[:, 0])
    ran = notsodeep("compile", str(model), "--data", str(tmp_path / "real.npz"))
    assert (ran.returncode, "10 outputs" in ran.stderr) == (2, True)
    (tmp_path / "taken").write_text("mine")
    ran = notsodeep("compile", str(model), "--data", "digits", "--out", str(tmp_path / "taken"))
    assert (ran.returncode, "is a file" in ran.stderr) == (2, True)


def test_a_note_about_tau0_is_about_tau0():
    """Training moves the variances, and with them the offset that a new DEQ would have; that is no reason to scale the data."""
    split = load_split("digits")
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), 64, 48, 10, readout_bias=True)
    with torch.no_grad():
        deq.B.mul_(0.8)
    compiled = nsd.compile_deq(deq, split.train.x.float())
    assert not [note for note in compiled.certificate.notes if "τ0" in note]
