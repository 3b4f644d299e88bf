"""From a CSV in its own units to files that answer for raw rows in processes without notsodeep."""

import json
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

import notsodeep as nsd
from notsodeep.data import load_split

_WITHOUT_US = """
import json, sys
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
rows = np.load(sys.argv[2]).astype(np.float32)
found = dict(zip([output.name for output in session.get_outputs()], session.run(None, {"x": rows})))
assert "notsodeep" not in sys.modules and "torch" not in sys.modules
print(json.dumps({name: value.tolist() for name, value in found.items()}))
"""


def cancer():
    bunch = load_breast_cancer()
    return bunch.data, bunch.target.tolist()


def words():
    """Columns in units apart by 10⁶, far from 0, and three kinds named by words."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((600, 4))
    kinds = np.array(["ash", 'oak, "red"', "tännchen"])[np.digitize(x[:, 0] + x[:, 3], [-0.5, 0.7])]
    return x * [1e-3, 1.0, 30.0, 1e3] + [0.5, -2.0, 300.0, 2e4], kinds.tolist()


def diabetes():
    bunch = load_diabetes(scaled=False)
    return bunch.data, bunch.target.tolist()


TASKS = {
    "breast cancer": (cancer, []),
    "breast cancer by features": (cancer, ["--per-feature"]),
    "words": (words, ["--per-feature"]),
    "diabetes": (diabetes, ["--numbers", "--per-feature"]),
}


@pytest.fixture(params=TASKS, scope="module")
def task(request, tmp_path_factory):
    make, options = TASKS[request.param]
    folder = tmp_path_factory.mktemp("task")
    x, y = make()
    cells = [[*map(repr, row), '"' + str(label).replace('"', '""') + '"'] for row, label in zip(x.tolist(), y, strict=True)]
    path = folder / "table.csv"
    path.write_text("\n".join(map(",".join, [[*(f"c{k}" for k in range(x.shape[1])), "answer"], *cells])), encoding="utf-8")
    return path, options


def test_onnx_answers_for_raw_rows_as_the_deq_does(task, notsodeep, tmp_path):
    pytest.importorskip("onnxruntime")
    path, options = task
    data = ["--data", str(path), "--labels", "answer"]
    model = tmp_path / "deq.safetensors"
    small = ["--width", "96", "--epochs", "2", "--rate", "1e-3"]
    trained = notsodeep("train", *data, *options, *small, "--out", str(model), "--json")
    assert trained.returncode == 0, trained.stderr
    compiled = notsodeep("compile", str(model), *data, "--budget", "3", "--out", str(tmp_path), "--json")
    assert compiled.returncode == 0, compiled.stderr
    report = json.loads(compiled.stdout)["test"]
    assert report["deq"] == pytest.approx(json.loads(trained.stdout)["results"][-1]["test"], abs=1e-6)

    test = load_split(str(path), standardise=False, labels="answer").test
    rows = test.x.numpy()
    np.save(tmp_path / "rows.npy", rows)
    script = [sys.executable, "-I", "-c", _WITHOUT_US, str(tmp_path / "network.onnx"), str(tmp_path / "rows.npy")]
    found = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    deq, network = nsd.load(model), nsd.load(tmp_path / "network.safetensors")
    theirs, wanted = deq.predict(rows), test.y.numpy() if test.classes is None else np.array(test.classes)[test.y.numpy()]
    if "--numbers" in options:
        ours = np.array(found["out"])[:, 0]
        np.testing.assert_allclose(ours, network.predict(rows), rtol=1e-4)
        r2 = 1.0 - np.square(theirs - wanted).mean() / wanted.var()
        assert r2 == pytest.approx(report["deq"], abs=1e-4)
        assert r2 > 0.3
        away = np.sqrt(np.square(ours - theirs).mean() / theirs.var())
        assert away == pytest.approx(report["output_error"], abs=1e-4)
        assert away <= 0.1  # 99 % of the variance
    else:
        ours = np.array(found["label"])
        assert np.flatnonzero(ours != theirs).tolist() == report["different_rows"]
        assert (theirs == wanted).mean() == pytest.approx(report["deq"])
        assert (ours == wanted).mean() == pytest.approx(report["network"])
        assert report["network"] > 0.8


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A small table of words, and one of its rows without the last column."""
    folder = tmp_path_factory.mktemp("table")
    x, y = words()
    rows = [",".join([*map(str, row), kind.split(",")[0]]) for row, kind in zip(x[:120].tolist(), y, strict=False)]
    (folder / "words.csv").write_text("\n".join(rows), encoding="utf-8")
    (folder / "fewer.csv").write_text("\n".join(row.partition(",")[2] for row in rows), encoding="utf-8")
    (folder / "other.csv").write_text("\n".join(row.replace("ash", "elm") for row in rows), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("file", "options", "says"),
    [
        ("fewer.csv", (), "takes 4 features and"),
        ("other.csv", (), "hold elm, which the network does not know; its classes are ash, oak, tännchen"),
        ("words.csv", ("--raw",), "knows their mean and scale: leave --raw out"),
    ],
)
def test_data_that_do_not_fit_the_networks_own(file, options, says, table, notsodeep, tmp_path):
    model = tmp_path / "deq.safetensors"
    ran = notsodeep("train", "--data", str(table / "words.csv"), "--labels", "-1", "--width", "16", "--out", str(model))
    assert ran.returncode == 0, ran.stderr
    ran = notsodeep("compile", str(model), "--data", str(table / file), "--labels", "-1", *options)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert ran.stdout == ""


def test_a_network_of_raw_rows_and_one_of_an_older_file(table, notsodeep, tmp_path):
    data = ("--data", str(table / "words.csv"), "--labels", "-1")
    model, old = tmp_path / "deq.safetensors", tmp_path / "old.safetensors"
    ran = notsodeep("train", *data, "--raw", "--width", "16", "--out", str(model))
    assert ran.returncode == 0, ran.stderr
    deq = nsd.load(model)
    assert deq.standardiser is None
    assert deq.classes == ("ash", "oak", "tännchen")
    assert "trained on raw rows: leave --standardise out" in notsodeep("compile", str(model), *data, "--standardise").stderr
    deq.preprocessing = None
    nsd.save(deq, old)
    ran = notsodeep("compile", str(old), *data, "--raw", "--budget", "0", "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert "does not say how its data were prepared" in ran.stderr
    assert nsd.load(tmp_path / "network.safetensors").classes == ("ash", "oak", "tännchen")


def test_whole_numbers_to_predict(table, notsodeep):
    wrong = notsodeep("train", "--data", str(table / "words.csv"), "--labels", "-1", "--numbers")
    assert (wrong.returncode, "names of classes, such as ash; leave --numbers out" in wrong.stderr) == (2, True)
    (table / "ages.csv").write_text("\n".join(f"{k % 7},{k % 5},{k}" for k in range(40)))
    many = notsodeep("train", "--data", str(table / "ages.csv"), "--labels", "-1")
    assert (many.returncode, "numbers to predict, say --numbers" in many.stderr) == (2, True)
