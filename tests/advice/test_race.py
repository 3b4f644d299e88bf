"""The race: who wins it when, that it is fair, and that it learns what is there."""

import math

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.advice.race import Race, Runner, _RaceData, race
from notsodeep.models.training.equal_cost import Trained
from notsodeep.models.training.flops import Flops, fnn_flops
from notsodeep.models.training.parallel import StackedFNN

TINY = {"width": 6, "seeds": 2, "steps": 150, "rates": (1e-2,), "batch": 32}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(n, p, seed=0):
    return torch.randn(n, p, generator=generator(seed), dtype=torch.float64)


def linear(n=150):
    x = gaussian(n, 4)
    return x, x[:, 0] - 2.0 * x[:, 1]


def runner(*losses):
    return Runner(losses, 1e-2, (3,), 40, Flops(100.0, 200.0), 3e5, 7.0, 0.0, 0)


@pytest.mark.parametrize(
    ("deq", "explicit", "outcome"),
    [
        ((0.10, 0.11), (0.50, 0.51), "deq"),
        ((0.50, 0.51), (0.10, 0.11), "explicit"),
        ((0.1000, 0.1001), (0.1090, 0.1091), "explicit"),  # surely better, but not by a hundredth
        ((0.1000, 0.1001), (0.1110, 0.1111), "deq"),
        ((0.10, 0.30), (0.50, 0.51), "explicit"),  # two seeds so far apart prove nothing
        ((0.96, 0.96), (0.99, 0.99), "neither"),
        ((0.94, 0.94), (0.99, 0.99), "deq"),
        ((0.99, 0.99), (0.94, 0.94), "explicit"),
        ((0.1,), (0.9,), "explicit"),  # one seed has no spread
    ],
)
def test_who_wins(deq, explicit, outcome):
    assert Race(runner(*deq), runner(*explicit), 10, 10).outcome == outcome


def test_the_interval_is_students():
    found = runner(0.1, 0.2, 0.3)
    assert found.half_width == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    assert (found.low, found.high) == (found.mean - found.half_width, found.mean + found.half_width)


def test_a_linear_label_is_learnt_by_both_at_equal_cost():
    found = race(*linear(), **TINY)
    assert found.outcome == "explicit"
    assert max(found.deq.mean, found.explicit.mean) < 0.3
    assert (found.trained_on, found.tested_on) == (84, 45)
    assert found.deq.evaluations > 1.0
    assert found.explicit.evaluations == 0.0
    assert found.explicit.flops.training <= found.deq.flops.training
    wider = found.explicit.widths[0] + 1
    assert fnn_flops([4, wider, wider, 1]).training > found.deq.flops.training
    assert len(found.explicit.widths) == 2
    assert found.deq.parameters == 6 * 6 + 6 * 4 + 6 + 6 + 1


def test_noise_is_learnt_by_neither():
    assert race(gaussian(150, 4), gaussian(150, 1, seed=1), **TINY).outcome == "neither"


def test_the_same_generator_gives_the_same_race():
    first, same, other = (race(*linear(60), **{**TINY, "steps": 20}, generator=generator(seed)) for seed in (3, 3, 4))
    assert first == same
    assert first != other


def test_units_of_x_and_y_do_not_matter():
    x, y = linear(60)
    few = {**TINY, "steps": 40}
    found, scaled = race(x, y, **few), race(8.0 * x, 4.0 * y, **few)
    assert scaled.deq.losses == pytest.approx(found.deq.losses, rel=1e-3)
    assert scaled.explicit.losses == pytest.approx(found.explicit.losses, rel=1e-3)


def test_a_rate_is_chosen_by_what_it_learns():
    x, y = linear(60)
    found = race(x, y, **{**TINY, "steps": 40, "rates": (1e-9, 1e-2)})
    assert (found.deq.rate, found.explicit.rate) == (1e-2, 1e-2)


def test_the_rate_does_not_depend_on_the_test_samples():
    x, y = linear(100)
    lies, truth = (race(x, y, **{**TINY, "steps": 100, "rates": (1e-3, 1e-2)}, test=(x[:50], s * y[:50])) for s in (-1, 1))
    assert (lies.deq.rate, lies.explicit.rate) == (truth.deq.rate, truth.explicit.rate)
    assert lies.deq.mean > 2.0 > truth.deq.mean


