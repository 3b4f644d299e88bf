"""Fixed points inside of modules, watched and answered from outside."""

import threading
from dataclasses import replace

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import Activated, Reason
from notsodeep.fixed_points.stand_in import answered_by, watching
from tests.fixed_points.maps import contraction, tanh_map

W, X = contraction(5, 3)
ZERO = torch.zeros_like(X)


class OneStep:
    """f(start), and the problems that it was asked for."""

    def __init__(self):
        self.asked = []

    def answer(self, problem):
        self.asked.append(problem)
        return problem.f(problem.start)


def solve(**options):
    return nsd.fixed_point(tanh_map(W, X), ZERO, **options)


def inner_of(z):
    """v = tanh(W v + z)/2, a fixed point of its own for every state z."""
    return nsd.fixed_point(lambda v: 0.5 * torch.tanh(v @ W.T + z), torch.zeros_like(z)).value


def nested(z):
    return torch.tanh(0.5 * inner_of(z) + X)


def deq_of(**options):
    return nsd.DEQ(nsd.Implicit("tanh", 0.2), 3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64, **options)


def test_watching_records_what_was_solved():
    with watching() as watch:
        first, second = solve(), solve(solver=nsd.Picard(damping=0.5))
    solve()  # after the context: not seen
    assert [found.solution.evaluations for found in watch.solves] == [first.evaluations, second.evaluations]
    assert [found.problem.damping for found in watch.solves] == [1.0, 0.5]
    for found, solution in zip(watch.solves, (first, second), strict=True):
        assert torch.equal(found.value[0], solution.value)
        assert torch.equal(found.problem.start[0], ZERO)
        assert found.problem.axes == 1
        assert found.problem.structure is None
        torch.testing.assert_close(found.problem.f([X])[0], torch.tanh(X @ W.T + X))


def test_watching_a_deq_tells_the_parts_of_its_map():
    deq = deq_of()
    with watching() as watch:
        features = deq(X)
    (found,) = watch.solves
    weight, u = deq.terms(X)
    torch.testing.assert_close(found.problem.structure.weight.weight, weight)
    torch.testing.assert_close(found.problem.structure.u, u)
    torch.testing.assert_close(found.value[0] / 8**0.5, features)
    torch.testing.assert_close(found.problem.f(found.value)[0], found.value[0], rtol=1e-8, atol=1e-8)
    assert not found.value[0].requires_grad


def test_the_structure_of_a_map_given_in_parts_is_known():
    parts = Activated(torch.tanh, W, X)
    with watching() as watch:
        nsd.fixed_point(parts, ZERO)
    assert watch.solves[0].problem.structure is parts


def test_a_state_of_several_tensors_keeps_their_order():
    """Whatever the order of the keys that f returns."""

    def f(state):
        return {"b": 0.5 * torch.cos(state["a"]), "a": 0.5 * torch.sin(state["b"] + X)}

    start = {"a": ZERO, "b": ZERO + 1.0}
    with watching() as watch:
        value = nsd.fixed_point(f, start).value
    assert [torch.equal(mine, value[name]) for mine, name in zip(watch.solves[0].value, "ab", strict=True)] == [True, True]
    with answered_by(OneStep()):
        once = nsd.fixed_point(f, start).value
    wanted = f(start)
    assert list(once) == ["a", "b"]
    assert all(torch.equal(once[name], wanted[name]) for name in "ab")


@pytest.mark.parametrize("aux", [False, True])
def test_nested_fixed_points_belong_to_the_outer_one(aux):
    """Also in the last evaluation of f, for what it returns besides its state."""
    f = (lambda z: (nested(z), z)) if aux else nested
    with watching() as watch:
        nsd.fixed_point(f, ZERO, aux=aux)
    assert len(watch.solves) == 1
    torch.testing.assert_close(watch.solves[0].problem.f(watch.solves[0].value)[0], watch.solves[0].value[0])


def test_nested_fixed_points_keep_their_plan():
    tolerances = []

    def f(z):
        inner = nsd.fixed_point(lambda v: 0.5 * torch.tanh(v @ W.T + z), torch.zeros_like(z))
        tolerances.append(inner.tol)
        return torch.tanh(0.5 * inner.value + X)

    with watching(lambda plan: replace(plan, tol=1e-3)):
        assert nsd.fixed_point(f, ZERO).tol == 1e-3
    assert set(tolerances) == {1e-10}


