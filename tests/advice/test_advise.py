"""The verdict: each branch of its rule at its edges, what it says, and that the order and the names of things do not matter."""

import dataclasses
import json
import math
from functools import cache

import pytest
import torch

import notsodeep as nsd
from notsodeep.advice.advise import Advice, Columns, rule
from notsodeep.advice.evidence import LeftOut, evidence
from notsodeep.advice.race import Race, Runner
from notsodeep.models.training.flops import Flops

VERDICTS = ("deq", "explicit", "neither")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(n, p, seed=0):
    return torch.randn(n, p, generator=generator(seed), dtype=torch.float64)


def runner(*losses):
    return Runner(losses, 1e-2, (3,), 40, Flops(100.0, 200.0), 3e5, 7.0, 0.0, 0)


def raced(deq, explicit):
    return Race(runner(deq, deq + 1e-4), runner(explicit, explicit + 1e-4), 70, 30)


@pytest.fixture(scope="module")
def measured():
    x = gaussian(60, 5)
    return evidence(x, x[:, 0])


def changed(measured, kernels, others, spread=0.0):
    """With both kernels' error and all others' as given."""
    of_kernels, of_others = LeftOut(kernels, spread), LeftOut(others, spread)
    return dataclasses.replace(
        measured, deq=of_kernels, matched=of_kernels, neighbours=of_others, trees=of_others, metric=of_others
    )


@pytest.mark.parametrize(
    ("kernels", "others", "spread", "verdict"),
    [
        (1.0, 1.0, 0.0, "neither"),
        (1.0, 0.95, 0.0, "neither"),
        (0.95, 1.0, 0.0, "neither"),
        (1.0, 0.9499, 0.0, "deq"),  # a twentieth of the label, and all of it missed
        (0.9499, 1.0, 0.0, "explicit"),
        (0.9499, 1.0, 0.001, "neither"),  # the interval reaches beyond
        (0.3, 0.3, 0.0, "explicit"),
        (0.3, 0.1, 0.0, "deq"),
        (0.1999, 0.1, 0.0, "deq"),  # 0.0999/0.9 is over a tenth
        (0.1899, 0.1, 0.0, "explicit"),
        (0.3, 0.1, 0.03, "deq"),
        (0.3, 0.1, 0.04, "explicit"),  # the intervals meet
        (0.1, 0.3, 0.0, "explicit"),
    ],
)
def test_the_rule_at_its_edges(measured, kernels, others, spread, verdict):
    assert rule(changed(measured, kernels, others, spread)) == verdict


def test_one_kernel_that_learns_is_enough(measured):
    assert rule(dataclasses.replace(changed(measured, 0.5, 0.1), matched=LeftOut(0.1, 0.0))) == "explicit"
    assert rule(dataclasses.replace(changed(measured, 0.5, 0.5), trees=LeftOut(0.1, 0.0))) == "deq"


@cache
def tasks():
    x = gaussian(300, 20)
    y = gaussian(300, 1, seed=1)[:, 0]
    return {
        "linear": (x, x[:, 0] - 2.0 * x[:, 1], "explicit"),
        "threshold": (x, (x[:, 0] > 0.0).long(), "deq"),
        "mixture": (*nsd.GaussianMixture.two_classes(60).sample(300, generator()), "explicit"),
        "noise": (x, y, "neither"),
        "noise in classes": (x, (y > 0.0).long(), "neither"),
    }


@cache
def advised(name):
    x, y, _ = tasks()[name]
    return nsd.advise(x, y)


@pytest.mark.parametrize("name", tasks())
def test_tasks_whose_answer_is_clear(name):
    assert advised(name).verdict == tasks()[name][-1]


@pytest.mark.parametrize(("seed", "name"), list(enumerate(tasks(), start=1)))
def test_the_order_of_the_samples_does_not_matter(name, seed):
    x, y, verdict = tasks()[name]
    order = torch.randperm(len(x), generator=generator(seed))
    assert nsd.advise(x[order], y[order], seed=seed).verdict == verdict


@pytest.mark.parametrize(
    ("name", "names"),
    [("threshold", [1, 0]), ("mixture", [7, -3]), ("noise in classes", ["yes", "no"]), ("mixture", ["yes", "no"])],
)
def test_the_names_of_the_classes_do_not_matter(name, names):
    x, y, verdict = tasks()[name]
    renamed = [names[k] for k in y.tolist()]
    found, of_renamed = advised(name), nsd.advise(x, renamed if isinstance(names[0], str) else torch.tensor(renamed))
    assert of_renamed.verdict == found.verdict == verdict
    assert of_renamed.measured.kernels.mean == pytest.approx(found.measured.kernels.mean, rel=1e-9)


