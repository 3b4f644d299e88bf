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
        wanted = {"isotropic": lambda c: c * torch.eye(p, dtype=torch.float64), "diagonal": torch.diag, "full": lambda c: c}[
            kind
        ](covariances[a])
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
    with pytest.raises(nsd.BadInput, match="n must be a whole number ≥ 1, got 0"):
        nsd.GaussianMixture.two_classes(9).sample(0)
    with pytest.raises(nsd.BadInput, match="do not fit"):
        nsd.GaussianMixture(torch.zeros(2, 4), [1.0, torch.ones(3)])
    with pytest.raises(nsd.BadInput, match="do not fit"):
        nsd.GaussianMixture(torch.zeros(2, 4), [1.0, torch.ones(4), torch.eye(4)])
    with pytest.raises(nsd.BadInput, match="negative"):
        nsd.GaussianMixture(torch.zeros(2, 4), [1.0, -torch.ones(4)])
    with pytest.raises(nsd.BadInput, match="not an array of real numbers"):
        nsd.GaussianMixture(torch.zeros(2, 4), ["wide", 1.0])


def test_each_class_may_have_its_own_form():
    p, g = 5, seeded(7)
    root = torch.randn(p, p, dtype=torch.float64, generator=g)
    forms = [0.7, torch.rand(p, dtype=torch.float64, generator=g), root @ root.T]
    means = torch.randn(3, p, dtype=torch.float64, generator=g)
    mixed = nsd.GaussianMixture(means, forms)
    dense = nsd.GaussianMixture(means, torch.stack([0.7 * torch.eye(p, dtype=torch.float64), forms[1].diag(), forms[2]]))
    assert [form.ndim for form in mixed.covariances] == [0, 1, 2]
    assert torch.allclose(mixed.traces(), dense.traces())
    assert torch.allclose(mixed.trace_products(), dense.trace_products())
    products = torch.einsum("aij,bji->ab", dense.covariances, dense.covariances)
    assert torch.allclose(dense.trace_products(), products)
    x, y = mixed.sample(10, seeded(1))
    x_dense, y_dense = dense.sample(10, seeded(1))
    assert torch.allclose(x, x_dense)
    assert torch.equal(y, y_dense)
    statistics = [nsd.MixtureStatistics.from_mixture(mixture, x, y) for mixture in (mixed, dense)]
    assert torch.allclose(statistics[0].T, statistics[1].T)
    assert torch.allclose(statistics[0].psi, statistics[1].psi)


def test_a_list_of_one_form_is_its_tensor():
    vectors = [torch.ones(4), 2 * torch.ones(4)]
    assert nsd.GaussianMixture(torch.zeros(2, 4), vectors).covariances.shape == (2, 4)
    assert nsd.GaussianMixture(torch.zeros(2, 4), [1, 2]).covariances.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", ["isotropic", "diagonal", "mixed"])
def test_many_features_never_make_a_square_matrix(kind):
    """p × p would be 320 GB."""
    p = 200_000
    covariances = {
        "isotropic": torch.tensor([1.0, 4.0]),
        "diagonal": torch.stack([torch.ones(p), torch.full((p,), 4.0)]),
        "mixed": [1.0, torch.full((p,), 4.0)],
    }[kind]
    mixture = nsd.GaussianMixture(torch.zeros(2, p), covariances)
    x, y = mixture.sample(4, seeded(0))
    assert x.square().sum(1).tolist() == pytest.approx([1.0, 1.0, 4.0, 4.0], rel=0.02)
    assert y.tolist() == [0, 0, 1, 1]
    assert mixture.traces().tolist() == [p, 4 * p]
    assert mixture.trace_products().tolist() == [[p, 4 * p], [4 * p, 16 * p]]
