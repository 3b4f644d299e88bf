"""The image sets, with the real files where $NOTSODEEP_DATA has them."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import images, load, load_split
from notsodeep.data.image_sets import IMAGE_SETS
from tests.data.conftest import md5, real

COUNTS_MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.fixture(scope="module")
def mnist():
    real("mnist/train-images-idx3-ubyte.gz")
    return images("mnist")


def test_mnist(mnist):
    x, y = mnist
    assert (x.shape, x.dtype, y.dtype) == ((60_000, 784), torch.float32, torch.int64)
    assert y.bincount().tolist() == COUNTS_MNIST
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    assert float(x.mean()) == pytest.approx(0.1306604, rel=1e-4)  # the published mean of its pixels
    assert x[0].reshape(28, 28)[5, 12:20].mul(255).round().tolist() == [3, 18, 18, 18, 126, 136, 175, 26]


@pytest.mark.parametrize(
    ("name", "split", "p", "counts"),
    [
        ("mnist", "test", 784, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        ("fashion-mnist", "train", 784, [6000] * 10),
        ("fashion_mnist", "test", 784, [1000] * 10),
        ("cifar10", "test", 3072, [1000] * 10),
        ("cifar10-vgg19", "test", 2048, [1000] * 10),
    ],
)
def test_sets(name, split, p, counts):
    real(IMAGE_SETS[name.replace("_", "-")].files[split][0].path)
    x, y = images(name, split)
    assert (x.shape, x.dtype) == ((sum(counts), p), torch.float32)
    assert y.bincount().tolist() == counts
    if p != 2048:
        assert float(x.max()) == 1.0


def test_training_features():
    with np.load(real("cifar10-vgg19/features.npz")) as archive:
        stored = archive["y_train"]
    x, y = images("cifar10-vgg19")
    assert x.shape == (50_000, 2048)
    assert y.tolist() == stored.tolist()
    assert float((x[:1000] != 0).float().mean()) == pytest.approx(0.1, abs=0.03)
    assert torch.equal(x[:1000], x[:1000].half().float())


@pytest.mark.usefixtures("offline")
def test_cifar_batches():
    real("cifar10/cifar-10-batches-py/data_batch_1")
    real("cifar10/cifar-10-batches-py/data_batch_2")
    second, y2 = images("cifar10", batches=[2])
    x, y = images("cifar10", batches=[1, 2])
    assert x.shape == (20_000, 3072)
    assert torch.equal(x[10_000:], second)
    assert y[:5].tolist() == [6, 9, 9, 4, 1]
    assert torch.equal(y[10_000:], y2)


@pytest.mark.usefixtures("folders", "offline")
def test_missing_batches_are_named():
    files = IMAGE_SETS["cifar10"].files["train"]
    with pytest.raises(nsd.BadInput) as error:
        images("cifar10")
    assert all(file.path in str(error.value) and file.md5 in str(error.value) for file in files)
    assert "batches=" not in str(error.value)


@pytest.mark.usefixtures("offline")
def test_some_missing_batches_are_named_with_a_hint(folders, monkeypatch):
    files = [
        replace(file, md5=md5(file.path.encode()) if i in (0, 3) else file.md5)
        for i, file in enumerate(IMAGE_SETS["cifar10"].files["train"])
    ]
    monkeypatch.setitem(IMAGE_SETS, "cifar10", replace(IMAGE_SETS["cifar10"], files={"train": tuple(files), "test": ()}))
    for i in (0, 3):
        path = folders[0] / files[i].path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[i].path.encode())
    with pytest.raises(nsd.BadInput, match="needs 5 files, and 3 are not there") as error:
        images("cifar10")
    assert "batches=1/4" in str(error.value)
    assert [path[-1] for path in error.value.missing] == ["2", "3", "5"]
    with pytest.raises(nsd.BadInput, match="needs 2 files, and 1 is not there") as error:
        images("cifar10", batches=[1, 2])
    assert "batches=" not in str(error.value)


@pytest.mark.usefixtures("folders")
def test_missing_features_say_how_to_make_them():
    with pytest.raises(nsd.BadInput, match="notsodeep data features cifar10"):
        images("cifar10-vgg19")


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_file_is_named(tmp_path, monkeypatch, damage):
    labels, pictures = (real(f"mnist/t10k-{part}-ubyte.gz") for part in ("labels-idx1", "images-idx3"))
    (tmp_path / "mnist").mkdir()
    copy = tmp_path / "mnist" / labels.name
    content = bytearray(labels.read_bytes())
    if damage == "flip":
        content[2000] ^= 1
    copy.write_bytes(content if damage == "flip" else content[:-1])
    shutil.copy(pictures, tmp_path / "mnist" / pictures.name)
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    with pytest.raises(nsd.BadInput, match=r"t10k-labels-idx1-ubyte\.gz' is damaged") as error:
        images("mnist", "test")
    assert error.value.expected == "ec29112dd5afa0611ce80d1b7f02629c"
    copy.write_bytes(labels.read_bytes())
    assert images("mnist", "test")[0].shape == (10_000, 784)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("minst",), "no image set 'minst'"),
        (("mnist", "validation"), "no split"),
        (("mnist", "train", [1]), "not in batches"),
        (("cifar10", "test", [1]), "not in batches"),
        (("cifar10", "train", [0, 1]), "1 … 5"),
        (("cifar10", "train", [1, 1]), "each once"),
        (("cifar10", "train", []), "1 … 5"),
    ],
)
def test_bad_requests(arguments, message):
    with pytest.raises(nsd.BadInput, match=message):
        images(*arguments)


def test_load_takes_classes_and_a_random_subset(mnist):
    x, y = mnist
    found = load("mnist:n=500,classes=6/8,seed=3", standardise=False)
    assert found.x.shape == (500, 784)
    assert set(found.y.tolist()) == {6, 8}
    assert (found.x.dtype, found.classes[6]) == (torch.float32, "6")
    assert "MNIST (train), classes 6 and 8, drawn with seed 3, 500 samples × 784 features" in found.description
    kept = torch.isin(y, torch.tensor([6, 8]))
    rows = torch.randperm(int(kept.sum()), generator=torch.Generator().manual_seed(3))[:500]
    assert torch.equal(found.x, x[kept][rows])
    assert torch.equal(found.y, y[kept][rows])


def test_load_split_uses_the_sets_own_test_set():
    real("mnist/train-images-idx3-ubyte.gz")
    split = load_split("mnist:n=1000,classes=6/8")
    assert nsd.tau0(split.train.x) == pytest.approx(1.0, abs=1e-5)
    assert split.test.x.shape == (958 + 974, 784)
    raw = load_split("mnist:n=1000,classes=6/8", standardise=False)
    mean, x = raw.train.x.double().mean(0), raw.train.x.double()
    scale = (x - mean).square().sum(1).mean().sqrt()
    assert torch.allclose(split.test.x.double(), (raw.test.x.double() - mean) / scale, atol=1e-6)
    assert split.test.y.bincount()[[6, 8]].tolist() == [958, 974]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mnist:m=3", "no setting 'm'"),
        ("mnist:batches=1", "no setting 'batches'"),
        ("mnist:n=ten", "not a number"),
        ("mnist:n=", "no value"),
        ("mnist:classes=12", "no class 12"),
        ("mnist:classes=a/b", "not a number"),
        ("mnist:split=all", "no split"),
        ("cifar10:batches=7", "1 … 5"),
    ],
)
def test_bad_settings(spec, message):
    with pytest.raises(nsd.BadInput, match=message):
        load(spec)


def test_more_than_there_is():
    real("mnist/t10k-images-idx3-ubyte.gz")
    for n in (10_001, 0):
        with pytest.raises(nsd.BadInput, match=f"n = {n} samples; there are 10000"):
            load(f"mnist:split=test,n={n}")


def test_load_split_refuses_one_split_and_labels():
    with pytest.raises(nsd.BadInput, match="leave split=test out"):
        load_split("mnist:split=test")
    with pytest.raises(nsd.BadInput, match="own labels"):
        load("mnist", labels="y.txt")
