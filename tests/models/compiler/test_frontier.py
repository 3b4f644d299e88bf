"""The frontier of a trained DEQ: what each way costs and keeps, and which to deploy."""

import dataclasses
import itertools
import json
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import notsodeep as nsd
from notsodeep.models import Frontier, Way
from notsodeep.models.compiler.certificate import Certificate
from notsodeep.models.compiler.frontier import Answers, needed, optimal, surely
from notsodeep.models.compiler.trial import Trial
from notsodeep.models.training.objective import score
from notsodeep.models.unrolled import Unrolled

BUDGET = 2.5  # seconds
QUIET = {"budget": 0.0, "progress": False}


@pytest.fixture(scope="module")
def compiled(trained, split):
    x, y, test = split.train.x.float(), split.train.y, (split.test.x.float(), split.test.y)
    return nsd.compile_deq(trained, x, y, family="fitted:2", test=test, keep=0.95, budget=BUDGET, progress=False)


@pytest.fixture(scope="module")
def frontier(compiled):
    return compiled.frontier


def steps(k):
    return f"{k} step{'s' * (k > 1)}"


def test_every_way_is_there_and_the_deq_first(frontier):
    names = [way.name for way in frontier.ways]
    untrained = [
        "the DEQ",
        *(f"the DEQ at tolerance {tol}" for tol in ("0.001", "0.01", "0.1")),
        "the DEQ by Peaceman–Rachford",
        *(f"the DEQ cut after {steps(k)}" for k in (12, 8, 5, 3, 2, 1)),
        *(f"the linear response, then {steps(k)}" for k in (2, 1)),
        *(f"the explicit twin, 2 × {width}" for width in (64, 32)),
        "the linear response",
    ]
    assert set(names[: len(untrained)]) == set(untrained)
    learnt = {"1 learnt step", "2 learnt steps", "4 learnt steps", "8 learnt steps"}
    distilled = {f"the explicit twin, 2 × {width}, distilled" for width in (64, 32)} | {"the linear response, distilled"}
    plain = {"a plain network, 2 × 64", "a plain network, 2 × 32", "a plain network, 1 × 64"}
    assert set(names[len(untrained) :]) - learnt == distilled | plain
    assert "1 learnt step" in names
    assert {way.name for way in frontier.ways if way.plain} == plain
    assert {way.name for way in frontier.ways if way.iterates} == set(untrained[:5])
    first = frontier.ways[0]
    assert names[0] == "the DEQ"
    assert (first.agreement, first.output_error, first.kept) == (1.0, 0.0, 1.0)
    assert all(way.milliseconds > 0.0 for way in frontier.ways)
    assert {way.name for way in frontier.ways if way.seconds} == set(names[len(untrained) :])
    assert sum(way.seconds for way in frontier.ways) < 1.5 * BUDGET


def test_no_two_ways_have_the_same_name(trained, split):
    """Whatever the depth of the twin: with one layer it has the shape of the linear response."""
    x, y = split.train.x.float(), split.train.y
    ways = nsd.compile_deq(trained, x, y, family="matched", budget=0.5, progress=False).frontier.ways
    names = [way.name for way in ways]
    assert sorted(names) == sorted(set(names))