def test_a_test_set_of_its_own_with_classes_as_words():
    x = gaussian(150, 4)
    words = np.array(["no", "yes"])[(x[:, 0] > 0.0).long().numpy()]
    found = race(x[:100], words[:100], **TINY, test=(x[100:], words[100:]))
    assert (found.trained_on, found.tested_on) == (80, 50)
    assert found.deq.mean < 0.8


def test_test_samples_are_in_the_units_of_the_training_samples():
    x, y = linear(100)
    alone = _RaceData.of(x, y, (x[:1] + 5.0, y[:1] + 3.0), generator())
    beside = _RaceData.of(x, y, (torch.cat([x[:1] + 5.0, 9.0 * x]), torch.cat([y[:1] + 3.0, y])), generator())
    torch.testing.assert_close(alone.samples.x_test[0], beside.samples.x_test[0])
    torch.testing.assert_close(alone.samples.y_test[0], beside.samples.y_test[0], rtol=1e-4, atol=1e-4)
    assert float(alone.samples.x.square().sum(1).mean()) == pytest.approx(4.0, rel=1e-5)
    assert float(alone.samples.y.square().sum(1).mean()) == pytest.approx(1.0, rel=1e-5)


def test_no_sample_is_used_twice():
    x = torch.arange(100, dtype=torch.float64)[:, None]
    task = _RaceData.of(x, x[:, 0] ** 2, None, generator())
    parts = torch.cat([task.samples.x, task.x_validation, task.samples.x_test])
    assert len(parts.unique()) == len(parts) == 100


def test_a_feature_that_dominates_hides_nothing():
    x, y = linear(100)
    found = race(torch.cat([x, 1e4 * gaussian(100, 1, seed=5)], 1), y, **TINY)
    assert found.explicit.mean < 0.5


def test_a_network_that_diverged_counts_as_the_constant():
    task = _RaceData.of(*linear(60), None, generator())
    none = (None, 0.5 * task.constant)
    trained = Trained(none, none, none, (3, None), 10, Flops(1.0, 2.0), 3.0)
    found = task.runner(trained, 1e-2, (6,))
    assert found.losses == (1.0, pytest.approx(0.5))
    assert found.diverged == 1


def test_it_says_what_it_does():
    said = []
    race(*linear(60), **{**TINY, "steps": 2}, say=said.append)
    assert said == ["training 2 × DEQ, rate 0.01", "training 2 × matched network, rate 0.01"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": gaussian(19, 2), "y": torch.randn(19)}, "20 at least"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": 1}, "2 seeds at least"),
        ({"steps": 0}, "steps"),
        ({"rates": ()}, "rate"),
        ({"test": (gaussian(9, 3), torch.randn(9))}, "3 features"),
        ({"test": (gaussian(9, 2), torch.ones(9, dtype=torch.long))}, "differ in kind"),
        ({"y": torch.ones(30)}, "All labels are equal"),
    ],
)
def test_what_cannot_be_raced_is_refused(change, message):
    given = {"x": gaussian(30, 2), "y": gaussian(30, 1, seed=1)[:, 0], **TINY} | change
    with pytest.raises(nsd.BadInput, match=message):
        race(given.pop("x"), given.pop("y"), **given)


def test_a_stack_has_the_activations_that_it_is_given():
    x = torch.randn(7, 3, generator=generator())
    plain, same = (StackedFNN([generator()], 3, (5, 4), activations=a) for a in (None, (torch.relu,) * 2))
    assert torch.equal(plain(x), same(x))
    bent = StackedFNN([generator()], 3, (5, 4), activations=(torch.tanh, torch.sin))
    first = torch.tanh(x @ bent.weights[0][0].T + bent.biases[0][0])
    second = torch.sin(first @ bent.weights[1][0].T + bent.biases[1][0])
    torch.testing.assert_close(bent(x)[0], second @ bent.A[0].T + bent.c[0])
    torch.testing.assert_close(plain.member(0)(x), plain(x)[0])
    with pytest.raises(nsd.BadInput, match="no other activation"):
        bent.member(0)
    with pytest.raises(nsd.BadInput, match="1 activations for 2"):
        StackedFNN([generator()], 3, (5, 4), activations=(torch.tanh,))
