"""The frontier of a trained DEQ: what each way costs and keeps, and which to deploy."""

import dataclasses
import itertools
import json
import math
from types import SimpleNamespace

import pytest
import torch

import notsodeep as nsd
from notsodeep.data import load_split
from notsodeep.models import Frontier, Way
from notsodeep.models.frontier import optimal
from notsodeep.models.training.objective import score


@pytest.fixture(scope="module")
def split():
    return load_split("digits:n=700")


@pytest.fixture(scope="module")
def compiled(split):
    x, y = split.train.x.float(), split.train.y
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), 64, 64, 10, readout_bias=True, generator=torch.Generator().manual_seed(0))
    batches = nsd.training.Batches(x, y, 64, torch.Generator().manual_seed(0))
    nsd.fit_readout(deq, batches)
    nsd.fit(deq, batches, 4, optimiser=torch.optim.Adam(deq.parameters(), lr=1e-2), progress=False)
    found = nsd.compile_deq(deq, x, y, family="fitted:2")
    return deq, found


@pytest.fixture(scope="module")
def frontier(compiled, split):
    return compiled[1].frontier(split.train.y, test=(split.test.x.float(), split.test.y), keep=0.95)


def by_name(frontier, start):
    return next(way for way in frontier.ways if way.name.startswith(start))


def test_every_way_is_there_and_the_deq_first(frontier):
    names = [way.name for way in frontier.ways]
    assert names == [
        "the DEQ",
        *(f"the DEQ at tolerance {tol}" for tol in ("0.001", "0.01", "0.1")),
        *(f"the DEQ cut after {k} step{'s' * (k > 1)}" for k in (8, 5, 3, 2, 1)),
        *(f"{kind}, 2 layers of {width}" for kind in ("explicit", "a plain network") for width in (64, 32)),
    ]
    first = frontier.ways[0]
    assert (first.agreement, first.output_error, first.kept) == (1.0, 0.0, 1.0)
    assert all(way.milliseconds > 0.0 for way in frontier.ways)


def test_cut_deqs_are_ones_own_loop(compiled, frontier, split):
    deq, x, y = compiled[0], split.test.x.float(), split.test.y
    with torch.no_grad():
        weight, u = deq.terms(x)
        wanted, s = deq(x), torch.tanh(u)
        for k in range(1, 9):
            s = torch.tanh(s @ weight.T + u)
            out = s / math.sqrt(64) @ deq.readout.weight.T + deq.readout.bias
            torch.testing.assert_close(deq.cut(x, k), out, rtol=1e-5, atol=1e-5)
            if k not in (1, 2, 3, 5, 8):
                continue
            way = by_name(frontier, f"the DEQ cut after {k} ")
            assert way.agreement == float((out.argmax(1) == wanted.argmax(1)).double().mean())
            assert way.score == score(out, y)
            error = float(((out - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean()).sqrt())
            assert way.output_error == pytest.approx(error, rel=1e-2, abs=1e-5)
            assert way.mflop == pytest.approx(2e-6 * (64 * 64 + k * 64 * 64 + 64 * 10))
    errors = [by_name(frontier, f"the DEQ cut after {k} ").output_error for k in (8, 5, 3, 2, 1)]
    assert errors == sorted(errors)


@pytest.mark.parametrize("options", [{}, {"well_posed": "monotone"}, {"solver": nsd.Picard(damping=0.5)}], ids=str)
def test_a_cut_deq_is_the_exported_one(options, tmp_path):
    pytest.importorskip("onnx")
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), 5, 16, 3, generator=torch.Generator().manual_seed(0), **options)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    file = deq.to_onnx(tmp_path / "cut.onnx", nsd.fixed_points.Steps(3), check=False)
    (out,) = pytest.importorskip("onnxruntime").InferenceSession(file).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), deq.cut(x, 3), rtol=1e-4, atol=1e-5)
    assert float((deq.cut(x, 3) - deq(x)).abs().max()) > 1e-4


def test_looser_deqs_are_deqs_of_that_tolerance(compiled, frontier, split):
    deq, x = compiled[0], split.test.x.float()
    for tol in (1e-3, 1e-2, 1e-1):
        way = by_name(frontier, f"the DEQ at tolerance {tol:g}")
        plan, deq.plan = deq.plan, dataclasses.replace(deq.plan, tol=tol)
        try:
            with torch.no_grad():
                assert way.score == score(deq(x), split.test.y)
                assert way.mflop == pytest.approx(deq.flops(deq.solve(x).evaluations) / 1e6)
        finally:
            deq.plan = plan
    assert deq.plan.tol is None  # untouched by the frontier
    assert by_name(frontier, "the DEQ at tolerance 0.1").mflop < frontier.ways[0].mflop


def test_plain_networks_cost_what_the_twins_cost_and_learn(compiled, frontier, split):
    for twin, plain, network in zip(frontier.ways[-4:-2], frontier.ways[-2:], frontier.plain, strict=True):
        assert (plain.plain, plain.mflop) == (True, twin.mflop)
        with torch.no_grad():
            assert plain.score == score(network(split.test.x.float()), split.test.y)
        assert plain.score > 0.85
    assert frontier.ways[-4].mflop == compiled[1].network.flops() / 1e6


def ways_of(merits):
    return [Way(f"way {k}", "", cost, 1.0, kept, 0.0, good) for k, (cost, kept, good) in enumerate(merits)]


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


