"""Kernels, dual maps and moments of random activations against an independent integration; benchmarks/fuzz.py takes more."""

import pytest

from tests.gaussian.function_trees import X, of
from tests.gaussian.judge import judge, judge_one
from tests.gaussian.random_functions import Subject, random_case, setting

SEEDS = range(30)
KNOWN = {
    "waves": ("sin(x)", of("sin", X), setting(30.0, 30.0, 0.999)),
    "quick waves": ("sin(10*x)", of("sin", 10.0 * X), setting(5.0, 5.0, 0.5)),
    "growing waves": ("x*sin(x)", X * of("sin", X), setting(100.0, 100.0, 0.9999)),
    "far and steep": ("sigmoid(50*(x-3))", of("sigmoid", 50.0 * (X - 3.0)), setting(2.0, 1.0, 0.0)),
    "farther and steep": ("tanh(10*(x-5))", of("tanh", 10.0 * (X - 5.0)), setting(3.0, 3.0, 0.9)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_was_once_wrong(name):
    text, tree, at = KNOWN[name]
    verdict = judge_one(0, Subject("expression", repr(text), tree), at)
    assert verdict.outcome in ("exact", "refused"), f"{verdict.error:.1e} off: {verdict.line} {verdict.message}"


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_silently_wrong(seed):
    for verdict in judge(random_case(seed, settings=2)):
        told = f"{verdict.error:.1e} off: {verdict.line} {verdict.message}"
        assert verdict.outcome not in ("wrong", "understated", "raw"), told