def test_cut_deqs_are_ones_own_loop(trained, frontier, split):
    deq, x, y = trained, split.test.x.float(), split.test.y
    with torch.no_grad():
        weight, u = deq.terms(x)
        wanted, s = deq(x), torch.tanh(u)
        for k in range(1, 9):
            s = torch.tanh(s @ weight.T + u)
            out = s / math.sqrt(64) @ deq.readout.weight.T + deq.readout.bias
            if k not in (1, 2, 3, 5, 8):
                continue
            way = frontier[f"the DEQ cut after {steps(k)}"]
            torch.testing.assert_close(way.module(x), out, rtol=1e-5, atol=1e-5)
            assert way.agreement == float((out.argmax(1) == wanted.argmax(1)).double().mean())
            assert way.score == score(out, y)
            error = float(((out - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean()).sqrt())
            assert way.output_error == pytest.approx(error, rel=1e-2, abs=1e-5)
            assert way.mflop == pytest.approx(2e-6 * (64 * 64 + k * 64 * 64 + 64 * 10))
    errors = [frontier[f"the DEQ cut after {steps(k)}"].output_error for k in (8, 5, 3, 2, 1)]
    assert errors == sorted(errors)


def test_looser_deqs_are_deqs_of_that_tolerance(trained, frontier, split):
    x = split.test.x.float()
    for tol in (1e-3, 1e-2, 1e-1):
        way = frontier[f"the DEQ at tolerance {tol:g}"]
        assert isinstance(way.module, nsd.DEQ)
        assert way.module.plan == dataclasses.replace(trained.plan, tol=tol)
        with torch.no_grad():
            assert way.score == score(way.module(x), split.test.y)
            assert float(way.module.solve(x).residual.max()) <= tol
            with FlopCounterMode(display=False) as counter:
                way.module(x[:64])
        assert way.mflop == pytest.approx(1e-6 * counter.get_total_flops() / 64)
    assert trained.plan.tol is None  # untouched by the frontier
    assert frontier["the DEQ at tolerance 0.1"].mflop < frontier.ways[0].mflop


def test_an_absolute_tolerance(trained, split):
    """A looser one is relative, whatever the DEQ's own."""
    x = split.train.x.float()
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), 64, 64, 10, readout_bias=True, relative=False, tol=1e-4)
    deq.load_state_dict(trained.state_dict())
    frontier = nsd.compile_deq(deq, x, family="matched", **QUIET).frontier
    way = frontier["the DEQ at tolerance 0.01"]
    assert 0.0 < way.output_error < 0.05
    assert way.mflop < frontier.ways[0].mflop


def test_splitting_gives_the_same_answers(frontier):
    way = frontier["the DEQ by Peaceman–Rachford"]
    assert isinstance(way.module, nsd.DEQ)
    assert isinstance(way.module.plan.solver, nsd.fixed_points.PeacemanRachford)
    assert way.output_error < 1e-3
    assert way.agreement == 1.0


def test_plain_networks_cost_what_the_explicit_ones_cost_and_learn(frontier, split):
    pairs = {
        "the explicit twin, 2 × 64": "a plain network, 2 × 64",
        "the explicit twin, 2 × 32": "a plain network, 2 × 32",
        "the linear response": "a plain network, 1 × 64",
    }
    for ours, theirs in pairs.items():
        way = frontier[theirs]
        assert (way.plain, way.mflop) == (True, frontier[ours].mflop)
        with torch.no_grad():
            assert way.score == score(way.module(split.test.x.float()), split.test.y)
        assert way.score > 0.6  # of ten classes, in a fraction of a second
        assert way.module.net == nsd.Explicit(["relu"] * len(way.module.widths))


def test_learnt_steps_beat_plain_ones(frontier, split, trained):
    way = frontier["1 learnt step"]
    assert isinstance(way.module, Unrolled)
    assert way.mflop == pytest.approx(frontier["the DEQ cut after 1 step"].mflop)
    assert way.output_error < frontier["the DEQ cut after 1 step"].output_error
    x = split.test.x.float()
    with torch.no_grad():
        assert way.agreement == float((way.module(x).argmax(1) == trained(x).argmax(1)).double().mean())


def test_more_steps_are_not_tried_where_few_keep_enough(frontier):
    learnt = [way for way in frontier.ways if "learnt" in way.name]
    assert not any(frontier.keeps(way) for way in learnt[:-1])
    assert frontier.keeps(learnt[-1]) or len(learnt) == 4


def ways_of(merits):
    return [Way(f"way {k}", cost, 1.0, kept, 0.0, good) for k, (cost, kept, good) in enumerate(merits)]


def test_pareto_marks_by_brute_force(frontier):
    draw = torch.Generator().manual_seed(0)
    drawn = ways_of((torch.randint(1, 5, (40, 3), generator=draw) / 4.0).tolist())
    for ways in (frontier.ways, optimal(drawn), optimal(ways_of([(1.0, 0.5, None), (1.0, 0.5, None), (2.0, 0.5, None)]))):
        for way in ways:
            at_least = [
                other
                for other in ways
                if other.mflop <= way.mflop and other.kept >= way.kept and (way.score is None or other.score >= way.score)
            ]
            same = [other for other in at_least if (other.mflop, other.kept, other.score) == (way.mflop, way.kept, way.score)]
            assert way.optimal == (len(at_least) == len(same))
        assert 0 < sum(way.optimal for way in ways) < len(ways)


