"""`notsodeep compile`: from a file to an explicit network, its files and its certificate."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.cli.compile import _write
from notsodeep.data import load_split
from notsodeep.models import Way


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
    deq.preprocessing = split.preprocessing
    return nsd.save(deq, path)


def test_the_table_and_the_files(model, notsodeep, tmp_path):
    pytest.importorskip("onnx")
    ran = notsodeep("compile", str(model), "--data", "digits", "--budget", "0", "--out", str(tmp_path / "out"))
    assert ran.returncode == 0, ran.stderr
    for word in ("same answer, 359 unseen samples", "accuracy, 359 unseen samples", "MFLOP", "Deploy the", "written:"):
        assert word in ran.stdout
    folder = tmp_path / "out"
    deployed = json.loads((folder / "certificate.json").read_text())["network"]
    assert f"network.onnx  ({deployed})" in ran.stdout.replace("\n", "")
    assert sorted(path.name for path in folder.iterdir()) == [
        "certificate.json",
        "network.onnx",
        "network.py",
        "network.safetensors",
    ]
    record = json.loads((folder / "certificate.json").read_text())
    assert record["test"]["samples"] == 359
    assert abs(record["test"]["deq"] - record["test"]["network"]) < 0.03
    network = nsd.load(folder / "network.safetensors")
    split = load_split("digits")
    right = network(split.test.x.float()).argmax(1) == split.test.y
    assert float(right.double().mean()) == pytest.approx(record["test"]["network"])
    ran = subprocess.run([sys.executable, "-I", folder / "network.py"], capture_output=True, text=True, check=True)
    assert "(n, 64)" in ran.stdout


def test_both_kernels_by_a_family_of_ones_own(model, notsodeep, tmp_path):
    matched = ["--match", "both", "--family", "matched", "--budget", "0"]
    ran = notsodeep("compile", str(model), "--data", "digits", *matched, "--out", str(tmp_path), "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)["certificate"]
    kernels = found["kernels"]
    assert kernels["match"] == "both"
    assert max(kernels["gap"], kernels["tangent_gap"]) < 0.01
    assert len(kernels["gains"]) == 3
    assert json.loads((tmp_path / "certificate.json").read_text())["certificate"] == found


def test_the_frontier_on_the_test_data(model, notsodeep, tmp_path):
    options = ["--frontier", "--keep", "0.9", "--budget", "6"]
    ran = notsodeep("compile", str(model), "--data", "digits", *options, "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    shown, record = ran.stdout, json.loads((tmp_path / "certificate.json").read_text())
    for word in ("the DEQ cut after 3 steps", "a plain network, 2 × 96", "ms per 1,000", "the linear response"):
        assert word in shown
    found = record["frontier"]
    assert found["verdict"] in shown
    assert (found["samples"], found["keep"], found["measure"], found["unseen"]) == (359, 0.9, "accuracy", True)
    ways = {way["name"]: way for way in found["ways"]}
    deq, network = ways["the DEQ"], ways[record["network"]]
    assert (deq["score"], network["score"]) == (record["test"]["deq"], record["test"]["network"])
    assert network["agreement"] == record["test"]["agreement"] >= 0.9
    assert network["mflop"] == min(way["mflop"] for way in found["ways"] if way["kept"] >= 0.9 and not way["plain"])
    # A plain network that wins is written too.
    chosen = ways[found["chosen"]]
    assert (tmp_path / "plain.safetensors").exists() == chosen["plain"]
    if chosen["plain"]:
        plain, split = nsd.load(tmp_path / "plain.safetensors"), load_split("digits")
        right = plain(split.test.x.float()).argmax(1) == split.test.y
        assert float(right.double().mean()) == pytest.approx(chosen["score"])


def test_a_deq_without_answers_has_no_frontier(notsodeep, tmp_path):
    path = nsd.save(nsd.DEQ(nsd.Implicit("relu", 0.2), 64, 32, 10), tmp_path / "drawn.safetensors")
    ran = notsodeep("compile", str(path), "--data", "digits", "--frontier")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "as it was drawn" in ran.stderr
    plain = notsodeep("compile", str(path), "--data", "digits:n=200", "--json")
    assert plain.returncode == 0, plain.stderr
    assert json.loads(plain.stdout)["frontier"] is None
    assert json.loads(plain.stdout)["network"] == "explicit twin"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "gmm:n=50,p=20"], "takes 64 features"),
        (["--data", "digits", "--family", "cubic"], "no family"),
        (["--data", "digits", "--family", "quadratic", "--match", "both"], "No quadratic network"),
        (["--data", "digits", "--match", "ntk"], "'ntk' is not one of 'conjugate', 'tangent', 'both'"),
        (["--data", "digits", "--budget", "-1"], "budget"),
        (["--data", "digits", "--keep", "2"], "at most 1"),
    ],
)
def test_bad_input(arguments, message, model, notsodeep, tmp_path):
    ran = notsodeep("compile", str(model), *arguments, "--out", str(tmp_path / "out"))
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stdout == ""
    assert not (tmp_path / "out").exists()


def test_test_data_of_another_split_are_not_called_unseen(model, notsodeep):
    """Four fifths of them were trained on."""
    ran = notsodeep("compile", str(model), "--data", "digits", "--seed", "1", "--budget", "0", "--json")
    record = json.loads(ran.stdout)
    assert not record["frontier"]["unseen"]
    assert not record["certificate"]["unseen"]
    assert "If the DEQ was trained on these samples too" in record["frontier"]["verdict"]


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
    assert (ran.returncode, "does not know; its classes are 0, 1" in ran.stderr) == (2, True)
    (tmp_path / "taken").write_text("mine")
    ran = notsodeep("compile", str(model), "--data", "digits", "--out", str(tmp_path / "taken"))
    assert (ran.returncode, "is a file" in ran.stderr) == (2, True)


def too_long(folder):
    return folder / ("long" * 100)


def under_a_file(folder):
    (folder / "taken").write_text("mine")
    return folder / "taken" / "below" / "out"


def link_to_nowhere(folder):
    (folder / "link").symlink_to(folder / "nowhere")
    return folder / "link"


def below_a_link_to_nowhere(folder):
    return link_to_nowhere(folder) / "out"


def of_the_kernel(_):
    return Path("/proc/out") if Path("/proc").is_dir() else pytest.skip("no /proc here")


def read_only(folder):
    if os.name != "posix" or os.geteuid() == 0:
        pytest.skip("nothing is read-only for this user")
    (folder / "closed").mkdir(mode=0o500)
    return folder / "closed"


@pytest.mark.parametrize("place", [too_long, under_a_file, link_to_nowhere, below_a_link_to_nowhere, of_the_kernel, read_only])
def test_a_folder_that_cannot_be_made_is_told_before_the_work(place, model, notsodeep, tmp_path, monkeypatch):
    monkeypatch.setattr("notsodeep.cli.compile.load", lambda _: pytest.fail("the work has begun"))
    out = place(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    ran = notsodeep("compile", str(model), "--data", "digits", "--out", str(out))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "folder" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_can_be_made_is_not_there_before_the_work(model, notsodeep, tmp_path):
    """And one that is there stays, with what is in it."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine")
    for out in (tmp_path / "new" / "below" / "out", tmp_path / "there"):
        ran = notsodeep("compile", str(model), "--data", "gmm:n=50,p=20", "--out", str(out))
        assert (ran.returncode, "takes 64 features" in ran.stderr) == (2, True)
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "mine.txt"]


