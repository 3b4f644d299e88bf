"""VGG-19 features, with a stand-in for the network where torchvision is not needed."""

import builtins

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import images, vgg_features as features
from notsodeep.data.vgg_features import make_features, vgg19_features


class StandIn(torch.nn.Module):
    """Keeps what it is given; answers (b, 512, 2, 2)."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return x.flatten(1)[:, :2048].reshape(-1, 512, 2, 2)


def test_pictures_are_normalised_and_batched():
    x = torch.rand(5, 3072, generator=torch.Generator().manual_seed(0))
    network = StandIn()
    result = vgg19_features(x, network, batch=2, progress=False)
    assert (result.shape, result.dtype) == ((5, 2048), torch.float16)
    assert [len(part) for part in network.seen] == [2, 2, 1]
    seen = torch.cat(network.seen)
    assert seen.shape == (5, 3, 32, 32)
    blue = (x.reshape(5, 3, 32, 32)[:, 2] - 0.406) / 0.225
    assert torch.allclose(seen[:, 2], blue, atol=1e-6)
    assert torch.equal(result, vgg19_features(x.reshape(5, 3, 32, 32), network, progress=False))


def test_bad_pictures():
    for x, message in [
        (torch.zeros(2, 784), "shape"),
        (torch.full((2, 3072), 255.0), "divide bytes by 255"),
        (torch.full((2, 3072), float("nan")), "nan"),
        (torch.zeros(0, 3072), "shape"),
    ]:
        with pytest.raises(nsd.BadInput, match=message):
            vgg19_features(x, StandIn(), progress=False)
    with pytest.raises(nsd.BadInput, match="not finite in float16"):
        vgg19_features(torch.zeros(2, 3072), lambda x: x + 1e6, progress=False)
    with pytest.raises(nsd.BadInput, match="batch must be a whole number"):
        vgg19_features(torch.zeros(2, 3072), StandIn(), batch=0, progress=False)


def test_without_torchvision(monkeypatch):
    plain = builtins.__import__

    def without(name, *rest):
        if name.startswith("torchvision"):
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(nsd.BadInput, match=r"pip install 'notsodeep\[vision\]'"):
        vgg19_features(torch.zeros(2, 3072))


def test_the_cut_is_after_the_16th_convolution(monkeypatch):
    models = pytest.importorskip("torchvision").models
    whole = models.vgg19(weights=None)
    monkeypatch.setattr(models, "vgg19", lambda **_: whole)  # its weights are a download
    cut = features.vgg19()
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in cut) == 16
    assert isinstance(cut[-1], torch.nn.ReLU)
    assert cut(torch.zeros(2, 3, 32, 32)).shape == (2, 512, 2, 2)


def test_made_features_are_found_and_checked(folders, monkeypatch):
    def pictures(_, split):
        g = torch.Generator().manual_seed(len(split))
        n = {"train": 6, "test": 3}[split]
        return torch.rand(n, 3072, generator=g), torch.arange(n)

    monkeypatch.setattr(features, "load_images", pictures)
    path = make_features(network=StandIn(), progress=False)
    assert path == folders[1] / "cifar10-vgg19" / "features.npz"
    assert sorted(file.name for file in path.parent.iterdir()) == ["features.npz", "features.npz.md5"]
    x, y = images("cifar10-vgg19", "test")
    assert x.shape == (3, 2048)
    assert torch.equal(x, vgg19_features(pictures("", "test")[0], StandIn(), progress=False).float())
    assert y.tolist() == [0, 1, 2]
    with np.load(path) as archive:
        assert archive["x_train"].dtype == np.float16
        assert archive["y_train"].shape == (6,)
    elsewhere = make_features(folders[0], network=StandIn(), progress=False)
    assert elsewhere == folders[0] / "cifar10-vgg19" / "features.npz"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    elsewhere.unlink()
    with pytest.raises(nsd.BadInput, match="notsodeep data features cifar10"):
        images("cifar10-vgg19", "test")