@pytest.mark.parametrize(("keep", "plain_score"), list(itertools.product((0.4, 0.8, 0.97, 1.0), (0.1, 0.99))))
def test_the_verdict_names_the_cheapest_that_keeps_enough(keep, plain_score):
    ways = ways_of([(9.0, 1.0, 0.9), (5.0, 0.98, 0.9), (3.0, 0.98, 0.9), (1.0, 0.7, 0.6)])
    plain = dataclasses.replace(ways_of([(2.0, 0.5, plain_score)])[0], name="plain", plain=True)
    found = Frontier((*ways, plain), keep, 100, "accuracy")
    # With a standard deviation to spare: 0.98 of 100 samples are 0.98 ± 0.014.
    enough = [way for way in ways if way is ways[0] or surely(way.kept, True, 100) >= keep]
    cheapest = next(way for way in enough if all(way.mflop <= other.mflop for other in enough))
    assert found.faithful == cheapest
    wins = plain_score == 0.99 and cheapest.mflop >= 2.0
    assert found.chosen == (plain if wins else cheapest)
    assert f"Deploy {'the DEQ as it is' if found.chosen is ways[0] else found.chosen.name}" in found.verdict
    assert found.verdict.endswith(".")
    assert f"{keep:.1%}" in found.verdict or found.chosen == cheapest


@pytest.mark.parametrize(("rival", "named"), [(0.99, True), (0.92, False)])
def test_a_plain_network_that_scores_clearly_better_is_mentioned(rival, named):
    """By more than a standard error, 0.03, and no dearer than the DEQ."""
    ways = ways_of([(9.0, 1.0, 0.9), (1.0, 0.99, 0.9)])
    plain = dataclasses.replace(ways_of([(2.0, 0.5, rival)])[0], name="plain", plain=True)
    assert (
        "Where answers of its own will do, plain is surely better" in Frontier((*ways, plain), 0.95, 100, "accuracy").verdict
    ) == named


def plain_way(merits, **changes):
    return dataclasses.replace(ways_of([merits])[0], name="plain", plain=True, **changes)


@pytest.mark.parametrize(
    ("cost", "good", "wins"),
    [(2.0, 0.9, False), (2.0, 0.91, True), (1.9, 0.9, True), (1.9, 0.89, False), (2.1, 0.99, False), (0.0, 0.9, True)],
)
def test_a_plain_network_is_deployed_where_it_is_better_in_one_thing_and_worse_in_none(cost, good, wins):
    ways = ways_of([(9.0, 1.0, 0.9), (2.0, 1.0, 0.9)])
    plain = plain_way((cost, 0.5, good))
    assert Frontier((*ways, plain), 0.9, 100, "accuracy").chosen == (plain if wins else ways[1])


def test_of_plain_networks_the_cheapest_then_the_best_is_deployed():
    ways = ways_of([(9.0, 1.0, 0.9), (4.0, 1.0, 0.9)])
    rivals = [plain_way((cost, 0.5, good)) for cost, good in ((3.0, 0.99), (2.0, 0.91), (2.0, 0.95), (2.0, 0.93))]
    assert Frontier((*ways, *rivals), 0.9, 100, "accuracy").chosen == rivals[2]


def judged(*merits, keep=0.9, samples=100, measure=None, **more):
    """The frontier of some ways (MFLOP, share of the answers)."""
    ways = tuple(Way(f"way {k}", cost, 1.0, kept, 0.0, **more) for k, (cost, kept) in enumerate(merits))
    return Frontier(ways, keep, samples, measure)


def test_a_verdict_on_ways_without_flops():
    """Such as a map without any matrix product."""
    for found, name in ((judged((0.0, 1.0), (0.0, 0.99)), "way 0"), (judged((1.0, 1.0), (0.0, 0.99)), "way 1")):
        assert found.chosen.name == name
        assert "times fewer FLOPs" not in found.verdict
        assert found.verdict.startswith("Deploy ")
    certificate = Certificate.of(judged((0.0, 1.0), (0.0, 0.99)), 100, 3)
    assert math.isnan(certificate.expected_speedup)
    assert certificate.summary()
    assert Certificate.of(judged((3.0, 1.0), (2.0, 0.99)), 100, 3).expected_speedup == pytest.approx(1.5)


