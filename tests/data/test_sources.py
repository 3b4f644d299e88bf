"""Data by one line of text, whole or split, and the errors for bad files."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import Standardiser, load, load_split

X = np.arange(12.0).reshape(4, 3) ** 1.5


@pytest.fixture
def files(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "a.npz", x=X, y=np.arange(4))
    np.savez(tmp_path / "one.npz", anything=X)
    np.savetxt(tmp_path / "a.csv", X, delimiter=",", header="p,q,r", comments="")
    np.savetxt(tmp_path / "bare.csv", X, delimiter=",")
    parquet.write_table(pyarrow.table({name: X[:, i] for i, name in enumerate("pqr")}), tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "one.npz", "a.csv", "bare.csv", "a.parquet"])
def test_files_are_read_as_they_are(files, name):
    assert np.allclose(load(str(files / name), standardise=False).x.numpy(), X)


def test_standardised_unless_told(files):
    x = load(str(files / "a.npy")).x
    assert torch.allclose(x.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-14)
    assert nsd.tau0(x) == pytest.approx(1.0)
    assert "centred and scaled" in load(str(files / "a.npy")).description


def test_mixture_is_used_as_drawn():
    drawn = load("gmm:n=50,p=20,seed=3")
    assert drawn.x.shape == (50, 20)
    assert torch.equal(drawn.x, load("gmm:n=50,p=20,seed=3").x)
    assert drawn.y.bincount().tolist() == [25, 25]


def test_digits():
    digits = load("digits")
    assert digits.x.shape == (1797, 64)
    assert nsd.tau0(digits.x) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "missing.npy", "no file"),
        (b"not an array", "bad.npy", "cannot be read"),
        (b"", "empty.npy", "cannot be read"),
        (b"not a zip", "bad.npz", "cannot be read"),
        (b"a,b\n1,two\n", "words.csv", "cannot be read"),
        (b"1,2\n3\n", "ragged.csv", "cannot be read"),
        (b"1,nan\n2,3\n", "nan.csv", "NaN or infinity in 1 of 2 rows"),
        (b"PAR1 no", "bad.parquet", "cannot be read"),
        (b"x", "data.xyz", "not data that we know"),
    ],
)
def test_bad_files(tmp_path, content, name, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(nsd.BadInput, match=message):
        load(str(path))


def test_arrays_that_are_no_samples(tmp_path):
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "two.npz", a=X, b=X)
    np.save(tmp_path / "same.npy", np.ones((5, 2)))
    for name, message in [
        ("cube.npy", "shape"),
        ("text.npy", "not numbers"),
        ("objects.npy", "cannot be read"),
        ("two.npz", "name the samples x"),
        ("same.npy", "samples are equal"),
    ]:
        with pytest.raises(nsd.BadInput, match=message):
            load(str(tmp_path / name))


@pytest.mark.parametrize("spec", ["gmm:n=ten", "gmm:m=3", "gmm:n=0,p=20", "gmm:p=3", "gmm:n=-5"])
def test_bad_mixture_settings(spec):
    with pytest.raises(nsd.BadInput):
        load(spec)


def test_every_sample_is_in_one_part(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.arange(30.0).reshape(10, 3), y=np.arange(10))
    split = load_split(str(tmp_path / "t.npz"), standardise=False, held_out=0.3)
    assert (len(split.train.x), len(split.test.x)) == (7, 3)
    assert sorted(split.train.y.tolist() + split.test.y.tolist()) == list(range(10))
    assert split.test.x[:, 0].tolist() == [3.0 * k for k in split.test.y.tolist()]


def test_the_training_sets_statistics_alone():
    raw, split = load_split("digits", standardise=False), load_split("digits")
    assert nsd.tau0(split.train.x) == pytest.approx(1.0)
    assert torch.allclose(split.train.x.mean(0), torch.zeros(64, dtype=torch.float64), atol=1e-13)
    assert torch.equal(split.test.x, Standardiser.of(raw.train.x)(raw.test.x))
    assert float(split.test.x.mean(0).abs().max()) > 1e-4
    assert "training set's mean" in split.test.description


def test_seeds():
    a, b, c = load_split("digits"), load_split("digits"), load_split("digits", seed=1)
    assert torch.equal(a.test.x, b.test.x)
    assert not torch.equal(a.test.y, c.test.y)


def test_a_mixture_stays_as_drawn():
    split = load_split("gmm:n=50,p=20")
    whole = load("gmm:n=50,p=20").x
    assert len(split.test.x) == 10
    assert torch.equal(torch.cat([split.test.x, split.train.x]).sort(0).values, whole.sort(0).values)
    assert set(split.test.y.tolist()) == {0, 1}


def test_words_and_labels(tmp_path):
    (tmp_path / "t.csv").write_text("p,kind\n1,b\n2,a\n4,b\n")
    split = load_split(str(tmp_path / "t.csv"), labels="kind", held_out=0.01)
    assert (len(split.test.x), split.test.classes, split.train.classes) == (1, ("a", "b"), ("a", "b"))


def test_bad_shares(tmp_path):
    for share in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(nsd.BadInput, match="between 0 and 1"):
            load_split("digits", held_out=share)
    np.save(tmp_path / "one.npy", np.ones((1, 2)))
    with pytest.raises(nsd.BadInput, match="at least two"):
        load_split(str(tmp_path / "one.npy"))
