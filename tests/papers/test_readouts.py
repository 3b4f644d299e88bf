"""L5's readouts: what a factor on the features does, and leave-one-out against fits that do leave one out."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from notsodeep import DEQ, ENN, Implicit, conjugate_kernel
from notsodeep.kernels.compare import best_scaled_gap
from notsodeep.linalg.ridge import KernelSpectrum
from notsodeep.models.training.readout import RIDGES
from notsodeep.papers.ling2024.l5_width import _by_ridge, _prediction_gaps
from notsodeep.papers.ling2024.rivals import ImageTask, best_factor, networks


@pytest.fixture(scope="module")
def features():
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(3, (300,), generator=draw)
    z = {
        name: torch.randn(300, 12, generator=draw) + functional.one_hot(y, 12)
        for name in ("deq", "matched", "closest", "deq_again")
    }
    z["plain"] = 0.5 * z["deq"]
    return z, ImageTask(torch.zeros(200, 1), y[:200], torch.zeros(100, 1), y[200:])


def test_a_rescaled_network_is_its_features_times_the_root(features):
    z, task = features
    train, test = ({name: part[rows] for name, part in z.items()} for rows in (slice(200), slice(200, 300)))
    _, _, predicted = _by_ridge(train, test, task, factor=4.0)  # 0.5² · 4 = 1: the DEQ again
    torch.testing.assert_close(predicted["rescaled"], predicted["deq"], rtol=1e-5, atol=1e-5)
    gaps = _prediction_gaps(predicted)
    assert gaps["rescaled"] < 1e-5
    assert gaps["plain"] > 1e-3  # the same absolute ridge shrinks smaller features more
    assert set(gaps) == {"matched", "closest", "plain", "rescaled", "deq_again"}


def test_leave_one_out_is_leaving_one_out():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(30, 5, generator=draw, dtype=torch.float64)
    gram, wanted = conjugate_kernel(Implicit("relu", 0.2), x), torch.randn(30, 2, generator=draw, dtype=torch.float64)

    def error(level):
        total = 0.0
        for i in range(30):
            rest = np.delete(np.arange(30), i)
            k = gram[rest][:, rest] + level * torch.eye(29, dtype=torch.float64)
            total += float((wanted[i] - gram[i, rest] @ torch.linalg.solve(k, wanted[rest])).square().sum())
        return total

    levels = [ridge * float(gram.diagonal().mean()) for ridge in RIDGES]
    assert KernelSpectrum.of(gram, wanted).best_level(RIDGES) == pytest.approx(min(levels, key=error))


def test_the_best_factor_is_that_of_the_exact_kernels():
    x = torch.randn(200, 40, generator=torch.Generator().manual_seed(2)) / 40**0.5
    nets = networks("relu", 0.2, "digits")
    exact = conjugate_kernel(nets.deq, x.double(), tau0=1.0)
    assert best_factor(nets, x) == pytest.approx(best_scaled_gap(exact, conjugate_kernel(nets.plain, x.double()))[1])


def test_networks_are_drawn_by_seed_and_name():
    nets = networks("relu", 0.2, "digits")
    first, again, second = (nets.module(name, 5, 8, 0) for name in ("deq", "deq", "deq_again"))
    assert torch.equal(first.A, again.A)
    assert not torch.equal(first.A, second.A)
    assert isinstance(first, DEQ)
    assert isinstance(nets.module("plain", 5, 8, 0), ENN)
    matched, closest = (nets.module(name, 5, 8, 0) for name in ("matched", "closest"))
    assert torch.equal(next(matched.parameters()), next(closest.parameters()))
    assert str(nets.closest) != str(nets.matched)
    assert not torch.equal(nets.module("deq", 5, 8, 1).A, first.A)