def test_no_time_at_all():
    ways = judged((2.0, 1.0), (1.0, 1.0)).ways
    found = Frontier((ways[0], dataclasses.replace(ways[1], milliseconds=0.0)), 0.9, 100, None)
    assert "Deploy way 1" in found.verdict


@pytest.mark.parametrize("samples", [1, 2, 7, 99, 1000])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99, 1.0])
def test_what_is_surely_kept_is_a_standard_deviation_below(samples, share):
    """Of the share that it says: |p − s| = √(s (1 − s)/n)."""
    agree = round(share * samples)
    kept = agree / samples
    least = surely(kept, True, samples)
    assert 0.0 <= least <= kept
    assert kept - least == pytest.approx(math.sqrt(least * (1.0 - least) / samples), abs=1e-9)
    assert surely(kept, False, samples) == kept


def test_what_is_surely_kept_covers():
    """Of many draws of n answers, about 84 % of the bounds, or more where n is small, are below the truth."""
    draw, truth = torch.Generator().manual_seed(0), 0.97
    for samples in (20, 100, 1000):
        kept = (torch.rand(4000, samples, generator=draw) < truth).double().mean(1)
        below = sum(surely(share, True, samples) <= truth for share in kept.tolist()) / len(kept)
        assert 0.75 < below <= 1.0


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_so_many_samples_make_a_share_sure(keep):
    least = needed(keep)
    assert surely(1.0, True, least) >= keep > surely(1.0, True, least - 1)


@pytest.mark.parametrize(
    ("samples", "keep", "few"),
    [(1, 0.9, True), (8, 0.9, True), (9, 0.9, False), (98, 0.99, True), (99, 0.99, False), (10**6, 1.0, True)],
)
def test_what_few_samples_cannot_make_sure(samples, keep, few):
    """Even where all of their answers are kept."""
    found = judged((2.0, 1.0), (1.0, 1.0), keep=keep, samples=samples)
    assert found.faithful.name == ("way 0" if few else "way 1")
    more = f"Fewer than {needed(keep)}" if keep < 1.0 else "However many"
    assert (f"{more} samples cannot make {keep:.1%} sure" in found.verdict) == few
    assert f"on {samples} held-out sample{'s' * (samples > 1)} {'nothing cheaper' if few else 'it'}" in found.verdict
    assert (
        f"way 1 comes nearest (100.0% here, surely {_shown(samples / (samples + 1))}, 1 times as fast)" in found.verdict
    ) == few
    numbers = Frontier((Way("the DEQ", 2.0, 1.0, None, 0.0), Way("one", 1.0, 1.0, None, 0.0)), keep, samples, None)
    assert "cannot make" not in numbers.verdict


def _shown(share):
    return f"{share:.1%}" if share < 0.9995 else f"{share:.3%}"


@pytest.mark.parametrize(
    ("share", "said"), [(1.0, "100.0%"), (0.9996, "99.960%"), (0.99996, "99.996%"), (0.9994, "99.9%"), (0.991, "99.1%")]
)
def test_shares_near_one_are_told_from_it(share, said):
    found = judged((2.0, 1.0), (1.0, share), samples=10**8)
    assert f"it keeps {said} of the DEQ's answers" in found.verdict
    kept = judged((2.0, 1.0), (1.0, 0.5), keep=share).verdict
    assert f"nothing cheaper surely keeps {said} of its answers; way 1 comes nearest (50.0%, 1 times as fast)" in kept


def test_a_standard_deviation_is_asked_for_and_said():
    """Of the DEQ itself none is."""
    found = judged((2.0, 1.0), (1.0, 0.97), keep=0.96)  # ± 0.017
    assert judged((2.0, 0.5), (1.0, 0.2)).faithful.name == "way 0"  # of a DEQ that never answers the same
    assert found.chosen.name == "way 0"
    assert "way 1 comes nearest (97.0% here, surely 94.8%, 1 times as fast)" in found.verdict
    assert judged((2.0, 1.0), (3.0, 0.9), keep=1.0).verdict.count("(") == 0  # no way is cheaper
    assert judged((2.0, 1.0), (1.0, 0.97), keep=0.94).chosen.name == "way 1"


