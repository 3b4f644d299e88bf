"""Training against the clock: the best weights are kept, and the time is."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from notsodeep.models.compiler.distil import Clock, _Run, train_until

N = 200


def draws():
    return torch.Generator().manual_seed(3)


def held_rows(rows):
    """The tenth that is not trained on: the first in the order that the generator draws."""
    return rows[torch.randperm(len(rows), generator=draws())][: math.ceil(0.1 * len(rows))]


@pytest.fixture
def clock(monkeypatch):
    """A time that moves only when it is told to."""
    hand = SimpleNamespace(now=100.0)
    monkeypatch.setattr("notsodeep.models.compiler.distil.time", SimpleNamespace(monotonic=lambda: hand.now))
    return hand


def timed(clock, loss):
    """`loss`, where a step takes a second and a look at it none."""

    def taking_time(network, rows):
        clock.now += float(torch.is_grad_enabled())
        return loss(network, rows)

    return taking_time


@pytest.fixture
def regression():
    """(network, loss, rows) of noisy linear data, with a dropout that must not act."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, 6, generator=draw)
    y = x @ torch.randn(6, 2, generator=draw) + 0.1 * torch.randn(N, 2, generator=draw)
    network = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2))
    with torch.no_grad():
        network[1].weight.copy_(torch.randn(2, 6, generator=draw))
    return network, (lambda net, rows: (net(x[rows]) - y[rows]).square().mean()), torch.arange(N)


@pytest.fixture
def single_weight():
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, 1.0)
    return network


def test_it_learns_and_tells_what_it_kept(regression, clock):
    network, loss, rows = regression
    held = held_rows(rows)
    with torch.no_grad():
        before = float(loss(network.eval(), held))
    took = train_until(network.train(), timed(clock, loss), rows, 3000.0, draws())
    with torch.no_grad():
        after = float(loss(network, held))
    assert (took.before, took.after) == pytest.approx((before, after))
    assert took.after < 0.02 < 2.0 < took.before  # the noise has a variance of 0.01
    assert took.finished
    assert took.steps == took.seconds < 3000.0
    assert not network.training


def test_the_best_weights_are_kept(single_weight, clock):
    """Training leads to 2, and the samples that are not trained on say that 1.7 is best."""

    def loss(net, _):
        return (net.weight - (2.0 if torch.is_grad_enabled() else 1.7)).square().sum()

    took = train_until(single_weight, timed(clock, loss), torch.arange(20), 3000.0, draws())
    value = single_weight.weight.item()
    assert took.before == pytest.approx(0.49)
    assert took.after == pytest.approx((value - 1.7) ** 2, rel=1e-3)
    assert took.after < 0.09  # where training ends
    assert took.finished


def test_what_does_not_help_ends_by_itself_and_changes_nothing():
    network = nn.Linear(3, 3)
    start = {name: weight.clone() for name, weight in network.state_dict().items()}

    def loss(net, _):
        distance = sum((weight - start[name]).square().sum() for name, weight in net.named_parameters())
        return distance - sum(weight.sum() for weight in net.parameters()) if torch.is_grad_enabled() else distance

    took = train_until(network, loss, torch.arange(50), 60.0, draws())
    assert took.finished
    assert took.seconds < 60.0
    assert took.before == took.after == 0.0
    assert all(torch.equal(weight, start[name]) for name, weight in network.state_dict().items())


def test_steps_that_run_away_are_taken_back(regression, clock):
    network, loss, rows = regression
    start = network[1].weight.detach().clone()

    def broken(net, some):
        return loss(net, some) * (math.nan if torch.is_grad_enabled() else 1.0)

    took = train_until(network, timed(clock, broken), rows, 3000.0, draws())
    assert took.finished
    assert took.before == took.after
    assert torch.equal(network[1].weight, start)


def test_a_start_without_a_finite_loss_can_only_improve(single_weight, clock):
    """Such as steps of a map that does not contract."""

    def loss(net, _):
        value = (net.weight - 2.0).square().sum()
        return value if torch.is_grad_enabled() or float(value) < 0.9 else value * math.inf

    took = train_until(single_weight, timed(clock, loss), torch.arange(20), 3000.0, draws())
    assert took.before == math.inf
    assert took.after < 1e-3


def test_weights_that_are_frozen_stay(regression, clock):
    network, loss, rows = regression
    network[1].bias.requires_grad_(False)
    bias, weight = network[1].bias.clone(), network[1].weight.clone()
    train_until(network, timed(clock, loss), rows, 400.0, draws())
    assert torch.equal(network[1].bias, bias)
    assert not torch.equal(network[1].weight, weight)


def test_without_time_next_to_nothing_is_done(regression):
    network, loss, rows = regression
    took = train_until(network, loss, rows, 1e-9, draws())
    assert took.steps <= 2
    assert took.after <= took.before
    assert not took.finished


