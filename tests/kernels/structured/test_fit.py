"""Streamed fits: the numbers of the operators in memory, whatever the blocks and wherever the samples lie."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data.blocks import SampleBlocks
from notsodeep.data.standardiser import Standardiser
from notsodeep.errors import BadInput
from notsodeep.kernels.structured.equivalent import EquivalentSums, equivalent_cross
from notsodeep.kernels.structured.fit import equivalent_fit, streamed_fit, streamed_fits
from notsodeep.kernels.structured.sharp import SharpStatistics, sharp_cross

RIDGE = 1e-2
NETS = {
    "tanh": nsd.Implicit("tanh", 0.2),
    "relu": nsd.Implicit("relu", 0.2),
    "explicit": nsd.Explicit(["relu", "tanh"]).centred(1.0),
}


@lru_cache
def _data(n=500, p=20, seed=0):
    """Two classes of unequal norms, their labels, and two numbers a sample."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    x = torch.randn(n, p, dtype=torch.float64, generator=generator) / p**0.5 * (1.0 + 0.3 * y[:, None])
    x[:, 0] += 0.5 * y
    goal = torch.stack([x[:, 0].sin(), x.square().sum(1)], 1)
    return x, y, goal + 0.1 * torch.randn(n, 2, dtype=torch.float64, generator=generator)


def _in_memory(net, x, kernel, form):
    if form == "sharp":
        return nsd.sharp_kernel(net, x, kernel)
    return nsd.equivalent_kernel(net, x, nsd.MixtureStatistics.from_data(x), kernel)


def _close(found, wanted, rtol=1e-9):
    found, wanted = (torch.as_tensor(value, dtype=torch.float64) for value in (found, wanted))
    assert float((found - wanted).abs().max()) <= rtol * float(wanted.abs().max())


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")  # the explicit network is centred for another τ0
@pytest.mark.parametrize("form", ["sharp", "equivalent"])
@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
@pytest.mark.parametrize("name", NETS)
def test_the_numbers_of_the_operator_in_memory(name, kernel, form):
    net, (x, _, y) = NETS[name], _data()
    new = _data(40, seed=1)[0]
    op = _in_memory(net, x, kernel, form)
    fit = streamed_fit(net, x, y, kernel=kernel, form=form, ridge=RIDGE, block=128)
    level = RIDGE * float(op.trace()) / len(x)
    shifted, goal = op.add_ridge(level), y - y.mean(0)
    alpha = shifted.solve(goal)
    assert fit.noise == pytest.approx(level, rel=1e-10)
    assert fit.logdet == pytest.approx(float(shifted.logdet()), rel=1e-9)
    _close(fit.quadratic, (goal * alpha).sum(0))
    wanted = -0.5 * ((goal * alpha).sum(0) + shifted.logdet() + len(x) * math.log(2 * math.pi))
    _close(fit.log_marginal_likelihood, wanted)
    _close(fit.predict(x) - y.mean(0), goal - level * alpha - op.diag[:, None] * alpha)
    _close(fit.spectrum(5), op.eigvalsh(5).flip(0), 1e-8)
    if form == "equivalent":
        _close(fit.predict(new), equivalent_cross(net, new, x, kernel) @ alpha + y.mean(0))
    else:  # entry by entry there, and by the sums of products of the fit here
        wanted = sharp_cross(net, new, x, kernel) @ alpha + y.mean(0)
        assert float((fit.predict(new) - wanted).norm() / wanted.norm()) <= 2e-2


@pytest.mark.parametrize("form", ["sharp", "equivalent"])
def test_variance_is_that_of_the_process(form):
    x, _, y = _data(200)
    fit = streamed_fit(NETS["relu"], x, y, form=form, ridge=RIDGE)
    op = _in_memory(NETS["relu"], x, "conjugate", form)
    dense = op.to_dense()
    low_rank = dense - torch.diag(op.diag)  # a new sample at a known place shares all but the diagonal
    known = low_rank @ torch.linalg.solve(dense + fit.noise * torch.eye(len(x)), low_rank)
    _close(fit.variance(x), dense.diagonal() - known.diagonal(), 1e-8)