def test_remarks_of_a_verdict():
    learning = plain_way((2.0, 0.5, 0.5), finished=False)
    ways = ways_of([(9.0, 1.0, 0.9), (1.0, 1.0, 0.9)])
    said = Frontier((*ways, learning), 0.9, 100, "accuracy").verdict
    assert "still learning when their time was up" in said
    assert "If the DEQ was trained on these samples too" in said
    said = Frontier((*ways, dataclasses.replace(learning, finished=True)), 0.9, 100, "accuracy", unseen=True).verdict
    assert ("still learning" in said, "If the DEQ" in said, "100 unseen samples" in said) == (False, False, True)


SCALES = torch.tensor([1.0, 100.0])
NUMBERS = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) * SCALES


@pytest.mark.parametrize("y", [NUMBERS, None, torch.zeros(50, dtype=torch.int64)], ids=["numbers", "known", "classes"])
def test_each_of_several_numbers_has_its_own_spread(y):
    """And scores of classes have one together."""
    mean = NUMBERS.mean(0)
    wrong = torch.stack([mean[0].expand(50), NUMBERS[:, 1]], 1)  # nothing of the first column
    answers = Answers(NUMBERS, y, False if y is None else None)
    numbers = y is None or y.is_floating_point()
    assert answers.classifies != numbers
    assert answers.error(wrong) == pytest.approx(0.5**0.5 if numbers else 0.01, rel=1e-5 if numbers else 0.3)
    trial = Trial(NUMBERS, torch.arange(50), torch.arange(0), NUMBERS, y, classifies=False if y is None else None)
    rows = torch.arange(50)
    loss = float(trial.distillation(torch.nn.Identity())(lambda _: wrong, rows))
    assert loss == pytest.approx(answers.error(wrong) ** 2, rel=1e-4)


def test_a_constant_column_weighs_no_more_than_it_must():
    wanted = torch.cat([NUMBERS, torch.full((50, 1), 3.0)], 1)
    apart = wanted + torch.tensor([0.0, 0.0, 1e-3])
    assert Answers(wanted, None, False).error(apart) == pytest.approx(0.01 / 3**0.5, rel=0.3)


@pytest.mark.parametrize(
    ("known", "classifies"),
    [({"classes": ("a", "b")}, True), ({"targets": nsd.data.Standardiser.of(NUMBERS, per_feature=True)}, False), ({}, True)],
    ids=["classes", "targets", "neither"],
)
def test_what_outputs_mean_is_known_from_the_preprocessing(known, classifies):
    """Without y; where it says neither, several outputs are scores of classes."""
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) / 6**0.5
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), 6, 8, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        deq.readout.weight.mul_(2.0)
    deq.preprocessing = nsd.data.Preprocessing(**known)
    compiled = nsd.compile_deq(deq, x, family="matched", **QUIET)
    assert (compiled.certificate.agreement is not None) == classifies
    assert all((way.agreement is not None) == classifies for way in compiled.frontier.ways)


def raising(_):
    raise nsd.NotConverged("no equilibrium", residual=1.0, steps=3)


@pytest.mark.parametrize("teacher", [raising, lambda x: x * torch.nan], ids=["raises", "NaN"])
def test_samples_that_are_made_and_have_no_equilibrium_teach_nothing(teacher):
    """The samples that they were made of do."""
    trial = Trial(NUMBERS, torch.arange(50), torch.arange(0), 2.0 * NUMBERS, augment=lambda x: 100.0 * x)
    network, rows = torch.nn.Linear(2, 2), torch.arange(7)
    wanted = dataclasses.replace(trial, augment=None).distillation(teacher)(network, rows)
    assert torch.equal(trial.distillation(teacher)(network, rows), wanted)
    assert not torch.equal(trial.distillation(lambda x: 2.0 * x)(network, rows), wanted)


def test_summary_and_json(frontier):
    text = " ".join(frontier.summary().split())
    assert all(way.name in text for way in frontier.ways if len(way.name) < 25)  # longer ones are broken into two lines
    assert frontier.verdict in text
    rows, legend = frontier.table().split("\n\n")
    assert rows.count("*") == sum(way.optimal for way in frontier.ways)
    assert rows.count("(time up)") == sum(not way.finished for way in frontier.ways)
    assert len(rows.splitlines()) == 2 + len(frontier.ways)  # none takes two lines
    assert legend.startswith("* no other way is as cheap")
    record = frontier.to_dict()
    assert json.loads(json.dumps(record)) == record
    assert (record["verdict"], record["chosen"]) == (frontier.verdict, frontier.chosen.name)
    fields = {each.name for each in dataclasses.fields(Way)}
    again = [Way(**{name: value for name, value in way.items() if name in fields}) for way in record["ways"]]
    assert tuple(again) == frontier.ways


