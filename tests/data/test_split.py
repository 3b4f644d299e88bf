"""Two parts of a data set, in the training set's units."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import Standardiser, load, load_split


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
