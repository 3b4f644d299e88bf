"""Kept states, the second value of f, and the report of the backward pass in a solution."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import Activated, PeacemanRachford

from .maps import contraction, tanh_map

ADJOINTS = [nsd.ImplicitAdjoint(), nsd.fixed_points.PhantomAdjoint(), nsd.fixed_points.UnrolledAdjoint()]


def problem(n=3, d=4):
    weight, x = contraction(n, d)
    return weight.requires_grad_(), x, torch.zeros_like(x)


# Kept states


def test_states_are_images_with_the_gradient_of_one_step():
    weight, x, z0 = problem()
    f = tanh_map(weight, x)
    found = nsd.fixed_point(f, z0, nsd.Picard(), keep=(1, 3, 1000))
    steps = [z0]
    for _ in range(3):
        steps.append(f(steps[-1].detach()))
    for state, wanted in ((found.states[0], steps[1]), (found.states[1], steps[3]), (found.states[2], found.value)):
        assert torch.equal(state, wanted)
        gradients = [torch.autograd.grad(s.square().sum(), weight, retain_graph=True)[0] for s in (state, wanted)]
        assert torch.equal(*gradients)


def test_states_of_an_unrolled_solve_have_the_gradient_of_every_step():
    weight, x, z0 = problem()
    f = tanh_map(weight, x)
    found = nsd.fixed_point(f, z0, nsd.Picard(), nsd.fixed_points.UnrolledAdjoint(), keep=[3])
    gradients = [torch.autograd.grad(z.sum(), weight)[0] for z in (found.states[0], f(f(f(z0))))]
    torch.testing.assert_close(*gradients)


def test_states_are_laid_out_like_the_start():
    _, _, z0 = problem()
    found = nsd.fixed_point(lambda s: {"a": 0.5 * s["a"] + 1.0}, {"a": z0}, nsd.Picard(), keep=range(1, 3))
    for state, wanted in zip(found.states, (1.0, 1.5), strict=True):
        assert torch.equal(state["a"], torch.full_like(z0, wanted))


@pytest.mark.parametrize(
    ("keep", "solver", "says"),
    [
        ((0,), nsd.Picard(), "counted from 1"),
        (("3",), nsd.Picard(), "counted from 1"),
        (3, nsd.Picard(), "counted from 1"),
        ((1,), PeacemanRachford(), "PeacemanRachford iterates another map"),
    ],
)
def test_states_that_cannot_be_kept(keep, solver, says):
    weight, x, z0 = problem()
    with pytest.raises(nsd.BadInput, match=says):
        nsd.fixed_point(Activated(torch.tanh, weight, x), z0, solver, keep=keep)


def test_states_under_transforms():
    weight, x, z0 = problem()
    with pytest.raises(nsd.BadInput, match=r"torch\.func"):
        torch.func.grad(lambda x: nsd.fixed_point(tanh_map(weight, x), z0, keep=(1,)).states[0].sum())(x)


# Beside the state


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=lambda adjoint: type(adjoint).__name__)
def test_what_f_returns_beside_its_state_is_that_of_the_solution(adjoint):
    weight, x, z0 = problem()
    step = tanh_map(weight, x)
    found = nsd.fixed_point(lambda z: (step(z), {"energy": (z @ weight).sum()}), z0, adjoint=adjoint, aux=True)
    wanted = (nsd.fixed_point(step, z0, adjoint=adjoint).value @ weight).sum()
    torch.testing.assert_close(found.aux["energy"], wanted)
    gradients = [torch.autograd.grad(energy, weight)[0] for energy in (found.aux["energy"], wanted)]
    torch.testing.assert_close(*gradients)


def test_something_beside_the_state_must_be_there():
    _, _, z0 = problem()
    for f in (lambda z: 0.5 * z, lambda z: (0.5 * z, 1, 2)):
        with pytest.raises(nsd.BadInput, match=r"\(state, something\)"):
            nsd.fixed_point(f, z0, aux=True)
    assert nsd.fixed_point(lambda z: 0.5 * z + 1.0, z0).aux is None


# Tolerances


@pytest.mark.parametrize("atol", [1e-9, 1e-4, 1e-1])
def test_an_absolute_tolerance_is_added_to_the_relative_one(atol):
    f = lambda z: 0.9 * z + 1e-4  # noqa: E731
    z0, options = torch.ones(2, 3, dtype=torch.float64), {"tol": 1e-6, "max_steps": 1000}
    found, strict = (nsd.fixed_point(f, z0, nsd.Picard(), **more, **options) for more in ({"atol": atol}, {}))
    image = f(found.value)
    assert bool(((image - found.value).norm(dim=1) <= 1e-6 * image.norm(dim=1) + atol).all())
    before = z0  # the iterate before was not within the two together
    for _ in range(len(found.residuals) - 2):
        before = f(before)
    assert bool(((f(before) - before).norm(dim=1) > 1e-6 * f(before).norm(dim=1) + atol).all())
    assert found.evaluations < strict.evaluations


@pytest.mark.parametrize(
    ("options", "says"),
    [({"atol": -1.0}, "atol"), ({"atol": float("nan")}, "atol"), ({"atol": 0.1, "relative": False}, "leave atol out")],
)
def test_absolute_tolerances_that_make_no_sense(options, says):
    with pytest.raises(nsd.BadInput, match=says):
        nsd.fixed_point(lambda z: 0.5 * z, torch.ones(2, 3), **options)


# The backward pass


@pytest.mark.parametrize("second", [False, True])
def test_the_backward_pass_is_told_of(second):
    weight, x, z0 = problem()
    told = []
    adjoint = nsd.ImplicitAdjoint(nsd.Picard(), tol=1e-7, callback=told.append)
    found = nsd.fixed_point(tanh_map(weight, x), z0, adjoint=adjoint)
    assert found.backward is None
    for calls in (1, 2):
        torch.autograd.grad(found.value.sum(), weight, create_graph=second, retain_graph=True)
        assert len(told) == calls
        assert told[-1] is found.backward
    backward = found.backward
    assert backward.reason is nsd.fixed_points.Reason.converged
    assert backward.tol == 1e-7
    assert backward.value is None
    assert backward.residuals.shape == (int(backward.steps.max()), len(x))
    assert bool((backward.residuals[-1] <= 1e-7).all())
    assert bool((backward.residuals[-2] > 1e-7).any())


def test_a_deq_tells_of_its_backward_pass():
    told = []
    module = nsd.DEQ(nsd.Implicit("tanh", 0.2), 4, 8, 1, adjoint=nsd.ImplicitAdjoint(callback=told.append))
    found = module.solve(torch.ones(2, 4))
    found.value.sum().backward()
    assert [found.backward] == told
    assert told[0].converged.tolist() == [True, True]


def test_a_callback_must_be_a_function():
    with pytest.raises(nsd.BadInput, match="function of a Solution, got int"):
        nsd.ImplicitAdjoint(callback=3)


# States


@pytest.mark.parametrize("solver", [nsd.Picard(), nsd.Anderson(engage=0.0), nsd.Broyden(engage=0.0)])
@pytest.mark.parametrize("samples", [0, 1])
def test_complex_states_and_gradients_are_those_of_a_linear_solve(solver, samples):
    (a, x), (b, y) = (contraction(3, 4, seed=seed, radius=0.5) for seed in (0, 1))
    weight, u = (torch.complex(*parts).requires_grad_() for parts in ((a, b), (x, y)))
    found = nsd.fixed_point(lambda z: z @ weight.T + u, torch.zeros_like(u), solver, samples=samples, tol=1e-13).value
    wanted = torch.linalg.solve(torch.eye(4) - weight, u.T).T
    torch.testing.assert_close(found, wanted)
    loss = lambda z: z.abs().pow(3).sum() + (z.imag * z.real).sum()  # noqa: E731
    ours, theirs = (torch.autograd.grad(loss(z), (weight, u)) for z in (found, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-7)


def test_the_kind_of_a_state_is_kept():
    with pytest.raises(nsd.BadInput, match=r"keep the kind of its state.*complex64"):
        nsd.fixed_point(lambda z: z.abs(), torch.zeros(2, 3, dtype=torch.complex64))