def test_of_ways_that_cost_and_keep_the_same_the_untrained_is_taken():
    """And not the one that was a little faster this time."""
    deq, *ways = ways_of([(9.0, 1.0, 0.9), (1.0, 0.99, 0.9), (1.0, 0.99, 0.9), (1.0, 0.98, 0.9)])
    trained = dataclasses.replace(ways[1], milliseconds=0.5, seconds=1.0)
    found = Frontier((deq, trained, ways[0], dataclasses.replace(ways[2], milliseconds=0.1)), 0.9, 100, "accuracy")
    assert found.faithful is ways[0]


def test_a_way_by_name(frontier):
    assert frontier["the DEQ"] is frontier.ways[0]
    with pytest.raises(nsd.BadInput, match="no way 'the deq'; there are the DEQ, "):
        frontier["the deq"]


def test_without_labels_on_what_was_held_out(trained, split):
    compiled = nsd.compile_deq(trained, split.train.x.float(), keep=0.9, family="fitted:2", budget=0.5, progress=False)
    found = compiled.frontier
    assert found.samples == compiled.certificate.held_out == len(split.train.x) // 5
    assert found.measure is None
    assert not [way for way in found.ways if way.plain or way.score is not None]
    assert "accuracy" not in found.summary()
    assert compiled.certificate.scores == ()


def test_real_numbers(split):
    x = split.train.x.float()
    y = torch.stack([torch.sin(x[:, 10:14].sum(1)), x[:, 20]], 1)
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), 64, 48, 2, readout_bias=True, generator=torch.Generator().manual_seed(0))
    nsd.fit_readout(deq, [(x, y)])
    compiled = nsd.compile_deq(deq, x, y, family="matched", budget=0.5, progress=False)
    found = compiled.frontier
    assert found.measure == "R²"
    assert all(way.agreement is None and way.kept == 1.0 - way.output_error**2 for way in found.ways)
    assert "variance" in found.verdict
    assert found.faithful.kept >= 0.99
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: len(x) // 5]
    with torch.no_grad():
        assert found.faithful.score == pytest.approx(score(compiled.network(x[order]), y[order]), rel=1e-5)


def test_a_monotone_deq_of_others():
    """Its plain steps diverge, so cuts of it are damped."""
    draw = torch.Generator().manual_seed(1)
    root, skew, U = (torch.randn(24, k, generator=draw) / 24**0.5 for k in (24, 24, 6))
    W = 0.9 * torch.eye(24) - 0.5 * root.T @ root + skew - skew.T
    deq = nsd.DEQ.from_weights(W, U, R=torch.randn(3, 24, generator=draw), phi="relu")
    x = torch.randn(120, 6, generator=draw)
    found = nsd.compile_deq(deq, x, family="matched", **QUIET).frontier
    errors = [found[f"the DEQ cut after {steps(k)}"].output_error for k in (8, 3, 1)]
    assert errors == sorted(errors)
    assert found.chosen.kept >= 0.99


def test_steps_that_overflow_are_no_answer(trained, split, monkeypatch):
    x, answer = split.train.x.float(), Unrolled.answer

    def overflowing(self, problem):
        return [leaf * (math.inf if self.steps == 5 else 1.0) for leaf in answer(self, problem)]

    monkeypatch.setattr(Unrolled, "answer", overflowing)
    names = [way.name for way in nsd.compile_deq(trained, x, family="matched", **QUIET).frontier.ways]
    assert ("the DEQ cut after 5 steps" in names, "the DEQ cut after 3 steps" in names) == (False, True)


def test_a_deq_without_finite_outputs(trained, split):
    """Nothing can be compared with them."""
    broken = nsd.DEQ(nsd.Implicit("tanh", 0.2), 64, 64, 10, readout_bias=True)
    broken.load_state_dict(trained.state_dict())
    with torch.no_grad():
        broken.readout.bias[3] = math.inf
    x = split.train.x.float()
    with pytest.raises(nsd.NotConverged, match="outputs are not finite"):
        nsd.compile_deq(broken, x, family="matched", **QUIET)


def test_a_figure(frontier):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = frontier.figure()
    assert figure.axes
    pyplot.close(figure)