@pytest.mark.parametrize(("kernels", "others"), [(1.0, 1.0), (0.3, 0.3), (0.2, 0.15), (0.3, 0.1)])
@pytest.mark.parametrize("race", [None, raced(0.5, 0.2), raced(0.2, 0.5), raced(1.1, 1.2)])
def test_three_sentences_with_numbers(measured, kernels, others, race):
    found = Advice(changed(measured, kernels, others), race)
    assert len(found.sentences) == 3
    for sentence in found.sentences:
        assert sentence.endswith(".")
        assert ". " not in sentence  # one sentence, not two
    assert f"{kernels:.3g}" in found.sentences[1]
    assert f"{others:.3g}" in found.sentences[1]
    assert found.sentences[0].startswith(
        {"deq": "Use a DEQ", "explicit": "Use the explicit network", "neither": "Use neither"}[found.verdict]
    )


def test_training_decides_and_says_so(measured):
    before = Advice(changed(measured, 0.3, 0.1))
    assert before.rule == before.verdict == "deq"
    assert "Nothing was trained" in before.sentences[2]
    same, other = before.with_race(raced(0.1, 0.2)), before.with_race(raced(0.2, 0.1))
    assert same.verdict == "deq"
    assert "agrees" in same.sentences[2]
    assert other.rule == "deq"
    assert other.verdict == "explicit"
    assert "training showed otherwise" in other.sentences[0]
    assert "0.2 " in other.sentences[2]
    assert "agrees" not in other.sentences[2]
    assert {name for name, _, _ in same.evidence} > {name for name, _, _ in before.evidence}


def test_the_table_holds_every_measurement(measured):
    found = Advice(measured, raced(0.1, 0.2))
    text = str(found)
    assert text == found.summary()
    squeezed = " ".join(text.split())
    assert all(sentence in squeezed for sentence in found.sentences)
    for row in found.evidence:
        assert all(part in text for part in row)
    assert found.evidence[: len(measured.rows())] == measured.rows()


def test_it_is_a_frozen_value_that_json_can_keep(measured):
    found = Advice(measured, raced(0.1, 0.2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.race = None
    record = json.loads(json.dumps(found.to_dict()))
    assert record["verdict"] == "deq"
    assert record["rule"] == "explicit"
    assert record["measured"]["deq"]["mean"] == measured.deq.mean
    assert record["race"]["outcome"] == "deq"
    assert len(record["sentences"]) == 3


def test_a_feature_that_dominates_is_scaled_and_told():
    x, y, _ = tasks()["threshold"]
    stretched = x.clone()
    stretched[:, 7] *= 1e4  # a feature of no use, in small units
    found, plain = nsd.advise(stretched, y), nsd.advise(x / x.std(0, correction=0), y)
    assert plain.dominated is None
    assert found.dominated == pytest.approx(1.0, abs=1e-5)
    assert found.verdict == "deq"
    assert found.measured.kernels.mean == pytest.approx(plain.measured.kernels.mean, rel=1e-6)
    assert "unit variance" in found.sentences[1]
    assert "unit variance" not in plain.sentences[1]
    assert any("unit variance" in meaning for _, _, meaning in found.evidence)
    assert evidence(stretched, y).kernels.low > plain.measured.kernels.high  # what they would see without


def test_what_columns_are_divided_by():
    x = gaussian(50, 3)
    assert not Columns.of(x).scaled
    assert torch.equal(Columns.of(x)(x), x)
    assert not Columns.of(x[:, :1]).scaled  # one feature is all there is
    x[:, 0] *= 100.0
    x[:, 1] = 0.1  # whose variance is rounding, at most
    columns = Columns.of(x)
    assert columns.scaled
    assert columns.divisors[1] == 1.0
    torch.testing.assert_close(columns(x).var(0, correction=0)[[0, 2]], torch.ones(2, dtype=torch.float64))
    with pytest.raises(nsd.BadInput, match="3 elsewhere"):
        columns(x[:, :2])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (gaussian(20, 3), torch.full((20,), math.nan), "NaN"),
        (gaussian(20, 3), torch.ones(20), "All labels are equal"),
        (gaussian(20, 3) * math.nan, torch.randn(20), "NaN or infinity"),
        (torch.ones(20, 3), torch.randn(20), "samples are equal"),
        (gaussian(20, 3)[:, 0], torch.randn(20), "expected \\(n, p\\)"),
    ],
)
def test_what_is_no_task_is_refused(x, y, message):
    with pytest.raises(nsd.BadInput, match=message):
        nsd.advise(x, y)


def test_train_runs_the_race(monkeypatch, measured):
    asked = {}

    def race(x, y, **options):
        asked.update(options, x=x, y=y)
        return raced(0.1, 0.2)

    monkeypatch.setattr("notsodeep.advice.advise.race", race)
    x = gaussian(60, 5)
    test, said = (gaussian(9, 5), gaussian(9, 1)), []
    found = nsd.advise(x, x[:, 0], train=True, test=test, say=said.append)
    assert found.race == raced(0.1, 0.2)
    assert found.measured == measured
    assert asked["test"] is test
    assert torch.equal(asked["x"], x)
    assert said
