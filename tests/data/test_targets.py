"""The meaning of y: numbers or classes, given as arrays, or in a file as a column, an array or a file of their own."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import load
from notsodeep.data.targets import Targets, class_indices, regression_targets

X = np.arange(8.0).reshape(4, 2) ** 1.5
ROWS = [f"{a},{b}" for a, b in X.tolist()]
WORDS = ["cat", "ant", "cat", "bee"]
CODES, NAMES = [2, 0, 2, 1], ("ant", "bee", "cat")


def loaded(path, labels=None):
    found = load(str(path), standardise=False, labels=labels)
    assert np.allclose(found.x.numpy(), X)
    assert found.y is None or found.y.dtype == torch.int64
    return found


@pytest.fixture
def table(tmp_path):
    """x in two columns with the label between them, with and without names."""

    def write(cells, names=True, path="t.csv"):
        lines = [f"{a},{cell},{b}" for (a, b), cell in zip(X.tolist(), cells, strict=True)]
        (tmp_path / path).write_text("\n".join(["p,kind,q"] * names + lines) + "\n")
        return tmp_path / path

    return write


def test_csv_columns(table):
    assert loaded(table([3, 1, 3, 7]), "kind").y.tolist() == [3, 1, 3, 7]
    assert loaded(table([3, 1, 3, 7]), "1").y.tolist() == [3, 1, 3, 7]
    assert loaded(table(["3.0", "-1", "3", "7"], names=False), 1).y.tolist() == [3, -1, 3, 7]
    assert loaded(table([3, 1, 3, 7], names=False), "-2").y.tolist() == [3, 1, 3, 7]
    for names, labels in [(True, "kind"), (False, 1), (False, -2)]:
        found = loaded(table(WORDS, names), labels)
        assert found.y.tolist() == CODES
        assert found.classes == NAMES
    assert loaded(table(['"a, b"', "c", "c", '"a, b"']), "kind").classes == ("a, b", "c")


def test_csv_columns_that_are_not_there(table):
    with pytest.raises(nsd.BadInput, match="no column 'label'; it has p, kind, q"):
        load(str(table(WORDS)), labels="label")
    for number in (3, -4):
        with pytest.raises(nsd.BadInput, match="numbers 0 … 2"):
            load(str(table(WORDS, names=False)), labels=number)
    with pytest.raises(nsd.BadInput, match="name it: labels="):
        load(str(table(WORDS)))


def test_real_numbers_are_to_be_predicted(table, tmp_path):
    y = load(str(table([1, 2, 0.5, 3])), labels="kind").y
    assert y.dtype == torch.float64
    assert y.tolist() == [1.0, 2.0, 0.5, 3.0]
    np.savez(tmp_path / "several.npz", x=X, y=np.arange(8.0).reshape(4, 2))
    assert load(str(tmp_path / "several.npz")).y.shape == (4, 2)


def test_labels_that_are_missing(table):
    with pytest.raises(nsd.BadInput, match="row 1 has the label nan"):
        load(str(table([1, "nan", 0.5, 3])), labels="kind")
    with pytest.raises(nsd.BadInput, match="row 1 has no label"):
        load(str(table(["a", '" "', "b", "c"])), labels="kind")


def test_parquet_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"p": X[:, 0], "kind": WORDS, "q": X[:, 1], "z": [1, 2, 1, 2]}), path)
    found = load(str(path), standardise=False, labels="kind")
    assert (found.y.tolist(), found.classes, found.x.shape) == (CODES, NAMES, (4, 3))
    with pytest.raises(nsd.BadInput, match="no column 'label'; it has p, kind, q, z"):
        load(str(path), labels="label")
    with pytest.raises(nsd.BadInput, match=r"not numbers\. If a column holds labels"):
        load(str(path))
    parquet.write_table(pyarrow.table({"p": X[:, 0], "kind": ["a", None, "b", "c"]}), path)
    with pytest.raises(nsd.BadInput, match="row 1 has no label"):
        load(str(path), labels="kind")


def test_npz_arrays(tmp_path):
    np.savez(tmp_path / "t.npz", x=X, y=np.array([1, 0, 1, 5], dtype=np.uint8), w=np.array(WORDS))
    assert loaded(tmp_path / "t.npz").y.tolist() == [1, 0, 1, 5]
    assert loaded(tmp_path / "t.npz", "w").classes == NAMES
    np.savez(tmp_path / "two.npz", pixels=X, kind=np.array(WORDS))
    assert loaded(tmp_path / "two.npz", "kind").y.tolist() == CODES
    with pytest.raises(nsd.BadInput, match="holds x, y, w, no 'label'"):
        load(str(tmp_path / "t.npz"), labels="label")


@pytest.mark.parametrize("name", ["t.npy", "t.npz", "t.csv"])
def test_a_file_of_labels(tmp_path, name):
    np.save(tmp_path / "t.npy", X)
    np.savez(tmp_path / "t.npz", x=X, y=np.zeros(4, dtype=int))
    (tmp_path / "t.csv").write_text("\n".join(ROWS))
    np.save(tmp_path / "y.npy", np.array([4, 0, 4, 1]))
    np.save(tmp_path / "words.npy", np.array(WORDS))
    (tmp_path / "y.txt").write_text("4\n0\n4\n1\n\n")
    (tmp_path / "y.csv").write_text("kind\n4\n0\n4\n1\n")
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    for labels in ("y.npy", "y.txt", "y.csv"):
        found = loaded(tmp_path / name, str(tmp_path / labels))
        assert (found.y.tolist(), found.classes) == ([4, 0, 4, 1], None)
    for labels in ("words.npy", "words.txt"):
        found = loaded(tmp_path / name, str(tmp_path / labels))
        assert (found.y.tolist(), found.classes) == (CODES, NAMES)


def test_files_of_labels_that_do_not_fit(tmp_path):
    np.save(tmp_path / "t.npy", X)
    np.save(tmp_path / "square.npy", np.zeros((4, 4), dtype=int))
    (tmp_path / "y.txt").write_text("1\n2\n3\n")
    (tmp_path / "y.csv").write_text("1,2\n3,4\n")
    (tmp_path / "bad.npy").write_text("no array")
    for labels, message in [
        ("y.txt", "holds 3 labels, the data 4 samples"),
        ("y.csv", "several columns"),
        ("square.npy", r"shape \(4, 4\)"),
        ("bad.npy", "cannot be read as labels"),
        ("none.txt", "no file of labels"),
    ]:
        with pytest.raises(nsd.BadInput, match=message):
            load(str(tmp_path / "t.npy"), labels=str(tmp_path / labels))
    with pytest.raises(nsd.BadInput, match="one array, no 'kind'"):
        load(str(tmp_path / "t.npy"), labels="kind")
    np.savez(tmp_path / "t.npz", x=X, y=np.zeros(3))
    with pytest.raises(nsd.BadInput, match="holds 3 labels, the data 4 samples"):
        load(str(tmp_path / "t.npz"))


def test_sets_that_have_labels_take_no_others():
    for spec in ("digits", "gmm:n=10,p=20"):
        with pytest.raises(nsd.BadInput, match="own labels"):
            load(spec, labels="y.txt")


def test_marks_and_blanks_in_a_table_are_data_or_nothing(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n\nname,a,b\nC,1,2\nC#,3,4\nF#,5,6\n")
    found = load(str(path), standardise=False, labels="name")
    assert found.classes == ("C", "C#", "F#")
    assert found.x.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    path.write_text("# made by hand\n# a,b,kind\n1,2,0\n3,4,1\n")
    assert load(str(path), standardise=False, labels="kind").y.tolist() == [0, 1]
    assert load(str(path), standardise=False).x.shape == (2, 3)
    path.write_text("1,2\n#3,4\n5,6\n")
    with pytest.raises(nsd.BadInput, match="cannot be read"):
        load(str(path))
    path.write_text("10,1\n1_0,2\n")
    assert load(str(path), standardise=False, labels=0).classes == ("10", "1_0")
    np.savez(tmp_path / "large.npz", x=np.zeros((2, 2)), y=np.array([1, 2**63], dtype=np.uint64))
    with pytest.raises(nsd.BadInput, match="above the"):
        load(str(tmp_path / "large.npz"))


def test_some_of_the_digits():
    few = load("digits:n=100,classes=3/8,seed=1")
    assert few.x.shape == (100, 64)
    assert sorted(few.y.unique().tolist()) == [3, 8]
    for spec, says in [("digits:classes=3/3", "twice"), ("digits:n=9999", "there are 1797"), ("digits:m=1", "no setting")]:
        with pytest.raises(nsd.BadInput, match=says):
            load(spec)
    with pytest.raises(nsd.BadInput, match="arrays need no loading"):
        load(np.ones((3, 2)))


@pytest.mark.parametrize(
    ("y", "codes"),
    [
        (["b", "a", "b", "c"], [1, 0, 1, 2]),
        (torch.tensor([-1, 1, 1, -1]), [0, 1, 1, 0]),
        (torch.tensor([0, 2, 3, 2]), [0, 2, 3, 2]),  # class 1 is absent, and keeps its output
        (torch.tensor([10**6, 7, 7, 8]), [2, 0, 0, 1]),
        (np.array([True, False, False, True]), [1, 0, 0, 1]),
        (np.array([[5], [6], [6], [5]]), [0, 1, 1, 0]),
    ],
)
def test_classes_have_numbers(y, codes):
    found = Targets.numbered(y, 4)
    assert (found.y.tolist(), found.classes, found.flat) == (codes, max(codes) + 1, False)
    assert torch.equal(found.read().argmax(1), found.y)


def test_absent_classes_are_no_targets():
    targets = Targets.numbered(torch.tensor([0, 2, 0, 2, 2, 0]), 6).standardised()
    assert targets.shape == (6, 2)
    assert float(targets.square().mean(0).sum()) == pytest.approx(1.0)


def test_numbers_are_read_block_by_block():
    y = np.arange(8.0).reshape(4, 2)
    for found in (Targets.of(y, 4), Targets.numbered(y, 4)):
        assert (found.outputs, found.flat, found.classes) == (2, False, None)
        assert found.read(slice(1, 3)).tolist() == y[1:3].tolist()
    y[2, 1] = np.nan
    with pytest.raises(nsd.BadInput, match="row 2"):
        Targets.of(y, 4).read(slice(1, 3))
    with pytest.raises(nsd.BadInput, match="4 samples and y has shape"):
        Targets.of(y[:3], 4)
    with pytest.raises(nsd.BadInput, match="whole numbers from 0"):
        Targets.of(torch.tensor([-1, 1, 1, -1]), 4)


def test_targets_of_a_network():
    assert regression_targets(torch.tensor([1, 0]), 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert regression_targets(torch.tensor([1.0, 0.5]), 1).tolist() == [[1.0], [0.5]]
    for bad, says in [
        (torch.tensor([0, 3]), "class 3"),
        (torch.tensor([-1, 0]), "class -1"),
        (torch.ones(2, 2).long(), "shape"),
    ]:
        with pytest.raises(nsd.BadInput, match=says):
            class_indices(bad, 3)
    with pytest.raises(nsd.BadInput, match="must agree"):
        regression_targets(torch.ones(2, 2), 3)