@pytest.mark.parametrize("form", ["sharp", "equivalent"])
@pytest.mark.parametrize("block", [1, 7, 199, 200, 1000])
def test_blocks_of_any_size(form, block):
    x, _, y = _data(200)
    whole, fit = (streamed_fit(NETS["relu"], x, y, form=form, ridge=RIDGE, block=size) for size in (None, block))
    assert fit.logdet == pytest.approx(whole.logdet, rel=1e-10)
    _close(fit.predict(x), whole.predict(x))


def test_statistics_of_a_sample_change_little():
    """A round cloud in 20 dimensions has no leading directions: the worst case for a sample of them."""
    x, _, y = _data(2000)
    fit = streamed_fit(NETS["relu"], x, y, ridge=RIDGE, statistics=SharpStatistics.from_sample(x, 500))
    whole = streamed_fit(NETS["relu"], x, y, ridge=RIDGE)
    assert float((fit.predict(x) - whole.predict(x)).norm() / whole.predict(x).norm()) <= 3e-2


def test_a_pass_and_a_sample_of_all_agree():
    x, _, y = _data()
    passed = SharpStatistics.from_pass(SampleBlocks.of(x, 100))
    fits = [streamed_fit(NETS["tanh"], x, y, statistics=stats) for stats in (passed, SharpStatistics.from_sample(x))]
    assert passed.tau0 == pytest.approx(nsd.tau0(x), rel=1e-13)
    _close(fits[0].log_marginal_likelihood, fits[1].log_marginal_likelihood)


@pytest.mark.parametrize("form", ["sharp", "equivalent"])
def test_classes_are_one_hot_and_several_ridges_are_several_fits(form):
    x, labels, _ = _data()
    hot = torch.nn.functional.one_hot(labels).double()
    several = streamed_fits(NETS["relu"], x, labels, form=form, ridges=(1e-3, RIDGE, 1.0))
    alone = streamed_fit(NETS["relu"], x, hot, form=form, ridge=RIDGE)
    assert [fit.ridge for fit in several] == [1e-3, RIDGE, 1.0]
    _close(several[1].predict(x), alone.predict(x))
    assert (several[0].predict(x).argmax(1) == labels).double().mean() >= 0.8


@pytest.mark.parametrize("form", ["sharp", "equivalent"])
def test_memory_maps_in_float32(form, tmp_path):
    x, _, y = _data()
    np.save(tmp_path / "x.npy", x.numpy().astype(np.float32))
    np.save(tmp_path / "y.npy", y[:, 0].numpy())
    mapped, goal = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    fit = streamed_fit(NETS["relu"], mapped, goal, form=form, ridge=RIDGE, block=64)
    wanted = streamed_fit(NETS["relu"], x, y[:, 0], form=form, ridge=RIDGE)
    found = fit.predict(mapped)
    assert isinstance(found, np.ndarray)
    assert found.shape == (len(x),)
    _close(found, wanted.predict(x), 1e-4)
    assert fit.logdet == pytest.approx(wanted.logdet, rel=1e-5)
    exact = streamed_fit(NETS["relu"], mapped, goal, form=form, ridge=RIDGE, dtype=torch.float64)
    _close(found, exact.predict(mapped), 1e-4)


class _Sliced:
    """What can be cut by rows, and nothing else."""

    def __init__(self, values):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def __getitem__(self, index):
        assert isinstance(index, slice)
        return self.values[index]


@pytest.mark.parametrize("form", ["sharp", "equivalent"])
def test_anything_that_gives_rows(form):
    x, labels, _ = _data()
    fit = streamed_fit(NETS["relu"], _Sliced(x.numpy()), labels.numpy(), form=form, block=99)
    _close(fit.predict(x), streamed_fit(NETS["relu"], x, labels, form=form).predict(x))
    assert SampleBlocks.of(_Sliced(x.numpy())).sample(128).shape == (128, 20)


def test_a_standardiser_is_applied_as_rows_are_read():
    x, _, y = _data()
    scale = Standardiser.of(3.0 + 2.0 * x)
    fit = streamed_fit(NETS["relu"], 3.0 + 2.0 * x, y, standardiser=scale)
    _close(fit.predict(3.0 + 2.0 * x), streamed_fit(NETS["relu"], scale(3.0 + 2.0 * x), y).predict(scale(3.0 + 2.0 * x)))


