"""Contests of a DEQ and feed-forward networks: their samples, and what is called a win."""

import pytest
import torch

from notsodeep.errors import BadInput
from notsodeep.papers.claims import Verdict
from notsodeep.papers.records import Record
from notsodeep.papers.registry import EXPERIMENTS
from notsodeep.papers.statistics import mean
from notsodeep.papers.wu2024 import contest
from notsodeep.papers.wu2024.w3_weights import growth
from notsodeep.papers.wu2024.w6_features import spread_out
from notsodeep.separation import BOOLEAN_TARGETS, Sawtooth, Steep


def losses(test):
    return {"test": test, "forward_flops": 10, "backward_flops": 20, "parameters": 5}


def record(deq, rivals, paired=None):
    values = {"best_constant": 0.1, "deq": losses(deq)}
    values["rivals"] = {name: losses(test) for name, test in rivals.items()}
    values["paired"] = {name: losses(test) for name, test in (paired or {}).items()}
    return Record("W2", {"kind": "trained", "seeds": len(deq)}, values, 1.0)


def test_a_win_needs_intervals_that_do_not_overlap():
    clear = record([0.01, 0.011, 0.012], {"L3W5": [0.02, 0.021, 0.022]})
    claim = contest.ordering(clear, "W2.x", "x", "—")
    assert claim.verdict is Verdict.reproduced
    assert "a constant 0.1" in claim.ours
    overlapping = record([0.01, 0.02, 0.012], {"L3W5": [0.02, 0.021, 0.022]})
    assert contest.ordering(overlapping, "W2.x", "x", "—").verdict is Verdict.not_reproduced
    one_rival_below = record([0.01, 0.011, 0.012], {"L3W5": [0.02, 0.021, 0.022], "L4W5": [0.005, 0.005, 0.006]})
    assert contest.ordering(one_rival_below, "W2.x", "x", "—").verdict is Verdict.not_reproduced
    one_seed = record([0.01], {"L3W5": [0.02]})
    assert contest.ordering(one_seed, "W2.x", "x", "—").verdict is Verdict.not_reproduced


def test_networks_that_diverged_are_told_and_not_averaged():
    found = record([0.01, None, 0.012], {"L3W5": [0.02, 0.021, None]})
    claim = contest.ordering(found, "W2.x", "x", "—")
    assert "2 diverged" in claim.spread
    assert contest.losses(found.values["deq"]).value == pytest.approx(0.011)
    assert contest.losses(losses([None, None])) is None


def test_a_level_is_within_a_factor_of_two():
    found = record([0.01, 0.01], {"L3W5": [0.03, 0.03]})
    assert contest.level(found, "a", "x", {"DEQ": 0.019, "L3W5": 0.016}).verdict is Verdict.reproduced
    assert contest.level(found, "a", "x", {"DEQ": 0.021}).verdict is Verdict.not_reproduced
    assert contest.level(found, "a", "x", {}) is None


def test_layers_of_a_name():
    assert contest.layers("L4W30") == (30, 30, 30)
    for wrong in ("L1W3", "L3", "W3", "L3W0", "l3w3"):
        with pytest.raises(BadInput, match="L3W50"):
            contest.layers(wrong)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("W1", {"constructed": "60"}, "too many to count"),
        ("W1", {"trained": "99"}, "finer than its samples"),
        ("W3", {"rival": "foo"}, "L3W50"),
        ("W4", {"rivals": "L0W3"}, "L3W50"),
        ("W5", {"targets": "f9"}, "no target 'f9'"),
        ("W5", {"rivals": "L3"}, "L3W50"),
        ("W6", {"target": "f9"}, "no target 'f9'"),
        ("W6", {"rival": "foo"}, "L3W50"),
    ],
)
def test_what_cannot_be_trained_is_told_before_anything_is(name, changes, message):
    experiment = EXPERIMENTS[name]
    with pytest.raises(BadInput, match=message):
        experiment.units(experiment.config(False, changes))


def test_samples_are_of_the_target_and_differ_by_seed():
    for name, function, d in (("sawtooth:3", Sawtooth(3, 2), 2), ("steep", Steep(7), 7)):
        drawn = contest.draw(name, d, 50, 3)
        assert drawn.x.shape == (3, 50, d)
        assert torch.equal(drawn.y[1], function(drawn.x[1].double()).float())
        assert not torch.equal(drawn.x[0], drawn.x[1])
        assert torch.equal(drawn.x, contest.draw(name, d, 50, 3).x)
    with pytest.raises(BadInput, match="no target 'wave'"):
        contest.draw("wave", 2, 10, 1)


@pytest.mark.parametrize("name", BOOLEAN_TARGETS)
def test_test_samples_of_a_boolean_function_are_the_unseen(name):
    target = BOOLEAN_TARGETS[name]
    drawn = contest.draw(name, target.dimension, 1024, 2)
    seen, unseen = (part.reshape(-1, target.dimension) for part in (drawn.x, drawn.x_test))
    assert not target.unseen(seen).any()
    assert target.unseen(unseen).all()
    assert torch.equal(drawn.y.reshape(-1, 1), target(seen))


def test_growth_is_the_slope_of_the_logarithm():
    found = growth({d: [2.0 ** (0.3 * d), 2.0 ** (0.3 * d)] for d in (6, 8, 20)})
    assert found.value == pytest.approx(0.3 * torch.log(torch.tensor(2.0)).item(), rel=1e-6)
    assert growth({6: [1.0, 2.0]}) is None


def test_features_alike_are_spread_out():
    assert spread_out(torch.ones(1, 8)).item() == pytest.approx(1.0)
    assert spread_out(torch.eye(8)[:1]).item() == pytest.approx(1 / 8)
    assert mean(spread_out(torch.rand(4, 8)).tolist()).value < 1.0