@pytest.mark.parametrize("model", ["function", "deq"])
def test_a_changed_plan_is_solved_by(model):
    call = (lambda: solve()) if model == "function" else (lambda: deq_of().solve(X))
    usual = call()
    with watching(lambda plan: replace(plan, solver=nsd.Picard(), tol=1e-2)) as watch:
        loose = call()
    (found,) = watch.solves
    assert loose.tol == found.solution.tol == 1e-2 != usual.tol
    assert 0 < loose.evaluations < usual.evaluations
    assert bool(loose.converged.all())
    assert float(loose.residual.max()) > float(usual.residual.max())
    assert call().evaluations == usual.evaluations


def test_an_answer_takes_the_place_of_the_solution():
    rule = OneStep()
    with answered_by(rule):
        found = solve()
    assert torch.equal(found.value, torch.tanh(X))
    assert len(rule.asked) == 1
    assert torch.equal(rule.asked[0].start[0], ZERO)
    # Nobody has looked how far off it is; a module may answer for converged samples alone.
    assert found.reason is Reason.converged
    assert bool(found.converged.all())
    assert bool(found.residual.isnan().all())


def test_states_that_were_asked_for_are_there():
    """As where a loop ended before them: the value."""
    with answered_by(OneStep()):
        found = solve(keep=(1, 5))
    assert len(found.states) == 2
    assert all(torch.equal(state, found.value) for state in found.states)


def test_an_answer_in_place_of_a_deqs_equilibrium():
    deq = deq_of(well_posed="monotone")
    rule = OneStep()
    with answered_by(rule):
        features = deq(X)
    weight, u = deq.terms(X)
    torch.testing.assert_close(features, torch.tanh(torch.tanh(u) @ weight.T + u) / 8**0.5)
    assert rule.asked[0].damping == 0.3


def test_gradients_pass_through_an_answer():
    weight = W.clone().requires_grad_()
    with answered_by(OneStep()):
        value = nsd.fixed_point(tanh_map(weight, X), X).value
    (found,) = torch.autograd.grad(value.square().sum(), weight)
    (wanted,) = torch.autograd.grad(torch.tanh(X @ weight.T + X).square().sum(), weight)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("aux", [False, True])
def test_fixed_points_inside_of_f_are_solved(aux):
    f = (lambda z: (nested(z), inner_of(z))) if aux else nested
    rule = OneStep()
    with answered_by(rule):
        found = nsd.fixed_point(f, ZERO, aux=aux)
    assert len(rule.asked) == 1
    torch.testing.assert_close(found.value, nested(ZERO))
    if aux:
        torch.testing.assert_close(found.aux, inner_of(found.value))


def test_what_f_returns_besides_its_state_is_that_of_the_answer():
    with answered_by(OneStep()):
        found = nsd.fixed_point(lambda z: (torch.tanh(z @ W.T + X), 2.0 * z), ZERO, aux=True)
    torch.testing.assert_close(found.aux, 2.0 * torch.tanh(X))


class Broken:
    def answer(self, _):
        raise ArithmeticError("no answer")


def test_errors_leave_nothing_behind():
    usual = solve()
    with pytest.raises(ArithmeticError), answered_by(Broken()):
        solve()
    assert torch.equal(solve().value, usual.value)
    rule = OneStep()
    with answered_by(rule):
        with pytest.raises(ArithmeticError), answered_by(Broken()):
            solve()
        assert torch.equal(solve().value, torch.tanh(X))  # the outer rule is back

    with watching(lambda plan: replace(plan, max_steps=2)) as watch:
        with pytest.raises(nsd.NotConverged):
            solve()
        with pytest.raises(nsd.NotConverged):  # still watched after the first error
            solve()
    assert watch.solves == []
    assert solve().evaluations == usual.evaluations

    with pytest.raises(ArithmeticError), watching() as outer:
        raise ArithmeticError
    solve()
    assert outer.solves == []


def test_contexts_inside_of_each_other():
    with watching() as outer:
        solve()
        with watching() as inner:
            solve(tol=1e-4)
        solve()
    assert [found.solution.tol for found in outer.solves] == [1e-10, 1e-10]
    assert [found.solution.tol for found in inner.solves] == [1e-4]


def test_threads_do_not_see_each_other():
    ready, go = threading.Barrier(2), threading.Barrier(2)
    results = {}

    def other():
        with watching() as watch:
            ready.wait(10)
            results["value"] = solve(tol=1e-6).value
            go.wait(10)
        results["solves"] = watch.solves

    thread = threading.Thread(target=other)
    with watching() as watch, answered_by(OneStep()):
        thread.start()
        ready.wait(10)
        here = solve().value
        go.wait(10)
        thread.join()
    assert torch.equal(here, torch.tanh(X))
    assert watch.solves == []
    assert [found.solution.tol for found in results["solves"]] == [1e-6]
    torch.testing.assert_close(results["value"], solve().value, rtol=1e-4, atol=1e-5)
