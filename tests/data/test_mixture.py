"""Gaussian mixtures: what is drawn has the moments that were asked for."""

import pytest
import torch

import notsodeep as nsd


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "full"])
def test_samples_have_the_means_and_covariances(kind):
    p, n = 6, 60_000
    g = seeded(0)
    means = torch.randn(2, p, dtype=torch.float64, generator=g)
    root = torch.randn(2, p, p, dtype=torch.float64, generator=g)
    full = root @ root.transpose(1, 2)
    covariances = {
        "isotropic": torch.tensor([0.5, 2.0], dtype=torch.float64),
        "diagonal": torch.rand(2, p, dtype=torch.float64, generator=g),
        "full": full,
    }[kind]
    mixture = nsd.GaussianMixture(means, covariances)
    x, y = mixture.sample(n, seeded(1))
    for a in range(2):
        rows = x[y == a] * p**0.5
        wanted = {
            "isotropic": lambda c: c * torch.eye(p, dtype=torch.float64),
            "diagonal": torch.diag,
            "full": lambda c: c,
        }[kind](covariances[a])
        spread = float(wanted.diagonal().max())
        assert torch.allclose(rows.mean(0), means[a], atol=6 * (spread / (n / 2)) ** 0.5)
        assert torch.allclose(torch.cov(rows.T), wanted, atol=8 * spread / (n / 2) ** 0.5)


def test_balanced_and_reproducible():
    mixture = nsd.GaussianMixture.two_classes(20)
    x, y = mixture.sample(101, seeded(3))
    assert y.bincount().tolist() == [51, 50]
    assert torch.equal(x, mixture.sample(101, seeded(3))[0])
    assert not torch.equal(x, mixture.sample(101, seeded(4))[0])


def test_the_papers_mixture():
    mixture = nsd.GaussianMixture.two_classes(64)
    assert mixture.means.nonzero().tolist() == [[0, 0], [1, 8]]
    assert mixture.covariances.tolist() == [1.0, 2.0]


def test_bad_mixtures():
    with pytest.raises(nsd.BadInput, match="p ≥ 9"):
        nsd.GaussianMixture.two_classes(5)
    with pytest.raises(nsd.BadInput, match="do not fit"):
        nsd.GaussianMixture(torch.zeros(2, 4), torch.ones(3))
    with pytest.raises(nsd.BadInput, match="negative"):
        nsd.GaussianMixture(torch.zeros(2, 4), torch.tensor([1.0, -1.0]))
    with pytest.raises(nsd.BadInput, match="n = 0"):
        nsd.GaussianMixture.two_classes(9).sample(0)
