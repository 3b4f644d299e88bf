"""Evidence: what it accepts, that its fast folds are the slow ones, and that it tells simple tasks apart."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep import separation as sep
from notsodeep.advice.evidence import (
    Evidence,
    LeftOut,
    _energy,
    _folds,
    _kernel_error,
    _neighbour_mean,
    _steps,
    _with_constant,
    evidence,
)
from notsodeep.data.targets import Targets
from notsodeep.linalg.ridge import KernelSpectrum


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(n, p, seed=0):
    return torch.randn(n, p, generator=generator(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def steep():
    target = sep.Steep(6)
    x = target.sample(300, generator())
    return evidence(x, target(x))


@pytest.fixture(scope="module")
def linear():
    x = gaussian(300, 20)
    return evidence(x, x[:, 0] - 2.0 * x[:, 1])


@pytest.fixture(scope="module")
def noise():
    return evidence(gaussian(300, 20), gaussian(300, 1, seed=1))


def test_folds_left_out_at_once_are_those_left_out_one_by_one():
    x, t = gaussian(43, 4), gaussian(43, 2, seed=1)
    kernel = nsd.tangent_kernel(nsd.Implicit("relu", var_a=0.2), x)
    t = t - t.mean(0)
    spectrum = KernelSpectrum.of(kernel, t)
    at = spectrum.best_level([10.0**k for k in range(-10, 4)])
    errors = []
    for fold in _folds(43):
        rest = [i for i in range(43) if not fold.start <= i < fold.stop]
        inside = kernel[rest][:, rest] + at * torch.eye(len(rest), dtype=torch.float64)
        out = kernel[fold][:, rest] @ torch.linalg.solve(inside, t[rest])
        errors.append(float((out - t[fold]).square().sum() / t[fold].square().sum()))
    found = _kernel_error(spectrum, t)
    assert found.mean == pytest.approx(np.mean(errors), rel=1e-8)
    assert found.standard_error == pytest.approx(np.std(errors, ddof=1) / math.sqrt(5), rel=1e-8)


@pytest.mark.parametrize("n", [8, 43, 100])
def test_folds_are_all_samples_once(n):
    assert [i for fold in _folds(n) for i in range(n)[fold]] == list(range(n))
    assert len(_folds(n)) == 5


def test_the_spectrum_of_a_label_along_one_direction():
    values = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)
    spectrum = KernelSpectrum.of(torch.diag(values), torch.eye(4, dtype=torch.float64)[:, 2:3])
    torch.testing.assert_close(_energy(spectrum), torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64))
    assert _steps(spectrum) == pytest.approx(math.log(10.0) / 2.0 * 8.0 / 2.0, rel=0.13)  # e^(−2tλ/λ_1) = 1/10
    flat = KernelSpectrum.of(torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64)), torch.eye(2, dtype=torch.float64))
    assert _steps(flat) == math.inf


def test_a_neighbour_is_never_the_sample_itself():
    x = torch.arange(20, dtype=torch.float64)[:, None]
    distances = torch.cdist(x, x).fill_diagonal_(math.inf)
    old, new = torch.arange(0, 20, 2), torch.arange(1, 20, 2)
    found = _neighbour_mean(distances, x, old, new)
    assert torch.equal(found[:-1], x[new][:-1])  # the mean of one on each side; the last has one side only


def test_a_constant_feature_keeps_the_norm():
    x = nsd.data.standardiser.standardised(gaussian(50, 7))
    wider = _with_constant(x)
    assert wider.shape == (50, 8)
    assert nsd.tau0(wider) == pytest.approx(1.0, rel=1e-12)
    assert bool((wider[:, -1] == wider[0, -1]).all())


def test_a_linear_label_is_learnt_by_both_kernels(linear):
    assert linear.kernels.high < 0.1
    assert linear.deq.mean == pytest.approx(linear.matched.mean, abs=0.01)
    assert linear.missed == 0.0
    assert linear.head_energy > 0.9
    assert linear.conjugate_gap < 0.01
    assert linear.tangent_gap < 0.05


def test_noise_is_learnt_by_nothing(noise):
    assert min(error.high for error in (noise.deq, noise.matched, noise.neighbours, noise.trees, noise.metric)) > 0.97
    assert noise.missed < 0.05
    assert noise.directions > 0.8
    assert noise.disagreement == pytest.approx(1.0, abs=0.3)  # 300 pairs of heavy-tailed squares


def test_a_steep_label_is_there_to_learn_and_the_kernels_miss_part_of_it(steep, linear):
    assert steep.trees.high < 0.05
    assert steep.missed > 0.08
    assert steep.steps > 10.0 * linear.steps
    assert steep.steepness > linear.steepness


def test_every_number_has_a_row_with_a_meaning(steep):
    rows = steep.rows()
    assert len({name for name, _, _ in rows}) == len(rows)
    assert all(isinstance(part, str) and part for row in rows for part in row)
    with pytest.raises(dataclasses.FrozenInstanceError):
        steep.samples = 3


def test_classes_are_numbers_or_words():
    x = gaussian(60, 5)
    codes = (x[:, 0] > 0.0).long()
    words = np.array(["no", "yes"])[codes.numpy()]
    of_codes, of_words, of_objects = (evidence(x, y) for y in (codes, words, words.astype(object)))
    assert of_codes == of_words == of_objects
    assert of_codes.classes
    assert of_codes.outputs == 2
    assert of_codes.steepness == math.inf  # most neighbours are of one class


def test_the_kind_of_array_and_the_scale_do_not_matter():
    x, y = gaussian(60, 5), gaussian(60, 1, seed=1)[:, 0]
    found = evidence(x, y)
    assert evidence(x.numpy(), y.numpy()) == found
    assert evidence(x, y[:, None]) == found
    scaled = evidence(4.0 * x, 8.0 * y)
    assert scaled.deq.mean == pytest.approx(found.deq.mean, rel=1e-9)


def test_samples_are_drawn_by_the_generator():
    x, y = gaussian(120, 5), gaussian(120, 1, seed=1)
    few = evidence(x, y, most=50)
    assert (few.samples, few.of_samples) == (50, 120)
    assert few == evidence(x, y, most=50, generator=generator(0))
    assert few != evidence(x, y, most=50, generator=generator(1))


def test_another_network_may_be_asked_about():
    x = gaussian(60, 5)
    net = nsd.Implicit("tanh", var_a=0.2)
    found = evidence(x, x[:, 0], net)
    assert found.net == net
    assert found.conjugate_gap < 0.3


def test_twenty_samples_are_enough():
    target = sep.BOOLEAN_TARGETS["f1"]
    x = target.seen_and_unseen()[0][::26]
    assert len(x) == 20
    found = evidence(x, target(x))
    assert isinstance(found, Evidence)
    assert math.isfinite(found.deq.mean)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.ones(20, dtype=torch.float64), "All labels are equal"),
        (torch.zeros(20, dtype=torch.long), "All labels are equal"),
        (torch.arange(20), "give them as floats"),
        (torch.randn(19), "expected \\(20,\\)"),
        (torch.full((20,), math.nan), "NaN"),
        (torch.zeros(20, 2, dtype=torch.long), "give numbers as floats"),
    ],
)
def test_labels_that_say_nothing_are_refused(y, message):
    with pytest.raises(nsd.BadInput, match=message):
        evidence(gaussian(20, 3), y)


def test_too_few_samples_are_refused():
    with pytest.raises(nsd.BadInput, match="20 at least"):
        evidence(gaussian(19, 3), gaussian(19, 1))


def test_a_column_that_never_changes_is_no_target():
    labels = Targets.numbered(np.stack([np.arange(9.0), np.full(9, 3.0)], axis=1), 9)
    targets = labels.standardised()
    assert labels.classes is None
    assert bool((targets[:, 1] == 0.0).all())
    assert float(targets[:, 0].square().mean()) == pytest.approx(1.0)


def test_an_error_has_an_interval():
    error = LeftOut.of([0.1, 0.2, 0.3])
    assert error.mean == pytest.approx(0.2)
    assert error.high - error.mean == pytest.approx(0.27764451051977987 / math.sqrt(3))
    assert error.mean - error.low == pytest.approx(0.27764451051977987 / math.sqrt(3))
    assert str(error) == "0.2 ± 0.06"


def test_the_largest_feature_is_told():
    x = gaussian(60, 4)
    assert evidence(x, x[:, 0]).largest_feature < 0.5
    assert evidence(x * torch.tensor([100.0, 1.0, 1.0, 1.0]), x[:, 1]).largest_feature > 0.99


def test_a_learnt_metric_sees_a_direction_that_is_no_feature():
    x = gaussian(300, 8)
    turned = x @ torch.linalg.qr(gaussian(8, 8, seed=1))[0]
    found, of_turned = (evidence(rows, (x[:, 0] > 0.0).double()) for rows in (x, turned))
    assert of_turned.metric.mean == pytest.approx(found.metric.mean, abs=1e-6)
    assert of_turned.metric.high < 0.5 * of_turned.kernels.mean
    assert of_turned.trees.mean > of_turned.metric.high
    assert found.trees.mean < 0.05


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_the_unit_of_the_labels_does_not_matter(unit):
    y = np.random.default_rng(0).normal(size=30)
    found, plain = (Targets.numbered(scale * y, 30).standardised() for scale in (unit, 1.0))
    assert np.allclose(found, plain, rtol=1e-6)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([None, "a"] * 15, dtype=object), "missing labels"),
        (np.array([float("nan"), 1.0] * 15, dtype=object), "missing labels"),
        ([[1.0], [2.0, 3.0]] * 15, "different lengths"),
        (torch.ones(30, 0), "expected"),
    ],
)
def test_labels_that_are_none_are_refused(y, message):
    with pytest.raises(nsd.BadInput, match=message):
        Targets.numbered(y, 30).standardised()


def test_labels_of_half_precision_are_labels():
    y = torch.randn(30, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert Targets.numbered(y, 30).standardised().shape == (30, 1)
