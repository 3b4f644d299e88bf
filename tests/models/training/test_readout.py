"""Ridge readouts in closed form, and the ridge by leaving samples out."""

import pytest
import torch
from torch.nn import functional

import notsodeep as nsd
from notsodeep.models.training.objective import Batches
from notsodeep.models.training.readout import RIDGES, best_readout, fit_readout, ridge_readout, scale_to_logits


def draw(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def solved(z, t, level, intercept):
    """The dense ridge solution, weight (m, K), with the means that it is about."""
    z_mean, t_mean = (z.mean(0), t.mean(0)) if intercept else (torch.zeros_like(z[0]), torch.zeros_like(t[0]))
    centred = z - z_mean
    gram = centred.T @ centred + level * torch.eye(z.shape[1], dtype=z.dtype)
    return torch.linalg.solve(gram, centred.T @ (t - t_mean)), z_mean, t_mean


@pytest.mark.parametrize("ridge", [1e-6, 0.1])
def test_the_ridge_readout_is_the_dense_solution(ridge):
    z, t = draw(2500, 7) + 0.5, draw(2500, 3, 1) - 2.0
    found = best_readout(lambda rows: rows, z, t, [ridge])
    level = ridge * float((z - z.mean(0)).square().sum(0).mean())
    weight, z_mean, t_mean = solved(z, t, level, True)
    torch.testing.assert_close(found.weight, weight.T, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found(z), (z - z_mean) @ weight + t_mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("shape", [(40, 12), (20, 30)])
def test_the_error_of_leaving_out_is_that_of_fitting_without(shape, intercept):
    n, m = shape
    z = draw(n, m) + 0.5
    t = torch.tanh(z[:, :2]) + 0.3 * draw(n, 2, 1)
    stream = lambda: zip(z.split(7), t.split(7), strict=True)  # noqa: E731
    errors = {}
    for ridge in RIDGES[6:]:
        centre = z.mean(0) if intercept else 0.0
        level = ridge * float((z - centre).square().sum(0).mean())
        missed = []
        for i in range(n):
            kept = torch.arange(n) != i
            weight, z_mean, t_mean = solved(z[kept], t[kept], level, intercept)
            missed.append((z[i] - z_mean) @ weight + t_mean - t[i])
        errors[ridge] = float(torch.stack(missed).square().mean().sqrt())
    found = ridge_readout(stream, RIDGES[6:], intercept)
    assert found.ridge == min(errors, key=errors.get)
    assert found.left_out_error == pytest.approx(min(errors.values()), rel=1e-8)


def test_noise_is_shrunk_and_a_clear_signal_is_not():
    z = draw(300, 50)
    assert best_readout(lambda rows: rows, z, z[:, :1] + 30.0 * draw(300, 1, 1)).ridge >= 1.0
    assert best_readout(lambda rows: rows, z, z[:, :1]).ridge == RIDGES[0]


@pytest.mark.parametrize("offset", [1e4, 1e7])
def test_samples_far_from_zero_are_read_as_well(offset):
    z, t = draw(60, 5), draw(60, 1, 1)
    near, far = (best_readout(lambda rows: rows, at, t + at.mean() / 7.0) for at in (z, z + offset))
    assert far.ridge == near.ridge
    assert far.left_out_error == pytest.approx(near.left_out_error, rel=1e-6)
    torch.testing.assert_close(far.weight, near.weight, rtol=1e-6, atol=1e-8)


def test_ridges_in_an_array():
    z, t = draw(60, 5), draw(60, 1, 1)
    given = torch.logspace(-6, 0, 4, dtype=torch.float64)
    expected = best_readout(lambda rows: rows, z, t, given.tolist()).ridge
    assert best_readout(lambda rows: rows, z, t, given).ridge == expected
    assert best_readout(lambda rows: rows, z, t, given.numpy()).ridge == expected


def test_equal_samples_are_read_as_their_mean():
    found = best_readout(lambda rows: rows, torch.ones(20, 3), draw(20, 1).float())
    assert not bool(found.weight.any())
    torch.testing.assert_close(found.bias, draw(20, 1).float().mean(0))


def test_features_of_all_samples_are_never_held_at_once():
    largest = 0

    def features(rows):
        nonlocal largest
        largest = max(largest, len(rows))
        return rows

    best_readout(features, draw(5000, 4), draw(5000, 1))
    assert largest == 1024


@pytest.mark.parametrize("bias", [True, False])
def test_fit_readout_sets_the_module(bias):
    enn = nsd.ENN(nsd.Explicit("tanh"), 5, 32, 3, readout_bias=bias, dtype=torch.float64)
    x, y = draw(200, 5), torch.arange(200) % 3
    found = fit_readout(enn, Batches(x, y, 64))
    one_hot = functional.one_hot(y, 3).double()
    z = enn.features(x).detach()
    level = found.ridge * float((z - (z.mean(0) if bias else 0.0)).square().sum(0).mean())
    weight, z_mean, t_mean = solved(z, one_hot, level, bias)
    torch.testing.assert_close(enn(x), (z - z_mean) @ weight + t_mean, rtol=1e-7, atol=1e-9)


def test_scaled_outputs_have_a_smaller_cross_entropy():
    enn = nsd.ENN(nsd.Explicit("tanh"), 5, 32, 3, readout_bias=True, dtype=torch.float64)
    x = draw(200, 5)
    y = x[:, :3].argmax(1)
    fit_readout(enn, Batches(x, y))
    before, answers = functional.cross_entropy(enn(x), y).item(), enn(x).argmax(1)
    factor = scale_to_logits(enn, Batches(x, y))
    assert factor > 1.0
    assert functional.cross_entropy(enn(x), y).item() < 0.8 * before
    assert torch.equal(enn(x).argmax(1), answers)


def test_bad_input():
    with pytest.raises(nsd.BadInput, match="2500 samples and 4 targets"):
        best_readout(lambda rows: rows, draw(2500, 2), draw(4, 1))
    with pytest.raises(nsd.BadInput, match="200 samples at first and 0 the second time"):
        fit_readout(nsd.ENN(nsd.Explicit("tanh"), 5, 8, 1), iter([(draw(200, 5).float(), draw(200, 1).float())]))
    with pytest.raises(nsd.BadInput, match="NaN or infinity"):
        best_readout(lambda rows: rows, draw(20, 2), draw(20, 1) / 0.0)
    with pytest.raises(nsd.BadInput, match="at least one"):
        best_readout(lambda rows: rows, draw(20, 2), draw(20, 1), [])
    with pytest.raises(nsd.BadInput, match="no batch"):
        ridge_readout(lambda: [])
    with pytest.raises(nsd.BadInput, match="needs a network with a readout"):
        fit_readout(nsd.ENN(nsd.Explicit("tanh"), 5, 8), [])
    with pytest.raises(nsd.BadInput, match="class 7; the network has 3 outputs"):
        fit_readout(nsd.ENN(nsd.Explicit("tanh"), 5, 8, 3), [(torch.zeros(2, 5), torch.tensor([0, 7]))])
    with pytest.raises(nsd.BadInput, match="3 samples and 2 labels"):
        Batches(torch.zeros(3, 2), torch.zeros(2))