@pytest.mark.parametrize(("keep", "plain_score"), itertools.product((0.4, 0.8, 0.97, 1.0), (0.1, 0.99)))
def test_the_verdict_names_the_cheapest_that_keeps_enough(keep, plain_score):
    ways = ways_of([(9.0, 1.0, 0.9), (5.0, 0.98, 0.9), (3.0, 0.98, 0.9), (1.0, 0.7, 0.6)])
    plain = dataclasses.replace(ways_of([(2.0, 0.5, plain_score)])[0], name="plain", plain=True)
    found = Frontier((*ways, plain), keep, 100, "accuracy")
    enough = [way for way in ways if way.kept >= keep]
    cheapest = next(way for way in enough if all(way.mflop <= other.mflop for other in enough))
    assert found.faithful == cheapest
    wins = plain_score == 0.99 and cheapest.mflop >= 2.0
    assert found.chosen == (plain if wins else cheapest)
    assert f"Deploy {'the DEQ as it is' if found.chosen is ways[0] else found.chosen.name}" in found.verdict
    assert found.verdict.endswith(".")
    assert f"{keep:.1%}" in found.verdict or found.chosen == cheapest


def test_summary_and_json(frontier):
    text = frontier.summary()
    assert all(way.name in text for way in frontier.ways)
    assert frontier.verdict in text
    assert text.count("*") == sum(way.optimal for way in frontier.ways)
    record = frontier.to_dict()
    assert json.loads(json.dumps(record)) == record
    assert record["verdict"] == frontier.verdict
    fields = {each.name for each in dataclasses.fields(Way)}
    again = [Way(**{name: value for name, value in way.items() if name in fields}) for way in record["ways"]]
    assert tuple(again) == frontier.ways


def test_without_labels_on_what_was_held_out(compiled):
    found = compiled[1].frontier(keep=0.9)
    assert found.samples == compiled[1].certificate.held_out
    assert not found.plain
    assert found.measure is None
    assert not [way for way in found.ways if way.plain or way.score is not None]
    assert by_name(found, "explicit, 2 layers of 64").agreement == compiled[1].certificate.agreement
    assert "accuracy" not in found.summary()


def test_real_numbers(split):
    x = split.train.x.float()
    y = torch.stack([torch.sin(x[:, 10:14].sum(1)), x[:, 20]], 1)
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), 64, 48, 2, readout_bias=True, generator=torch.Generator().manual_seed(0))
    nsd.fit_readout(deq, [(x, y)])
    found = nsd.compile_deq(deq, x, y, family="matched").frontier(y)
    assert found.measure == "R²"
    assert all(way.agreement is None and way.kept == 1.0 - way.output_error**2 for way in found.ways)
    assert "of the DEQ's variance" in found.verdict or "of its variance" in found.verdict
    assert found.faithful.kept >= 0.99


def test_a_monotone_deq_of_others():
    """Its plain steps diverge, so cuts of it are damped."""
    draw = torch.Generator().manual_seed(1)
    root, skew, U = (torch.randn(24, k, generator=draw) / 24**0.5 for k in (24, 24, 6))
    W = 0.9 * torch.eye(24) - 0.5 * root.T @ root + skew - skew.T
    deq = nsd.DEQ.from_weights(W, U, R=torch.randn(3, 24, generator=draw), phi="relu")
    found = nsd.compile_deq(deq, torch.randn(120, 6, generator=draw), family="matched").frontier()
    errors = [by_name(found, f"the DEQ cut after {k} ").output_error for k in (8, 3, 1)]
    assert errors == sorted(errors)
    assert found.chosen.kept >= 0.99


def test_steps_that_overflow_are_no_answer(compiled, split, monkeypatch):
    cut = nsd.DEQ.cut
    monkeypatch.setattr(nsd.DEQ, "cut", lambda self, x, steps: cut(self, x, steps) * (math.inf if steps == 5 else 1.0))
    names = [way.name for way in compiled[1].frontier().ways]
    assert ("the DEQ cut after 5 steps" in names, "the DEQ cut after 3 steps" in names) == (False, True)
    monkeypatch.setattr(nsd.DEQ, "forward", lambda _, x: torch.full((len(x), 10), math.nan))
    with pytest.raises(nsd.NotConverged, match="not finite for 140 of 140"):
        compiled[1].frontier(split.train.y, test=(split.test.x.float(), split.test.y))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda given: given.compiled.frontier(given.y, keep=1.5), "at most 1"),
        (lambda given: given.compiled.frontier(given.y, keep=0), "keep"),
        (lambda given: given.compiled.frontier(given.y[:5]), r"\(5,\)"),
        (lambda given: given.compiled.frontier(given.y, test=given.x), "pair"),
        (lambda given: given.compiled.frontier(given.y, test=(given.x[:, :3], given.y)), "64"),
        (lambda given: given.compiled.frontier(given.y, test=(given.x, None)), "Labels are needed both"),
        (lambda given: given.compiled.frontier(torch.arange(len(given.x)) % 12), "12 outputs and the DEQ has 10"),
        (lambda given: given.compiled.frontier(torch.randn(len(given.x))), "1 outputs and the DEQ has 10"),
        (lambda given: nsd.compile_deq(nsd.DEQ(nsd.Implicit("tanh", 0.2), 64, 8, 3), given.x).frontier(), "as it was drawn"),
        (lambda given: nsd.compile_deq(nsd.DEQ(nsd.Implicit("tanh", 0.2), 64, 8), given.x).frontier(), "missing"),
        (lambda given: nsd.compile_deq(given.compiled._twins.deq, given.x[:5]).frontier(), "5 samples"),
    ],
)
def test_bad_input(call, says, compiled, split):
    given = SimpleNamespace(compiled=compiled[1], x=split.train.x.float(), y=split.train.y)
    with pytest.raises(nsd.BadInput, match=says):
        call(given)
