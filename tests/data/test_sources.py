"""Data by one line of text, and what bad files are told."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data.sources import load

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