@pytest.mark.parametrize(("network", "plain"), [("deq", False), ("enn", False), ("steps", True), ("deq", True)])
def test_files_of_another_network_are_removed(network, plain, tmp_path, monkeypatch):
    """Those of the network and the plain one alone, and each line says of which network its files are."""
    spec = SimpleNamespace(find_spec=lambda _: None)  # without onnx
    monkeypatch.setattr("notsodeep.cli.compile.importlib", SimpleNamespace(util=spec))
    deq, enn = nsd.DEQ(nsd.Implicit("tanh", 0.2), 6, 8, 3), nsd.ENN(nsd.Explicit("relu"), 6, 8, 3)
    chosen = Way("a plain network, 1 × 8", 1.0, 1.0, 1.0, 0.0, plain=plain, module=enn)
    compiled = SimpleNamespace(
        network={"deq": deq, "enn": enn, "steps": nsd.models.Unrolled(deq, 2)}[network],
        certificate=SimpleNamespace(network="the way of this name"),
        frontier=SimpleNamespace(chosen=chosen),
    )
    mine = {"network.txt", "network.json", "others.py", "notes.onnx"}
    olds = {f"{stem}{suffix}" for stem in ("network", "plain") for suffix in (".safetensors", ".py", ".onnx")}
    for name in mine | olds:
        (tmp_path / name).write_text("old")
    lines = _write(compiled, tmp_path, {"some": 1})
    files = {"network.safetensors"} | ({"network.py"} if network != "deq" else set())
    plains = {"plain.safetensors", "plain.py"} if plain else set()
    assert {path.name for path in tmp_path.iterdir()} == mine | files | plains | {"certificate.json"}
    assert all((tmp_path / name).read_bytes()[:3] != b"old" for name in files | plains)
    assert all((tmp_path / name).read_text() == "old" for name in mine)
    assert lines[0].startswith("written: ")
    assert lines[0].endswith("(the way of this name)")
    assert all(name in lines[0] for name in files)
    if plain:
        assert lines[1].endswith("(a plain network, 1 × 8: the one to deploy)")
        assert all(name in lines[1] for name in plains)
    assert (len(lines), lines[-1]) == (2 + plain, f"written: {tmp_path / 'certificate.json'}")


def test_a_note_about_tau0_is_about_tau0():
    """Training moves the variances, and with them the offset that a new DEQ would have; that is no reason to scale the data."""
    split = load_split("digits")
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), 64, 48, 10, readout_bias=True)
    with torch.no_grad():
        deq.B.mul_(0.8)
    compiled = nsd.compile_deq(deq, split.train.x.float(), budget=0.0)
    assert not [note for note in compiled.certificate.notes if "τ0" in note]
