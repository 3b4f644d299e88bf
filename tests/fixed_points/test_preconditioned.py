"""Preconditioned: the same solutions and gradients in fewer evaluations."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import Preconditioned

from .maps import contraction

N, D = 5, 8
EYE = torch.eye(D, dtype=torch.float64)


def problem(radius=0.95):
    """z = z M + sin(z)/200 + b, nearly linear; P = (I − M)⁻¹ and its transposed."""
    _, b = contraction(N, D)
    m = torch.diag(torch.linspace(-radius, radius, D, dtype=torch.float64)) + 0.1 * EYE.roll(1, 0).triu()
    b, m = b.requires_grad_(), m.requires_grad_()
    inverse = torch.linalg.inv(EYE - m.detach())
    f = lambda z: z @ m + 0.005 * torch.sin(z) + b  # noqa: E731
    return f, (m, b), (lambda r: r @ inverse), (lambda r: r @ inverse.T)


@pytest.mark.parametrize("inner", [nsd.Picard(), nsd.Anderson(engage=0.0), nsd.Broyden(engage=0.0)])
def test_forwards_and_backwards_it_takes_fewer_evaluations(inner):
    f, tensors, p, transposed = problem()
    z0 = torch.zeros_like(tensors[1])
    plain = nsd.fixed_point(f, z0, inner, nsd.ImplicitAdjoint(inner, max_steps=3000), max_steps=3000)
    adjoint = nsd.ImplicitAdjoint(Preconditioned(transposed, inner))
    found = nsd.fixed_point(f, z0, Preconditioned(p, inner), adjoint)
    torch.testing.assert_close(found.value, plain.value, rtol=1e-7, atol=1e-7)
    g = torch.linspace(-1.0, 1.0, N * D, dtype=torch.float64).reshape(N, D)
    ours, theirs = (torch.autograd.grad((each.value * g).sum(), tensors) for each in (found, plain))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert found.evaluations <= 15 < plain.evaluations
    assert found.backward.evaluations <= 15 < plain.backward.evaluations


def test_the_gradient_is_that_of_a_linear_solve():
    f, (_, b), p, transposed = problem()
    adjoint = nsd.ImplicitAdjoint(Preconditioned(transposed, nsd.Picard()), tol=1e-13)
    value = nsd.fixed_point(f, torch.zeros_like(b), Preconditioned(p, nsd.Picard()), adjoint, tol=1e-13).value
    (gradient,) = torch.autograd.grad(value.sum(), b)
    for row, got in zip(range(N), gradient, strict=True):
        j = torch.autograd.functional.jacobian(lambda z, row=row: f(z)[row], value.detach())[:, row]
        torch.testing.assert_close(got, torch.linalg.solve(EYE - j.T, torch.ones(D).double()), rtol=1e-8, atol=1e-9)


def test_residuals_are_those_of_f():
    f, (_, b), p, _ = problem()
    found = nsd.fixed_point(f, torch.zeros_like(b), Preconditioned(p))
    size = (f(found.value) - found.value).norm(dim=1) / f(found.value).norm(dim=1)
    torch.testing.assert_close(size.detach(), found.residual, rtol=0.1, atol=1e-15)


def test_it_is_given_residuals_laid_out_like_the_state():
    f = lambda s: {"a": 0.9 * s["a"] + 1.0, "b": 0.8 * s["b"] + s["a"].mean(1)[:, None, None]}  # noqa: E731
    start = {"a": torch.zeros(3, 2), "b": torch.zeros(3, 2, 2)}
    shapes = []

    def p(r):
        shapes.append((r["a"].shape, r["b"].shape))
        return {"a": 10.0 * r["a"], "b": 5.0 * r["b"]}

    found = nsd.fixed_point(f, start, Preconditioned(p, nsd.Picard()))
    assert set(shapes) == {((3, 2), (3, 2, 2))}
    torch.testing.assert_close(found.value["b"], torch.full((3, 2, 2), 50.0), rtol=1e-4, atol=0.0)
    assert found.evaluations <= 10


def test_a_state_of_coupled_rows():
    _, x = contraction(N, D)
    mixing = 0.9 * torch.ones(N, N).double() / N
    f = lambda z: mixing @ z + x  # noqa: E731
    solver = Preconditioned(lambda r: 1.2 * r, nsd.Picard())
    with pytest.warns(nsd.NumericsWarning, match="depend on each other"):
        found = nsd.fixed_point(f, torch.zeros_like(x), solver, max_steps=400)
    torch.testing.assert_close(found.value, torch.linalg.solve(torch.eye(N) - mixing, x), rtol=1e-7, atol=1e-7)


def test_under_transforms():
    weight, x = contraction(6, 4)

    def run(x):
        f = lambda z: torch.tanh(z @ weight.T + x)  # noqa: E731
        return nsd.fixed_point(f, torch.zeros_like(x), Preconditioned(lambda r: 1.1 * r), tol=1e-12).value

    torch.testing.assert_close(torch.vmap(run)(x.reshape(2, 3, 4)).flatten(0, 1), run(x))
    torch.testing.assert_close(
        torch.func.grad(lambda x: run(x).sum())(x), torch.autograd.functional.jacobian(lambda x: run(x).sum(), x)
    )


@pytest.mark.parametrize("build", [lambda: Preconditioned(3), lambda: Preconditioned(torch.relu, "picard")])
def test_what_it_takes(build):
    with pytest.raises(nsd.BadInput, match="a function and a solver"):
        build()
