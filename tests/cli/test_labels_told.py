"""Labels that a table has by the name of its last column: one rule for `load`, all commands and the explorer."""

import json

import numpy as np
import pytest

from notsodeep.app.uploads import read_upload
from notsodeep.data import load, load_split
from notsodeep.errors import BadInput

ROWS = [(1.0, 2.0, 0), (0.5, -1.0, 1), (-2.0, 0.25, 0), (1.5, 1.0, 1), (0.0, -2.0, 0)]
NAMES = ["label", "y", "class", "target", "Target", "Y"]


def table(path, columns, rows=ROWS):
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_last_column_named_as_labels_holds_them(tmp_path, name):
    path = table(tmp_path / "t.csv", ["p", "q", name])
    found, asked = load(path), load(path, labels=name)
    assert found.x.shape == (5, 2)
    assert found.y.tolist() == asked.y.tolist() == [0, 1, 0, 1, 0]
    assert f"with labels in its last column, '{name}'" in found.description
    assert "labels" not in asked.description
    uploaded = read_upload("t.csv", (tmp_path / "t.csv").read_bytes())
    assert uploaded.y.tolist() == found.y.tolist()
    assert load_split(path).train.y is not None


def test_in_a_parquet_file_too(tmp_path):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    columns = dict(zip("pq", np.array(ROWS).T[:2], strict=True)) | {"class": ["a", "b", "a", "b", "a"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    found = load(str(tmp_path / "t.parquet"))
    assert (found.x.shape, found.y.tolist(), found.classes) == ((5, 2), [0, 1, 0, 1, 0], ("a", "b"))


@pytest.mark.parametrize("columns", [["p", "q", "r"], ["y", "p", "q"], ["label_1", "yes", "classy"]])
def test_other_columns_are_features(tmp_path, columns):
    found = load(table(tmp_path / "t.csv", columns))
    assert (found.x.shape, found.y) == ((5, 3), None)
    assert "labels" not in found.description


def test_without_names_all_are_features(tmp_path):
    np.savetxt(tmp_path / "t.csv", np.array(ROWS), delimiter=",")
    assert load(str(tmp_path / "t.csv")).x.shape == (5, 3)


def test_labels_in_another_file_leave_the_columns_as_they_are(tmp_path):
    path = table(tmp_path / "t.csv", ["p", "q", "y"])
    np.save(tmp_path / "own.npy", np.array([1, 1, 0, 0, 1]))
    found = load(path, labels=str(tmp_path / "own.npy"))
    assert (found.x.shape, found.y.tolist()) == ((5, 3), [1, 1, 0, 0, 1])


def test_labels_that_are_not_last_are_asked_about(tmp_path):
    path = table(tmp_path / "t.csv", ["p", "target", "q"])
    with pytest.raises(BadInput, match="'target' before its last one"):
        load(path)
    assert load(path, labels="target").x.shape == (5, 2)
    with pytest.raises(BadInput, match="two columns 'y'"):
        load(table(tmp_path / "twice.csv", ["y", "p", "y"]))


def test_a_table_of_labels_alone(tmp_path):
    with pytest.raises(BadInput, match="no features are left"):
        load(table(tmp_path / "t.csv", ["y"], [(1,), (2,), (1,)]))


def test_no_file_and_a_broken_one_fail_as_without_labels(tmp_path):
    with pytest.raises(BadInput, match="There is no file"):
        load(str(tmp_path / "none.csv"))
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00p,q\n")
    with pytest.raises(BadInput, match="cannot be read as"):
        load(str(tmp_path / "t.csv"))
    (tmp_path / "t.parquet").write_bytes(b"PAR")
    with pytest.raises(BadInput):
        load(str(tmp_path / "t.parquet"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """(path, its data) of 60 rows of three features, the first of which gives the labels."""
    x = np.random.default_rng(0).standard_normal((60, 3)).round(4)
    rows = [(*row, "high" if row[0] > 0.0 else "low") for row in x.tolist()]
    return table(tmp_path_factory.mktemp("told") / "t.csv", ["p", "q", "r", "class"], rows)


@pytest.mark.parametrize(
    "command",
    [["kernel"], ["kernel", "--form", "equivalent"], ["design", "--family", "matched"], ["train", "--width", "16"], ["advise"]],
    ids=["kernel", "equivalent", "design", "train", "advise"],
)
def test_every_command_says_so(notsodeep, drawn, command):
    ran = notsodeep(*command, "--data", drawn, "--json")
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)
    assert "t.csv with labels in its last column, 'class'" in record["data"]
    assert "60 samples × 3 features" in record["data"]