@pytest.mark.parametrize(("whole", "sizes"), [(False, [128, 52]), (True, [180])])
def test_batches(whole, sizes, regression, clock):
    """Of 128 of the nine tenths that are trained on, each sample once in a pass; or of all of them."""
    network, loss, rows = regression
    seen = []

    def watched(net, some):
        if torch.is_grad_enabled():
            seen.append(some)
        return loss(net, some)

    train_until(network, timed(clock, watched), rows, 300.0, draws(), whole=whole)
    assert [len(batch) for batch in seen[: len(sizes)]] == sizes
    trained = set(rows.tolist()) - set(held_rows(rows).tolist())
    assert sorted(torch.cat(seen[: len(sizes)]).tolist()) == sorted(trained)
    assert {row for batch in seen for row in batch.tolist()} == trained


def test_a_single_sample(regression, clock):
    network, loss, _ = regression
    took = train_until(network, timed(clock, loss), torch.tensor([3]), 1000.0, draws())
    assert took.after < 1e-3 * took.before


def test_the_time_is_kept_to(single_weight, clock):
    """Of a training that would always go on."""
    took = train_until(single_weight, timed(clock, lambda net, _: (-net.weight.sum()).exp()), torch.arange(20), 1000.0, draws())
    assert not took.finished
    assert took.steps == took.seconds
    assert 1000.0 <= took.seconds <= 1001.0


def test_a_training_whose_first_rate_was_cut_short_did_not_finish(single_weight, clock):
    """A later, smaller rate that no longer helps says nothing: at the first one every round still took 2 % off."""

    def loss(net, _):
        return (-0.03 * net.weight.sum()).exp()  # a round of 60 steps of 0.01 each

    took = train_until(single_weight, timed(clock, loss), torch.arange(20), 3000.0, draws())
    assert took.after < 0.9 * took.before
    assert not took.finished


def test_each_weight_moves_by_a_share_of_its_size(clock):
    sizes = (1e-2, 1.0, 100.0)
    network = nn.ParameterList([nn.Parameter(torch.full((4,), size)) for size in sizes])

    def loss(net, _):
        return sum((1.0 - weight / size).exp().sum() for weight, size in zip(net, sizes, strict=True))

    train_until(network, timed(clock, loss), torch.arange(20), 300.0, draws())
    small, middle, large = (weight[0].item() / size for weight, size in zip(network, sizes, strict=True))
    assert middle > 1.5
    assert (small, large) == (pytest.approx(middle, rel=1e-3), pytest.approx(middle, rel=1e-3))


def test_a_clock_shares_what_is_left(clock):
    given = []

    def train(takes):
        def run(seconds):
            given.append(seconds)
            clock.now += takes
            return f"after {seconds:g}"

        return run

    shares = Clock(12.0, 4)
    assert shares.spend(train(1.0)) == "after 3"
    for takes in (5.0, 0.0, 6.0, 1.0):  # the last is one more than planned
        shares.spend(train(takes))
    assert given == pytest.approx([12.0 / 4, 11.0 / 3, 6.0 / 2, 6.0, 0.0])


def test_the_rate_falls_to_zero_by_a_half_wave_of_a_cosine(single_weight, clock):
    """Seen by steps along a constant gradient, each of which is as long as the rate."""
    seen = []

    def loss(net, _):
        if torch.is_grad_enabled():
            seen.append(net.weight.item())
            return -net.weight.sum()
        return (-2.0 * net.weight.sum()).exp()

    train_until(single_weight, timed(clock, loss), torch.arange(20), 1000.0, draws())
    seen.append(single_weight.weight.item())
    last = len(seen) - 1 - seen[::-1].index(1.0)  # what is before were short falls of several rates, each from the start
    lengths = torch.tensor(seen[last:], dtype=torch.float64).diff()
    assert last == pytest.approx(3 * 40, abs=3)  # for 3, 1 and 3 % of the weight's size
    passed = torch.arange(len(lengths), dtype=torch.float64) / len(lengths)
    torch.testing.assert_close(lengths, 0.03 * (1.0 + (math.pi * passed).cos()) / 2, rtol=0.0, atol=5e-4)


@pytest.mark.parametrize(("way", "rate"), [(30.0, 3e-2), (0.3, 1e-2), (0.003, 1e-4)])
def test_the_rate_fits_the_way_to_go(single_weight, way, rate):
    """Of 100 steps of |w − w*|."""

    def loss(net, _):
        return (net.weight - (1.0 + way)).abs().sum()

    run = _Run(single_weight, loss, torch.arange(2), torch.arange(18), draws(), 128)
    assert run._first_rate(math.inf) == rate
    assert single_weight.weight.item() == 1.0


def test_it_goes_on_from_the_best_weights(single_weight, clock):
    """Where two rounds in turn did not help, in half of the time."""
    away = []

    def loss(net, _):
        if torch.is_grad_enabled():
            away.append(abs(net.weight.item() - 1.0))
            return -net.weight.sum()
        return (net.weight - 1.0).abs().sum() + 1.0

    took = train_until(single_weight, timed(clock, loss), torch.arange(20), 2000.0, draws())
    assert max(away) < 0.03 * 121  # never further than in two rounds of 60 steps
    assert took.finished
    assert single_weight.weight.item() == 1.0
