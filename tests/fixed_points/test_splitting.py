"""Operator splitting where plain steps run away: values and gradients against a long damped iteration and a dense solve."""

import functools

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import (
    Activated,
    CircularConvolution,
    Dense,
    ForwardBackward,
    Operator,
    PeacemanRachford,
    plan as plans,
)

M = 0.5  # the strong monotonicity of I − W
N = 3


def as_operator(weight):
    def solve(matrix):
        return lambda v, alpha: torch.linalg.solve((1.0 + alpha) * torch.eye(len(matrix)) - alpha * matrix, v.mT).mT

    w = weight.detach()
    return Operator(lambda z: z @ weight.T, lambda z: z @ weight, solve(w), solve(w.T))


def centre(kernel):
    """The kernel of the identity."""
    one = torch.zeros_like(kernel)
    one[(slice(None), slice(None), *(k // 2 for k in kernel.shape[2:]))] = torch.eye(len(kernel)).to(kernel)
    return one


KINDS = {
    "dense": (Dense, (6, 6), (6,), lambda _: torch.eye(6)),
    "signals": (CircularConvolution, (2, 2, 3), (2, 5), centre),
    "images": (CircularConvolution, (2, 2, 3, 3), (2, 3, 4), centre),
    "operator": (as_operator, (6, 6), (6,), lambda _: torch.eye(6)),
}


def matrix(linear, shape):
    count = torch.Size(shape).numel()
    return linear(torch.eye(count, dtype=torch.float64).reshape(count, *shape)).reshape(count, count).T


def problem(kind, dtype=torch.float64):
    """(make, W, u) with I − W strongly monotone by M, and a norm of W above 1; make(W) is the linear map."""
    make, shape, state, identity = KINDS[kind]
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=draw, dtype=torch.float64)
    weight = 1.5 * weight / torch.linalg.matrix_norm(matrix(make(weight), state), 2)
    dense = matrix(make(weight), state)
    top = torch.linalg.eigvalsh(0.5 * (dense + dense.T))[-1]
    weight = weight + (1.0 - M - top) * identity(weight)
    u = 2.0 * torch.randn(N, *state, generator=draw, dtype=torch.float64)
    return make, weight.to(dtype).requires_grad_(), u.to(dtype).requires_grad_()


@functools.cache
def reference(kind, phi):
    """z, and the gradients of cotangent(z)·z by W and u: all in float64, without a splitting."""
    make, weight, u = problem(kind)
    dense = matrix(make(weight), u.shape[1:]).detach()
    rows = u.detach().flatten(1)
    z = torch.zeros_like(rows)
    for _ in range(1500):
        z = torch.lerp(z, phi(z @ dense.T + rows), 0.1)
    assert float((phi(z @ dense.T + rows) - z).norm()) < 1e-12
    inner = (z @ dense.T + rows).requires_grad_()
    (slopes,) = torch.autograd.grad(phi(inner).sum(), inner)
    jacobians = slopes[:, :, None] * dense
    g = cotangent(z)
    along_u = slopes * torch.linalg.solve(torch.eye(len(dense)) - jacobians.mT, g[:, :, None])[..., 0]
    z, along_u = z.reshape(u.shape), along_u.reshape(u.shape)
    along_w = torch.autograd.grad(make(weight)(z), weight, along_u)[0]
    return z, along_w, along_u


def cotangent(z):
    return torch.linspace(-1.0, 1.0, z.numel(), dtype=torch.float64).reshape(z.shape).to(z)


def solve(kind, phi, solver, dtype=torch.float64, **options):
    make, weight, u = problem(kind, dtype)
    found = nsd.fixed_point(Activated(phi, make(weight), u), torch.zeros_like(u), solver, **options)
    return found, torch.autograd.grad((found.value * cotangent(found.value)).sum(), (weight, u))


def assert_right(kind, phi, found, gradients, rtol=1e-7, atol=1e-7):
    for ours, wanted in zip((found.value, *gradients), reference(kind, phi), strict=True):
        torch.testing.assert_close(ours.detach().double(), wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("phi", [torch.relu, torch.tanh])
@pytest.mark.parametrize("kind", KINDS)
def test_peaceman_rachford(kind, phi):
    found, gradients = solve(kind, phi, PeacemanRachford())
    assert_right(kind, phi, found, gradients)
    assert found.evaluations <= 80
    assert found.backward.evaluations <= 80


@pytest.mark.parametrize("kind", KINDS)
def test_forward_backward(kind):
    solver = ForwardBackward(solver=nsd.Anderson(memory=10))
    found, gradients = solve(kind, torch.relu, solver, max_steps=1000)
    assert_right(kind, torch.relu, found, gradients)


@pytest.mark.parametrize("phi", [torch.relu, torch.nn.functional.leaky_relu])
@pytest.mark.parametrize("alpha", [None, 0.4, 2.0])
def test_any_alpha_with_a_homogeneous_activation(alpha, phi):
    found, gradients = solve("dense", phi, PeacemanRachford(alpha=alpha))
    assert_right("dense", phi, found, gradients)


def test_none_is_one_where_the_activation_is_not_homogeneous():
    found, gradients = solve("dense", torch.tanh, PeacemanRachford(alpha=None))
    assert_right("dense", torch.tanh, found, gradients)


def test_in_float32():
    found, gradients = solve("dense", torch.relu, PeacemanRachford(), torch.float32)
    assert_right("dense", torch.relu, found, gradients, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["dense", "images"])
def test_what_is_called_converged_is(kind):
    make, weight, u = problem(kind)
    f = Activated(torch.relu, make(weight), u)
    with torch.no_grad():
        found = nsd.fixed_point(f, torch.zeros_like(u), PeacemanRachford(), tol=1e-6)
        image = f(found.value)
        size = (image - found.value).flatten(1).norm(dim=1) / image.flatten(1).norm(dim=1)
    torch.testing.assert_close(size, found.residual)
    assert float(size.max()) <= 1e-6


def test_the_check_is_in_full_precision(monkeypatch):
    monkeypatch.setattr(plans, "has_fast_bfloat16", lambda _: True)
    make, weight, u = problem("dense", torch.float32)
    f = Activated(torch.relu, make(weight), u.detach().repeat(4000, 1))  # large enough for mixed precision
    with torch.no_grad():
        found = nsd.fixed_point(f, torch.zeros(4000 * N, 6), PeacemanRachford(), precision=nsd.fixed_points.MixedPrecision())
        image = f(found.value)
    assert bool(((image - found.value).norm(dim=1) <= 1.05e-5 * image.norm(dim=1)).all())


def test_a_sample_that_is_not_a_number_leaves_the_others_alone():
    make, weight, u = problem("dense")
    u = u.detach().clone()
    u[1, 2] = torch.nan
    f = Activated(torch.relu, make(weight), u)
    with torch.no_grad():
        found = nsd.fixed_point(f, torch.zeros(N, 6).double(), PeacemanRachford(), throw=False)
        image = f(found.value)
    assert found.converged.tolist() == [True, False, True]
    assert found.reason is nsd.fixed_points.Reason.nan
    others = torch.tensor([0, 2])
    assert bool(((image - found.value).norm(dim=1) <= 1e-10 * image.norm(dim=1))[others].all())


def test_plain_steps_run_away():
    make, weight, u = problem("dense")
    found = nsd.fixed_point(Activated(torch.relu, make(weight), u), torch.zeros_like(u), nsd.Picard(), throw=False)
    assert not bool(found.converged.any())


@pytest.mark.parametrize("samples", [0, 1, 2])
@pytest.mark.parametrize("solver", [PeacemanRachford(), ForwardBackward(solver=nsd.Anderson(memory=10))])
def test_samples_along_other_axes(samples, solver):
    make, weight, u = problem("dense")
    z, _, along_u = reference("dense", torch.relu)
    many, g = u, cotangent(z)
    if samples == 2:  # each sample four times
        z, many, g = (t[:, None].expand(N, 4, 6) for t in (z, u, 0.25 * g))
    f = Activated(torch.relu, make(weight), many)
    found = nsd.fixed_point(f, torch.zeros_like(z), solver, samples=samples, max_steps=1000)
    torch.testing.assert_close(found.value.detach(), z, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad((found.value * g).sum(), u)
    torch.testing.assert_close(gradient, along_u, rtol=1e-6, atol=1e-6)


def test_one_u_for_all_samples():
    make, weight, _ = problem("dense")
    u = torch.ones(6, dtype=torch.float64, requires_grad=True)
    run = lambda u: (  # noqa: E731
        nsd.fixed_point(Activated(torch.tanh, make(weight), u), torch.zeros(2, 6).double(), PeacemanRachford()).value
    )
    assert torch.autograd.gradcheck(run, (u,))


def test_second_derivatives():
    make, weight, u = problem("dense")
    z0, usual = torch.zeros_like(u), nsd.Broyden()
    results = []
    for f, solver, adjoint in (
        (Activated(torch.tanh, make(weight), u), PeacemanRachford(), None),
        (lambda z: torch.tanh(z @ weight.T + u), usual, nsd.ImplicitAdjoint(usual)),
    ):
        value = nsd.fixed_point(f, z0, solver, adjoint).value
        first = torch.autograd.grad(value.pow(3).sum(), (weight, u), create_graph=True)
        results.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), (weight, u))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_an_operator_without_its_resolvent():
    _, weight, u = problem("dense")
    bare = Operator(lambda z: z @ weight.T, lambda z: z @ weight)
    f = Activated(torch.relu, bare, u)
    found = nsd.fixed_point(f, torch.zeros_like(u), ForwardBackward(solver=nsd.Anderson(memory=10)), max_steps=1000)
    torch.testing.assert_close(found.value.detach(), reference("dense", torch.relu)[0], rtol=1e-6, atol=1e-6)
    with pytest.raises(nsd.BadInput, match="solve and solve_transposed, or use ForwardBackward"):
        nsd.fixed_point(f, torch.zeros_like(u), PeacemanRachford())


@pytest.mark.parametrize("solver", [PeacemanRachford(), ForwardBackward()])
@pytest.mark.parametrize("where", ["another f", "autocast", "transform", "adjoint"])
def test_where_there_is_nothing_to_split(where, solver):
    u, z0 = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3)
    split, other = Activated(torch.relu, 0.5 * torch.eye(3), u), lambda z: 0.5 * z + u
    cast = torch.autocast("cpu", dtype=torch.bfloat16)
    run = {
        "another f": lambda: nsd.fixed_point(other, z0, solver),
        "autocast": lambda: cast(nsd.fixed_point)(split, z0, solver),
        "transform": lambda: torch.vmap(lambda z: nsd.fixed_point(split, z, solver).value)(z0[None]),
        "adjoint": lambda: nsd.fixed_point(other, z0, adjoint=nsd.ImplicitAdjoint(solver)).value.sum().backward(),
    }[where]
    with pytest.raises(nsd.BadInput, match=rf"{type(solver).__name__} splits .* Activated\(phi, W, u\)"):
        run()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: PeacemanRachford(alpha=0.0), "alpha of PeacemanRachford"),
        (lambda: ForwardBackward(alpha=float("nan")), "alpha of ForwardBackward"),
        (lambda: PeacemanRachford(solver=PeacemanRachford()), "must be a Solver"),
        (lambda: solve("dense", torch.tanh, PeacemanRachford(alpha=0.5)), "takes alpha=1, not 0.5"),
        (
            lambda: solve("dense", torch.relu, PeacemanRachford(), adjoint=nsd.fixed_points.UnrolledAdjoint()),
            "use ImplicitAdjoint",
        ),
    ],
)
def test_options_that_make_no_sense(build, says):
    with pytest.raises(nsd.BadInput, match=says):
        build()
