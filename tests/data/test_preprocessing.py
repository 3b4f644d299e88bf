"""Raw rows to inputs, outputs to answers."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import Preprocessing, Standardiser, load_split
from notsodeep.data.standardiser import once

X = torch.randn(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 20.0, 3e3]) + 500.0
OUT = torch.tensor([[0.1, 0.9, 0.0], [3.0, -1.0, 2.0], [0.0, 0.5, 0.6]])


def test_a_scale_of_each_feature():
    x = torch.cat([X, torch.full((60, 1), 7.0, dtype=torch.float64)], 1)  # one that never varies
    found = Standardiser.of(x, per_feature=True)
    scaled = found(x)
    assert nsd.tau0(scaled) == pytest.approx(1.0)
    assert torch.allclose(scaled[:, :3].square().mean(0), torch.full((3,), 1 / 3, dtype=torch.float64))
    assert not scaled[:, 3].any()
    assert torch.allclose(found.inverse(scaled), x)
    with pytest.raises(nsd.BadInput, match="positive"):
        Standardiser(found.mean, -found.scale)
    with pytest.raises(nsd.BadInput, match="expected \\(4,\\)"):
        Standardiser(found.mean, found.scale[:2])


def test_rows_that_are_standardised_already_stay():
    found = Standardiser.of(X)
    for rows in (X, X[:3], X.float()):
        scaled = once(found, rows)
        assert torch.allclose(scaled, found(rows.double()).to(rows), atol=1e-6)
        assert once(found, scaled) is scaled


@pytest.mark.parametrize(
    ("classes", "wanted"),
    [
        (("a", "b", "c"), ["b", "a", "c"]),
        ((6, 8, 1), [8, 6, 1]),
        (np.array([0.0, 1.0, 2.0]), [1, 0, 2]),
        ([True, 0.5, "x"], None),
    ],
)
def test_names_of_classes(classes, wanted):
    known = Preprocessing(classes=classes)
    again = Preprocessing.from_record(known.to_record())
    assert again.classes == known.classes
    answers = known.answers(OUT)
    assert wanted is None or answers.tolist() == wanted
    assert known.learnt(answers).tolist() == [1, 0, 2]


def test_numbers_in_their_own_units():
    known = Preprocessing(Standardiser.of(X, per_feature=True), targets=Standardiser(torch.tensor([150.0]), 77.0))
    y = torch.tensor([150.0, 227.0, 73.0])
    assert known.learnt(y)[:, 0].tolist() == [0.0, 1.0, -1.0]
    assert torch.equal(known.answers(known.learnt(y).float()), y)
    again = Preprocessing.from_record(known.to_record())
    assert torch.equal(again.inputs(X), known.inputs(X))


def test_labels_of_another_task():
    known = Preprocessing(classes=("a", "b"))
    assert known.learnt([1, 0], names=("b", "a")).tolist() == [0, 1]
    with pytest.raises(nsd.BadInput, match="hold c, which the network does not know; its classes are a, b"):
        known.learnt(["a", "c"])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Preprocessing(classes=("a", "a")), "called the same"),
        (lambda: Preprocessing(classes=()), "must name each output"),
        (lambda: Preprocessing(standardiser=3), "standardiser"),
        (lambda: Preprocessing(classes=("a", "b"), targets=Standardiser.of(X)), "one of both"),
        (lambda: Preprocessing.from_record([]), "cannot be read"),
        (lambda: Preprocessing.from_record({"standardiser": 1, "classes": None, "targets": None}), "mean and a scale"),
        (lambda: load_split("digits", standardise=False, per_feature=True), "scales each feature"),
    ],
)
def test_what_is_refused(make, says):
    with pytest.raises(nsd.BadInput, match=says):
        make()


def test_that_of_a_split():
    known = load_split("digits").preprocessing
    assert known.classes == tuple(range(10))
    assert known.standardiser.features == 64
    assert load_split("gmm:n=50,p=20").preprocessing.standardiser is None
