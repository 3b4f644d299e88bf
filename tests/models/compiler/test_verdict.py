"""What a verdict tells, of any frontier: of thousands that were drawn, without a network behind them."""

import random
from dataclasses import replace

import pytest

from notsodeep.models import Frontier, Way
from notsodeep.models.compiler.frontier import surely

DRAWN = range(1500)


def shown(share):
    return f"{share:.1%}" if share == 1.0 or share < 0.9995 else f"{share:.3%}"


def figures(value):
    return f"{value:.0f}" if value >= 1000.0 else f"{value:.3g}"


def drawn(seed):
    """A DEQ, some ways in its place and some plain networks, of any costs, times, shares and scores."""
    draw = random.Random(seed)
    counted, scored = draw.random() < 0.7, draw.random() < 0.8
    samples = draw.choice([12, 114, 1000, 5000])

    def way(number, cost, kept, **more):
        score = round(draw.uniform(0.85, 0.95), 4) if scored else None
        agreement = kept if counted else None
        error = 0.1 if counted else (1.0 - kept) ** 0.5
        return Way(f"way {number}", cost, draw.uniform(0.2, 1.0) * cost, agreement, error, score, **more)

    ways = [replace(way(0, 6.0, 1.0), name="the DEQ")]
    for number in range(1, draw.randrange(2, 6)):
        kept = 1.0 - draw.choice([0.0, 0.001, 0.004, 0.02, 0.1]) * draw.random()
        ways.append(way(number, draw.uniform(0.5, 7.0), kept))
    for number in range(draw.randrange(3) if scored else 0):
        plain = way(f"p{number}", draw.choice([0.4, 1.0, 3.0, 7.0]), 0.9, plain=True, finished=draw.random() < 0.5)
        ways.append(replace(plain, name=f"plain {number}"))
    measure = ("accuracy" if counted else "R²") if scored else None
    return Frontier(tuple(ways), draw.choice([0.9, 0.99, 0.999]), samples, measure, draw.random() < 0.5)


def faster(found, way):
    return f"{figures(found.ways[0].milliseconds / way.milliseconds)} times as fast"


def surely_better(found):
    """The best plain network no dearer than the DEQ whose score is surely above that of what is deployed."""
    own = found.chosen.score or 0.0

    def sure(way):
        return surely(way.score, True, found.samples) if found.measure == "accuracy" else way.score - 0.003

    plain = [way for way in found.ways if way.plain and way.mflop <= found.ways[0].mflop and sure(way) > own]
    return max(plain, key=lambda way: way.score, default=None)


@pytest.mark.parametrize("part", range(5))
def test_it_tells_how_much_faster_the_faithful_way_is_and_what_it_keeps(part):
    """Whatever is deployed; where nothing but the DEQ is faithful, of the way that comes nearest."""
    seen = set()
    for seed in DRAWN[part::5]:
        found = drawn(seed)
        deq, first, said = found.ways[0], found.faithful, found.verdict
        seen.add((found.chosen.plain, first is deq))
        cheaper = [way for way in found.ways[1:] if not way.plain and way.mflop < deq.mflop]
        if first is deq:
            assert f"nothing cheaper surely keeps {shown(found.keep)} of " in said
            first = max(cheaper, key=lambda way: (way.kept, -way.mflop), default=None)
        if first is None:
            continue
        assert first.name in said
        assert shown(first.kept) in said
        assert faster(found, first) in said
    assert seen == {(False, False), (False, True), (True, False), (True, True)}


@pytest.mark.parametrize("part", range(5))
def test_it_names_the_plain_network_that_is_surely_better(part):
    """With its score, its cost and its speed; where none is, none is said to be."""
    seen = set()
    for seed in DRAWN[part::5]:
        found = drawn(seed)
        better, said = surely_better(found), found.verdict
        seen.add((better is not None, found.chosen.plain))
        assert ("is surely better" in said) == (better is not None)
        if better is None:
            continue
        assert f"{better.name} is surely better: {found.measure} {better.score:.4f}" in said
        assert faster(found, better) in said
        ratio = found.ways[0].mflop / better.mflop
        assert f"{figures(ratio)} times fewer FLOPs" in said or ratio <= 1.005
    assert {(True, False), (False, False), (False, True)} <= seen


def test_a_plain_network_that_is_cheaper_and_no_worse_is_deployed():
    for seed in DRAWN:
        found = drawn(seed)
        first, chosen = found.faithful, found.chosen
        free = [way for way in found.ways if way.plain and way.mflop < first.mflop and way.score >= (first.score or 0.0)]
        assert chosen.plain or not free
        if chosen.plain:
            assert f"Deploy {chosen.name}, trained on y: " in found.verdict
            assert faster(found, chosen) in found.verdict


def test_the_verdict_of_the_case_on_fashion_mnist():
    """A way that is less than five times as fast, and a plain network that costs more than it and is better."""
    deq = Way("the DEQ", 6.0, 9.0, 1.0, 0.0, 0.8914)
    way = Way("1 learnt step", 1.33, 2.5, 0.9934, 0.05, 0.8908)
    plain = Way("a plain network, 2 × 512", 1.33, 2.0, 0.93, 0.5, 0.9018, plain=True)
    found = Frontier((deq, way, plain), 0.99, 5000, "accuracy", unseen=True)
    assert found.verdict == (
        "Deploy a plain network, 2 × 512, trained on y: with 4.51 times fewer FLOPs than the DEQ and 4.5 times as fast here "
        "(accuracy 0.9018, the DEQ's 0.8914) it does no worse on 5000 unseen samples than 1 learnt step, the cheapest way that "
        "surely keeps 99.0% of the DEQ's answers (99.3%, 3.6 times as fast)."
    )
    dearer = Frontier((deq, way, replace(plain, mflop=2.0, milliseconds=3.0)), 0.99, 5000, "accuracy", unseen=True)
    assert dearer.verdict == (
        "Deploy 1 learnt step: on 5000 unseen samples it keeps 99.3% of the DEQ's answers with 4.51 times fewer FLOPs than the "
        "DEQ and 3.6 times as fast here (accuracy 0.8908, the DEQ's 0.8914). Where answers of its own will do, a plain "
        "network, 2 × 512 is surely better: accuracy 0.9018 against 0.8908, with 3 times fewer FLOPs than the DEQ and 3 times "
        "as fast here."
    )
