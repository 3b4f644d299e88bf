"""The statements of a `Solution` are true, on random problems; benchmarks/random_problems.py checks ten thousand of them."""

import pytest

from .oracle import SLACK, judge
from .random_problems import FAMILIES, TAKES_SAMPLES, random_problem

COUNT = 150
guesses = pytest.mark.skipif(not TAKES_SAMPLES, reason="rows are taken for independent, and nobody can say otherwise yet")


@pytest.mark.parametrize("told", [pytest.param(False, marks=guesses), True], ids=["guessed", "told"])
def test_what_has_converged_has_and_failures_are_failures(told):
    for seed in range(COUNT):
        verdict = judge(random_problem(seed), told=told, patience=False)
        assert verdict.false == 0, (seed, verdict.worst)
        assert verdict.worst <= SLACK
        # Whether a stall was called too early is a question of patience, which the benchmark counts; these are not.
        wrong = [(k, name, why) for k, name, why in verdict.misnamed if name in ("nan", "diverged")]
        assert not wrong, (seed, wrong)


def test_the_draw_holds_every_kind_of_problem_and_comes_from_its_seed():
    problems = [random_problem(seed) for seed in range(COUNT)]
    assert {problem.family for problem in problems} == set(FAMILIES)
    assert {problem.samples for problem in problems} == {0, 1, 2}
    assert min(problem.lipschitz for problem in problems) < 0.5 < 1.1 < max(problem.lipschitz for problem in problems)
    again = random_problem(7)
    assert all(
        bool((a.to_dense() == b.to_dense()).all())
        for a, b in zip(problems[7].weights.values(), again.weights.values(), strict=True)
    )
