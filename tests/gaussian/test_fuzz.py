"""Kernels, dual maps and moments of random activations against an independent integration; benchmarks/fuzz.py takes more."""

import pytest

from tests.gaussian.function_trees import X, of
from tests.gaussian.judge import judge, judge_deq, judge_one
from tests.gaussian.random_functions import Subject, random_case, setting

SEEDS = range(20)
KNOWN = {
    "waves": ("sin(x)", of("sin", X), setting(30.0, 30.0, 0.999)),
    "quick waves": ("sin(10*x)", of("sin", 10.0 * X), setting(5.0, 5.0, 0.5)),
    "waves almost in step": ("cos(3*x)", of("cos", 3.0 * X), setting(100.0, 100.0, 1.0, distance=1e-7)),
    "growing waves": ("x*sin(x)", X * of("sin", X), setting(100.0, 100.0, 0.9999)),
    "far and steep": ("sigmoid(50*(x-3))", of("sigmoid", 50.0 * (X - 3.0)), setting(2.0, 1.0, 0.0)),
    "touches 0, rounded": ("abs(log(1 + (0.05*x)**2))", of("abs", of("log", 1.0 + (0.05 * X) ** 2)), setting(1.0, 1.0, 0.5)),
    "all but constant": (
        "exp(-tanh(0.893*(x - 15.5))**2)",
        of("exp", -(of("tanh", 0.893 * (X - 15.5)) ** 2)),
        setting(0.03, 0.03, 0.5),
    ),
    "a root squared": (
        "gelu(x)/(1 + (abs(x)**0.5)**2)",
        of("gelu", X) / (1.0 + (of("abs", X) ** 0.5) ** 2.0),
        setting(2.93, 2.93, 1.0, distance=1.6e-4),
    ),
    "next to nothing": ("exp(-(24*(x + 0.451))**2)", of("exp", -((24.0 * (X + 0.451)) ** 2)), setting(0.00999, 0.0132, 0.988)),
    "straight between kinks, but for rounding": (
        "clip(33.6*x*sigmoid(0.121*x), 1.65, 4.52)",
        of("clip", 33.6 * X * of("sigmoid", 0.121 * X), 1.65, 4.52),
        setting(5.83, 5.83, -0.802),
    ),
    "farther and steep": ("tanh(10*(x-5))", of("tanh", 10.0 * (X - 5.0)), setting(3.0, 3.0, 0.9)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_was_once_wrong(name):
    text, tree, at = KNOWN[name]
    verdict = judge_one(0, Subject("expression", repr(text), tree), at)
    assert verdict.outcome in ("exact", "refused"), f"{verdict.error:.1e} off: {verdict.line} {verdict.message}"


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_silently_wrong(seed):
    for verdict in judge(random_case(seed, settings=2, closest=1e-5)):
        told = f"{verdict.error:.1e} off: {verdict.line} {verdict.message}"
        assert verdict.outcome not in ("wrong", "understated", "raw"), told


def test_the_judge_sees_what_is_off():
    off = Subject("named", repr("tanh"), 1.00001 * of("tanh", X))
    assert judge_one(0, off, setting(1.0, 2.0, 0.5)).outcome == "wrong"
    assert judge_deq(0, off, setting(1.0, 2.0, 0.5), 0.5, 0.5).outcome == "wrong"
    right = Subject("named", repr("tanh"), of("tanh", X))
    assert judge_one(0, right, setting(1.0, 2.0, 0.5)).outcome == "exact"
    assert judge_deq(0, right, setting(1.0, 2.0, 0.5), 0.5, 0.5).outcome == "exact"


@pytest.mark.parametrize(("named", "outcome"), [("1e-07", "understated"), ("2e-03", "warned")])
def test_the_judge_holds_a_warning_against_the_error(named, outcome):
    said = f"(__import__('warnings').warn('known to {named} only', nsd.NumericsWarning), 'tanh')[1]"
    off = Subject("named", said, 1.00001 * of("tanh", X))
    assert judge_one(0, off, setting(1.0, 2.0, 0.5)).outcome == outcome


def test_the_judge_counts_refusals():
    refused = Subject("expression", repr("1/x"), of("tanh", X))
    assert judge_one(0, refused, setting(1.0, 2.0, 0.5)).outcome == "refused"
    constant = Subject("expression", repr("clip(tanh(x), 2, 3)"), of("clip", of("tanh", X), 2.0, 3.0))
    assert judge_one(0, constant, setting(1.0, 2.0, 0.5)).proven
    assert not judge_one(0, refused, setting(1.0, 2.0, 0.5)).proven
    raw = Subject("custom", "[][0]", of("tanh", X))
    assert judge_one(0, raw, setting(1.0, 2.0, 0.5)).outcome == "raw"


def test_the_judge_counts_apart_what_torch_computes_otherwise():
    given = "nsd.custom(lambda x: torch.sign(torch.nn.functional.gelu(x)))"
    assert judge_one(0, Subject("custom", given, of("sign", of("gelu", X))), setting(10.0, 10.0, 0.5)).outcome == "foreign"
    packages_own = Subject("named", given, of("sign", of("gelu", X)))
    assert judge_one(0, packages_own, setting(10.0, 10.0, 0.5)).outcome == "wrong"


def test_the_judge_knows_slopes_that_no_rounded_function_has():
    tree = of("tanh", 11.0 * (X + 12.1))
    flat = Subject("custom", "nsd.custom(lambda x: (11.0 * (x + 12.1)).tanh_())", tree)  # torch's own slope, 1 − tanh²
    assert judge_one(0, flat, setting(0.08, 0.08, 0.5)).outcome == "rounded"
    known = Subject("custom", "nsd.custom(lambda x: torch.tanh(11.0 * (x + 12.1)))", tree)
    assert judge_one(0, known, setting(0.08, 0.08, 0.5)).outcome == "exact"
