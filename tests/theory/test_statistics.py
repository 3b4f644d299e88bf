"""τ0, t, T, ψ and J: exact for a known mixture, estimated from labels, or without."""

import math

import pytest
import torch

import notsodeep as nsd


@pytest.fixture(scope="module")
def drawn():
    mixture = nsd.GaussianMixture.two_classes(400)
    return mixture, *mixture.sample(1000, torch.Generator().manual_seed(2))


def test_exact_statistics_by_hand(drawn):
    mixture, x, y = drawn
    s = nsd.MixtureStatistics.from_mixture(mixture, x, y)
    first, second = 1.0, 1.0 + 8.0 / 20.0
    assert s.tau0**2 == pytest.approx(0.5 * (first + second))
    assert s.t.tolist() == pytest.approx([math.sqrt(400) * (first - second) / 2, math.sqrt(400) * (second - first) / 2])
    assert s.T.flatten().tolist() == pytest.approx([first**2, first * second, first * second, second**2])
    assert s.J.sum(0).tolist() == [500, 500]
    noise = x - mixture.means[y] / 20.0
    assert torch.allclose(s.psi, noise.square().sum(1) - torch.tensor([first, second], dtype=torch.float64)[y])


def test_estimates_from_labels_are_close(drawn):
    mixture, x, y = drawn
    exact, found = nsd.MixtureStatistics.from_mixture(mixture, x, y), nsd.MixtureStatistics.from_labels(x, y)
    assert found.tau0 == pytest.approx(exact.tau0, rel=5e-3)
    assert torch.allclose(found.t, exact.t, atol=0.2)
    assert torch.allclose(found.T, exact.T, rtol=2e-2)
    # An estimated mean moves ‖w_i‖² by about 2√(tr C²/(p² n_a)) = 6e-3; ψ itself is ten times that.
    assert float((found.psi - exact.psi).square().mean().sqrt()) < 1e-2


def test_estimates_do_not_depend_on_which_product_is_smaller(drawn):
    """p × p sums for n > p, n_a × n_b sums for n < p."""
    _, x, y = drawn
    wide = nsd.MixtureStatistics.from_labels(x[::5], y[::5])  # 100 samples a class, p = 400
    groups = [x[::5][y[::5] == a] for a in range(2)]
    noise = [(g - g.mean(0)) * (len(g) / (len(g) - 1)) ** 0.5 for g in groups]
    assert float(wide.T[0, 1]) == pytest.approx(float(400 * (noise[0] @ noise[1].T).square().mean()), rel=1e-10)
    tall = nsd.MixtureStatistics.from_labels(x[:, :50], y)
    narrow = [x[:, :50][y == a] for a in range(2)]
    noise = [(g - g.mean(0)) * (len(g) / (len(g) - 1)) ** 0.5 for g in narrow]
    squares = (noise[0] @ noise[0].T).square()
    n = len(squares)
    assert float(tall.T[0, 0]) == pytest.approx(float(50 * (squares.sum() - squares.diagonal().sum()) / (n * n - n)), rel=1e-10)


def test_labels_may_be_anything(drawn):
    _, x, y = drawn
    words = ["eight" if label else "six" for label in y.tolist()]
    a, b = nsd.MixtureStatistics.from_labels(x, y), nsd.MixtureStatistics.from_labels(x, words)
    assert sorted(a.t.tolist()) == pytest.approx(sorted(b.t.tolist()))


def test_without_labels(drawn):
    _, x, _ = drawn
    s = nsd.MixtureStatistics.from_data(x)
    assert s.t.tolist() == pytest.approx([0.0], abs=1e-12)
    assert s.J.shape == (1000, 1)


def test_tau0_is_the_root_mean_square_norm():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert nsd.tau0(x) == pytest.approx(math.sqrt(12.5))
    assert nsd.tau0(x.numpy()) == pytest.approx(math.sqrt(12.5))


def test_bad_labels(drawn):
    mixture, x, y = drawn
    with pytest.raises(nsd.BadInput, match="one class only"):
        nsd.MixtureStatistics.from_labels(x, torch.zeros(1000))
    with pytest.raises(nsd.BadInput, match="one label per row"):
        nsd.MixtureStatistics.from_labels(x, y[:10])
    with pytest.raises(nsd.BadInput, match="NaN"):
        nsd.MixtureStatistics.from_labels(x, torch.full((1000,), float("nan")))
    with pytest.raises(nsd.BadInput, match="needs at least two"):
        nsd.MixtureStatistics.from_labels(x[:3], [0, 0, 1])
    with pytest.raises(nsd.BadInput, match="classes 0 … 1"):
        nsd.MixtureStatistics.from_mixture(mixture, x, y + 5)
    with pytest.raises(nsd.BadInput, match="features"):
        nsd.MixtureStatistics.from_mixture(mixture, x[:, :10], y)
    with pytest.raises(nsd.BadInput, match="τ0 = 0"):
        nsd.tau0(torch.zeros(3, 2))
