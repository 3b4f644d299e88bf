"""The command line, as a person or a script uses it."""

import json
import subprocess
import sys

import numpy as np
import pytest

GMM = "gmm:n=80,p=64"


@pytest.mark.parametrize("module", ["notsodeep", "notsodeep.cli"])
def test_as_a_program_of_its_own(module):
    ran = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == "notsodeep 0.1.0\n"


def test_design_prints_the_table(notsodeep):
    ran = notsodeep("design", "--activation", "relu", "--var-a", "0.2", "--data", GMM)
    assert ran.returncode == 0, ran.stderr
    for word in ("leaky_relu", "alpha3", "undesigned", "80 samples × 64 features"):
        assert word in ran.stdout


def test_design_as_json_and_files(notsodeep, tmp_path):
    ran = notsodeep("design", "--activation", "tanh", "--data", GMM, "--json", "--out", str(tmp_path / "new" / "out"))
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)
    chosen, *others = record["candidates"]
    assert (chosen["family"], chosen["explicit"]) == (record["family"], record["explicit"])
    assert {"rescaled", "hard_tanh", "fitted", "fitted:2"} <= {one["family"] for one in (chosen, *others)}
    assert record["measured"]["gap"] < record["measured"]["undesigned_scaled_gap"] < record["measured"]["undesigned_gap"]
    folder = tmp_path / "new" / "out"
    assert sorted(p.name for p in folder.iterdir()) == [
        "deq_kernel.npy",
        "design.json",
        "design.png",
        "design.svg",
        "explicit_kernel.npy",
        "spectrum.csv",
    ]
    deq, explicit = (np.load(folder / name) for name in ("deq_kernel.npy", "explicit_kernel.npy"))
    gap = np.linalg.norm(deq - explicit, 2) / np.linalg.norm(deq, 2)
    assert gap == pytest.approx(record["measured"]["gap"], rel=1e-6)
    spectrum = np.loadtxt(folder / "spectrum.csv", delimiter=",", skiprows=1)
    assert np.allclose(spectrum[:, 0], np.linalg.eigvalsh(deq))
    assert json.loads((folder / "design.json").read_text()) == record
    assert (folder / "design.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("form", ["exact", "sharp", "equivalent"])
@pytest.mark.parametrize("kernel", ["conjugate", "tangent", "preactivation"])
def test_kernel_in_every_form(notsodeep, form, kernel):
    ran = notsodeep("kernel", "--data", GMM, "--kernel", kernel, "--form", form, "--json")
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)
    assert record["n"] == 80
    assert len(record["top_eigenvalues"]) == 5
    assert record["top_eigenvalues"] == sorted(record["top_eigenvalues"], reverse=True)


def test_kernel_of_an_explicit_network(notsodeep, tmp_path):
    ran = notsodeep("kernel", "--layers", "relu/tanh", "--data", GMM, "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert "relu − " in ran.stdout
    assert np.load(tmp_path / "kernel.npy").shape == (80, 80)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["design", "--activation", "rleu"], "did you mean relu"),
        (["design", "--var-a", "-1"], "var_a"),
        (["design", "--var-a", "nan"], "var_a"),
        (["design", "--data", "nowhere.npy"], "no file"),
        (["design", "--data", "gmm:n=0,p=20"], "n must be a whole number ≥ 1, got 0"),
        (["design", "--family", "cubic", "--data", GMM], "no family"),
        (["design", "--family", "hard_tanh:3", "--data", GMM], "takes nothing behind its name"),
        (["design", "--activation", "relu", "--family", "hard_tanh", "--data", GMM], "Use family='leaky_relu'"),
        (["design", "--var-a", "3", "--var-b", "1", "--data", GMM], "no equilibrium"),
        (["kernel", "--layers", "relu/relu", "--kernel", "preactivation", "--form", "sharp", "--data", GMM], "no kernel"),
        (["kernel", "--activation", "sign", "--kernel", "tangent", "--data", GMM], "tangent kernel"),
        (["kernel", "--form", "equivalent", "--tau0", "1", "--data", GMM], "leave out --tau0"),
        (["kernel", "--data", GMM, "--out", ""], "'--out': it is empty; name a folder"),
        (["kernel", "--data", "gmm:n=100000000000,p=30"], "Drawing 100000000000 × 30 samples in float64 takes"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(notsodeep, arguments, message):
    ran = notsodeep(*arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_out_that_is_a_file(notsodeep, tmp_path):
    (tmp_path / "taken").write_text("mine")
    ran = notsodeep("design", "--data", GMM, "--out", str(tmp_path / "taken"))
    assert ran.returncode == 2
    assert "is a file; name a folder" in ran.stderr
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_failed_design_leaves_no_file(notsodeep, tmp_path):
    ran = notsodeep("design", "--family", "hard_tanh", "--data", GMM, "--out", str(tmp_path))
    assert ran.returncode == 2
    assert list(tmp_path.iterdir()) == []


ZARR = ["kernel", "--data", GMM, "--format", "zarr", "--out"]


def test_other_settings_in_the_same_folder(notsodeep, tmp_path):
    pytest.importorskip("zarr")
    assert notsodeep(*ZARR, str(tmp_path)).returncode == 0
    changes = {"--var-a=0.1": "network", "--data=gmm:n=80,p=64,seed=1": "the samples."}
    for change, named in changes.items():
        ran = notsodeep(*ZARR, str(tmp_path), change)
        assert ran.returncode == 2
        assert f"holds other kernels; they differ in {named}" in ran.stderr
        assert "Name another --out, or remove that folder" in ran.stderr
        assert "resume" not in ran.stderr
    assert "tiles found: 1" in notsodeep(*ZARR, str(tmp_path)).stdout


def test_a_file_in_the_place_of_the_folder(notsodeep, tmp_path):
    pytest.importorskip("zarr")
    (tmp_path / "taken").write_text("mine")
    ran = notsodeep(*ZARR, str(tmp_path / "taken"))
    assert ran.returncode == 2
    assert "taken' is a file; name a folder" in ran.stderr


def _interrupted(*_arguments, **_options):
    raise KeyboardInterrupt


def test_stopped_by_ctrl_c(notsodeep, tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    with monkeypatch.context() as patch:
        patch.setattr("notsodeep.kernels.stored.store._flush", _interrupted)
        ran = notsodeep(*ZARR, str(tmp_path))
    assert (ran.returncode, ran.stderr, ran.stdout) == (130, "stopped; the same command goes on from here\n", "")
    assert "tiles computed: 1" in notsodeep(*ZARR, str(tmp_path)).stdout
    monkeypatch.setattr("notsodeep.cli.kernel.exact_kernel", _interrupted)
    ran = notsodeep("kernel", "--data", GMM)
    assert (ran.returncode, ran.stderr, ran.stdout) == (130, "stopped\n", "")


def test_violated_bound_is_a_note_beside_the_result(notsodeep):
    ran = notsodeep("kernel", "--var-a", "0.4", "--data", GMM, "--json")
    assert ran.returncode == 0
    assert "note: var_a = 0.4 ≥ 0.25" in ran.stderr
    assert json.loads(ran.stdout)["n"] == 80


def test_help_and_version(notsodeep):
    assert "design" in notsodeep("--help").stdout
    assert "notsodeep 0.1.0" in notsodeep("--version").stdout
    assert notsodeep("design", "--help").returncode == 0