@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
def test_sums_of_classes_hold_the_statistics_of_the_theorem(kernel):
    x, labels, y = _data()
    stats = nsd.MixtureStatistics.from_labels(x, labels)
    sums = EquivalentSums.of(SampleBlocks.of(x, 77), y, labels)
    found = sums.statistics()
    assert found.tau0 == pytest.approx(stats.tau0, rel=1e-12)
    _close(found.t, stats.t)
    _close(found.T, stats.T)
    op, fit = nsd.equivalent_kernel(NETS["relu"], x, stats, kernel), equivalent_fit(NETS["relu"], sums, kernel, RIDGE)
    shifted = op.add_ridge(fit.noise)
    assert fit.logdet == pytest.approx(float(shifted.logdet()), rel=1e-9)
    _close(fit.quadratic, ((y - y.mean(0)) * shifted.solve(y - y.mean(0))).sum(0))
    _close(fit.spectrum(30), op.eigvalsh().flip(0)[:30])
    with pytest.raises(BadInput, match="of new ones are unknown"):
        fit.predict(x)


@pytest.mark.parametrize("form", ["sharp", "equivalent"])
def test_a_nan_in_a_late_block_is_named(form):
    x, _, y = _data()
    bad = x.clone()
    bad[417, 3] = math.nan
    with pytest.raises(BadInput, match="row 417 of 500") as caught:
        streamed_fit(NETS["relu"], bad, y, form=form, block=50)
    assert caught.value.rows == [417]
    wrong = y.clone()
    wrong[333, 1] = math.inf
    with pytest.raises(BadInput, match="row 333"):
        streamed_fit(NETS["relu"], x, wrong, form=form, block=50)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(499)}, r"y has shape \(499,\)"),
        ({"form": "exact"}, "no form 'exact'"),
        ({"kernel": "neural"}, "neural"),
        ({"ridge": -1.0}, "ridges"),
        ({"ridge": "a"}, "ridges"),
        ({"y": torch.arange(500) * 10**6}, "A fit of 499000001 targets .* without gaps"),
        ({"y": torch.arange(500) * 10**6, "form": "equivalent"}, "A fit of 499000001 targets .* without gaps"),
        ({"block": 0}, "block must be a whole number ≥ 1, got 0"),
        ({"x": torch.zeros(500)}, r"shape \(500,\)"),
        ({"y": torch.full((500,), -1)}, "from 0"),
        ({"statistics": SharpStatistics.from_sample(torch.rand(9, 3))}, "20 features, its statistics 3"),
    ],
)
def test_bad_input_is_refused(change, message):
    x, _, y = _data()
    options = {"x": x, "y": y, **change}
    with pytest.raises(BadInput, match=message):
        streamed_fit(NETS["relu"], options.pop("x"), options.pop("y"), **options)


def test_new_samples_of_other_features_are_refused():
    x, _, y = _data()
    with pytest.raises(BadInput, match="3 features"):
        streamed_fit(NETS["relu"], x, y).predict(x[:, :3])


def test_equal_samples():
    x, y = torch.ones(40, 5, dtype=torch.float64) / 3, torch.arange(40).double()
    fit = streamed_fit(NETS["relu"], x, y, ridge=0.1)
    shifted = nsd.sharp_kernel(NETS["relu"], x).add_ridge(fit.noise)
    assert fit.logdet == pytest.approx(float(shifted.logdet()), rel=1e-9)
    assert np.allclose(fit.predict(x), y.mean())
    with pytest.raises(BadInput, match="equal"):
        streamed_fit(NETS["relu"], x, y, form="equivalent")


@pytest.mark.parametrize("form", ["sharp", "equivalent"])
def test_one_feature(form):
    x = torch.linspace(-2.0, 2.0, 50, dtype=torch.float64)[:, None] + 0.013
    fit = streamed_fit(NETS["relu"], x, x[:, 0].abs(), form=form, ridge=RIDGE)
    shifted = _in_memory(NETS["relu"], x, "conjugate", form).add_ridge(fit.noise)
    _close(fit.logdet, shifted.logdet(), 1e-7)


def test_norms_unlike_those_of_the_statistics_are_told():
    x, _, y = _data()
    with pytest.warns(nsd.NumericsWarning, match=r"from_pass"):
        streamed_fit(NETS["relu"], 3.0 * x, y, statistics=SharpStatistics.from_sample(x))
