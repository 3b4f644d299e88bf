"""The readout by plain SGD: against torch's own optimiser, with a factor on the features, and on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from notsodeep.errors import BadInput
from notsodeep.papers.ling2024.l5_width import SGD, sgd_readouts

SETTINGS = SGD(rate=0.5, batch=32, epochs=3)


def task(networks: int = 2, n: int = 150, width: int = 20) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(4, (n,), generator=draw)
    return torch.randn(networks, n, width, generator=draw) + functional.one_hot(y, width), y


def by_torch(features: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same with nn.Linear and torch.optim.SGD."""
    n, width = features.shape
    bound = width**-0.5
    first = torch.empty(width + 1, 4).uniform_(-bound, bound, generator=generator)
    layer = torch.nn.Linear(width, 4)
    with torch.no_grad():
        layer.weight.copy_(first[:width].T)
        layer.bias.copy_(first[width])
    optimiser = torch.optim.SGD(layer.parameters(), lr=SETTINGS.rate)
    for _ in range(SETTINGS.epochs):
        for chosen in torch.randperm(n, generator=generator).split(SETTINGS.batch):
            optimiser.zero_grad()
            functional.cross_entropy(layer(features[chosen]), y[chosen]).backward()
            optimiser.step()
    return layer.weight.detach(), layer.bias.detach()


def test_it_is_torch_sgd() -> None:
    features, y = task()
    found = sgd_readouts(features, y, 4, SETTINGS, torch.Generator().manual_seed(1))
    for z, readout in zip(features, found, strict=True):
        weight, bias = by_torch(z, y, torch.Generator().manual_seed(1))
        torch.testing.assert_close(readout.weight, weight, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(readout.bias, bias, rtol=1e-5, atol=1e-6)


def test_a_scale_is_what_scaled_features_give() -> None:
    features, y = task(networks=1)
    (by_scale,) = sgd_readouts(features, y, 4, SETTINGS, torch.Generator().manual_seed(1), scales=[1.7])
    (by_hand,) = sgd_readouts(1.7 * features, y, 4, SETTINGS, torch.Generator().manual_seed(1))
    torch.testing.assert_close(by_scale(features[0]), by_hand(1.7 * features[0]), rtol=1e-5, atol=1e-5)
    (plain,) = sgd_readouts(features, y, 4, SETTINGS, torch.Generator().manual_seed(1))
    assert not torch.allclose(plain(features[0]), by_scale(features[0]), rtol=1e-2)


def test_networks_do_not_meet() -> None:
    features, y = task(networks=3)
    together = sgd_readouts(features, y, 4, SETTINGS, torch.Generator().manual_seed(1))
    (alone,) = sgd_readouts(features[1:2], y, 4, SETTINGS, torch.Generator().manual_seed(1))
    torch.testing.assert_close(together[1].weight, alone.weight, rtol=1e-5, atol=1e-6)


def test_labels_must_be_as_many() -> None:
    features, y = task()
    with pytest.raises(BadInput, match="150 samples and 149 labels"):
        sgd_readouts(features, y[1:], 4, SETTINGS, torch.Generator())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_replayed_epoch_is_an_epoch() -> None:
    features, y = task(n=3000, width=64)
    here = sgd_readouts(features, y, 4, SETTINGS, torch.Generator().manual_seed(1), scales=[1.0, 1.7])
    there = sgd_readouts(features.cuda(), y.cuda(), 4, SETTINGS, torch.Generator().manual_seed(1), scales=[1.0, 1.7])
    for ours, theirs in zip(here, there, strict=True):
        torch.testing.assert_close(theirs.weight.cpu(), ours.weight, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(theirs.bias.cpu(), ours.bias, rtol=1e-4, atol=1e-5)
