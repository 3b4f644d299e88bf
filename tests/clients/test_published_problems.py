"""jaxopt's and optimistix's own problems (`published.py`), by the solvers that correspond to theirs, to their tolerances.

Their tolerances are absolute (jaxopt) or both (optimistix). jaxopt's maxiter is our max_steps, its history_size our memory.
"""

import math

import pytest
import torch
from torch.utils import _pytree as pytree

import notsodeep as nsd

from . import published as peer

F64 = torch.float64
BOTH = pytest.mark.parametrize("dtype", [torch.float32, F64])
HALF_PI = math.pi / 2
COS = 0.7390851332151607  # x = cos x
PLAIN, DAMPED, ANDERSON, BROYDEN = (nsd.Picard(), nsd.Picard(damping=0.5), nsd.Anderson(memory=5, ridge=1e-6), nsd.Broyden())
EACH = pytest.mark.parametrize("solver", [PLAIN, ANDERSON, BROYDEN], ids=["picard", "anderson", "broyden"])
SMOKE = (torch.ones(2, 3), {"smoke_aux": torch.ones(2)})


def solve(f, z0, solver, tol, max_steps=200, **options):
    """One problem, to an absolute tolerance."""
    return nsd.fixed_point(f, z0, solver, tol=tol, relative=False, max_steps=max_steps, samples=0, **options)


def norm(tree):
    return float(torch.stack([leaf.norm() for leaf in pytree.tree_leaves(tree)]).norm())


def residual(f, tree):
    return norm(pytree.tree_map(torch.sub, f(tree), tree))


# jaxopt: FixedPointIteration, AndersonAcceleration, Broyden


@BOTH
@pytest.mark.parametrize(("solver", "max_steps"), [(PLAIN, 8000), (ANDERSON, 10_000), (BROYDEN, 10)])
def test_geometric_decay(dtype, solver, max_steps):
    rates = torch.tensor([0.9, 0.99, 0.999], dtype=dtype)
    found = solve(lambda x: rates * x, torch.tensor([1.0, 0.4, -0.2], dtype=dtype), solver, 1e-5, max_steps)
    assert norm((rates - 1.0) * found.value) < 1e-5
    assert norm(found.value) < 1e-2


@BOTH
def test_a_scalar_state(dtype):
    found = solve(lambda x: 0.5 * x + 0.5, torch.tensor(0.0, dtype=dtype), ANDERSON, 1e-4, 10_000)
    assert found.value.shape == ()
    assert abs(float(found.value) - 1.0) < 2e-4


@BOTH
@pytest.mark.parametrize("solver", [PLAIN, BROYDEN], ids=["picard", "broyden"])
def test_sines_and_cubes_in_a_tuple(dtype, solver):
    def f(x):  # sin(x) x² has another fixed point, at 1.11
        return torch.sin(x[0]) * x[0] ** 2, x[1] ** 3

    start = torch.tensor([0.6, 0.0, -0.1], dtype=dtype), torch.tensor([[0.7], [0.5]], dtype=dtype)
    found = solve(f, start, solver, 1e-6, 100)
    assert residual(f, found.value) < 1e-6
    if solver == PLAIN:  # jaxopt asks of Broyden for any fixed point, of plain steps for the one at 0
        assert norm(found.value) < 1e-6


@BOTH
def test_sines_cubes_and_a_reflection_in_a_nested_tuple(dtype):
    def f(x):
        return torch.sin(x[0]) * x[0] ** 2, (x[1][0] ** 3, -x[1][1])

    start = (
        torch.tensor([0.6, 0.0, -0.1], dtype=dtype),
        (torch.tensor([[0.7], [0.5]], dtype=dtype), torch.tensor([[-1.0, 0.0, 2.0, -0.4]], dtype=dtype) / 3),
    )
    found = solve(f, start, nsd.Anderson(memory=3, ridge=1e-6), 1e-6, 100_000)
    assert residual(f, found.value) < 1e-6
    assert norm(found.value) < 1e-6


@BOTH
@pytest.mark.parametrize(("solver", "tol"), [(DAMPED, 1e-2), (nsd.Anderson(memory=4, ridge=1e-6), 1e-6), (BROYDEN, 1e-2)])
def test_cosine(dtype, solver, tol):
    theta = torch.tensor([0.0, HALF_PI], dtype=dtype)
    start = torch.tensor([0.3, math.pi / 4], dtype=dtype)
    found = solve(lambda x: torch.cos(x) + theta, start, solver, tol, 100_000)
    torch.testing.assert_close(found.value, torch.tensor([COS, HALF_PI], dtype=dtype), rtol=0.0, atol=tol)


def test_plain_steps_do_not_solve_the_published_cosine():
    # At x = cos x + π/2 the slope is −1: the error e shrinks by e³/6 a step only, and 2e ≤ 1e-2 takes 119 990 of them. jaxopt
    # gives plain steps 100 000, and passes by the rounding of float32 (99 866). Ours give up as stalled; half steps take 9.
    theta = torch.tensor([0.0, HALF_PI], dtype=F64)
    start = torch.tensor([0.3, math.pi / 4], dtype=F64)
    found = solve(lambda x: torch.cos(x) + theta, start, PLAIN, 1e-2, 100_000, throw=False)
    assert not bool(found.converged.any())


def test_the_published_cosine_is_wrong_in_its_sixth_digit():
    # jaxopt asks for .73908614842288. That is no fixed point of cos to the tolerance of its own test, 1e-6; an answer within
    # it, ours, differs from the published one by more than 1e-6, and has to.
    asked = torch.tensor([0.73908614842288], dtype=F64)
    assert float((asked.cos() - asked).abs()) > 1e-6
    found = solve(torch.cos, torch.tensor([0.3], dtype=F64), nsd.Anderson(memory=4, ridge=1e-6), 1e-9)
    assert abs(float(found.value) - COS) < 1e-9
    assert abs(float(found.value - asked)) > 1e-6


@EACH
def test_chaos_beside_the_state(solver):
    # A logistic map runs along with x ← cos x and is fed back at every evaluation. (jaxopt compares to .739085 within 100.)
    y = [0.6]

    def f(x):
        y.append(3.95 * y[-1] * (1.0 - y[-1]))
        return torch.cos(x)

    found = solve(f, torch.tensor([1.0], dtype=F64), solver, 2e-2)
    assert found.evaluations <= len(y) - 1 <= found.evaluations + 2  # what f does on the side happens once an evaluation
    assert abs(float(found.value) - COS) < 2e-2


@EACH
def test_has_aux(solver):
    r, y = torch.tensor([3.95], dtype=F64), torch.tensor([0.6], dtype=F64)
    found = solve(lambda x: (torch.cos(x), r * y * (1.0 - y)), torch.tensor([1.0], dtype=F64), solver, 2e-2, aux=True)
    assert abs(float(found.value) - COS) < 2e-2
    torch.testing.assert_close(found.aux, r * y * (1.0 - y))


@BOTH
def test_rotation(dtype):
    # No contraction: Banach's theorem says nothing, plain steps go round for ever, and Anderson works.
    f, start, centre = peer.rotation(dtype)
    found = solve(f, start, nsd.Anderson(memory=10, ridge=1e-7), 1e-4, 400)
    torch.testing.assert_close(found.value, centre, rtol=0.0, atol=1e-3)
    plain = solve(f, start, PLAIN, 1e-4, 400, throw=False)
    assert not bool(plain.converged.any())


@pytest.mark.parametrize("solver", [DAMPED, ANDERSON, BROYDEN], ids=["half steps", "anderson", "broyden"])
@pytest.mark.parametrize("adjoint", [nsd.ImplicitAdjoint(), nsd.fixed_points.UnrolledAdjoint()], ids=["implicit", "unrolled"])
@pytest.mark.parametrize("second", [math.pi / 4, HALF_PI])
def test_gradient_of_the_cosine(solver, adjoint, second):
    # dx/dθ = 1/(1 + sin x). jaxopt's plain steps do not converge here (see above), and what it then checks is the derivative
    # of an unfinished iteration, against differences of the same.
    theta = torch.tensor([0.0, HALF_PI], dtype=F64, requires_grad=True)
    start = torch.tensor([0.0, second], dtype=F64)
    x = solve(lambda x: torch.cos(x) + theta, start, solver, 1e-6, 4000, adjoint=adjoint).value
    # From π/2, which is exact, the second component never moves: its unrolled derivative, 0, 1, 0, 1 … by plain steps, is the
    # solver's and not the solution's.
    exact = 1 if second == HALF_PI and adjoint == nsd.fixed_points.UnrolledAdjoint() and solver != DAMPED else 2
    expected = torch.diag(1.0 / (1.0 + torch.sin(x.detach())))
    for k in range(exact):
        slopes = torch.autograd.grad(x[k], theta, retain_graph=True)[0]
        torch.testing.assert_close(slopes, expected[k], rtol=1e-4, atol=1e-4)


@EACH
def test_gradient_in_a_flat_landscape(solver):
    # x = θx: the fixed point is 0 for every θ, so is its derivative; differences of solutions would be noise.
    theta = torch.tensor([0.05, 0.2], dtype=F64, requires_grad=True)
    x = solve(lambda x: theta * x, torch.tensor([1.0, -0.5], dtype=F64), solver, 1e-6, 1000).value
    assert norm(x.detach()) < 1e-5
    torch.testing.assert_close(torch.autograd.grad(x[0], theta)[0], torch.zeros(2, dtype=F64), rtol=0.0, atol=1e-4)


@EACH
def test_gradient_with_aux(solver):
    theta = torch.tensor([0.05, 0.2], dtype=F64, requires_grad=True)
    start = torch.tensor([1.0, -0.5], dtype=F64)
    found = solve(lambda x: (theta * x, x + 1.0), start, solver, 1e-6, 1000, aux=True)
    torch.testing.assert_close(torch.autograd.grad(found.value[0], theta)[0], torch.zeros(2, dtype=F64), rtol=0.0, atol=1e-4)
    torch.testing.assert_close(found.aux, found.value + 1.0, rtol=0.0, atol=1e-5)


@EACH
def test_affine_contraction_and_its_gradients(solver):
    matrix, b = (part.requires_grad_() for part in peer.affine(200))
    found = solve(lambda x: matrix @ x + b, torch.zeros(200, dtype=F64), solver, 1e-6, 100)
    exact = torch.linalg.solve(torch.eye(200, dtype=F64) - matrix, b)
    torch.testing.assert_close(found.value, exact, rtol=0.0, atol=2e-6)
    g = torch.randn(200, generator=peer.draws(2), dtype=F64)
    ours, theirs = (torch.autograd.grad(x, (matrix, b), g) for x in (found.value, exact))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_small_affine_contraction():
    # jaxopt mixes every 1, 5 or 10 steps; ours begins to mix where plain steps are slow, or at once.
    matrix, b = peer.affine(10)
    for engage in (0.0, 0.6, 1.0):
        found = solve(lambda x: matrix @ x + b, torch.zeros(10, dtype=F64), nsd.Anderson(ridge=1e-6, engage=engage), 1e-6, 100)
        assert norm(matrix @ found.value + b - found.value) < 1e-6


def test_a_mixing_step_minimises_the_residual():
    # α of Σ α_j f(z_j) sums to 1 and makes ‖Σ α_j r_j‖ smallest: RᵀRα is the same number in every place. (jaxopt multiplies
    # the gradient of ‖Rα‖² by that of (Σα − 1)², which is 0 whatever α is.)
    z, r = (torch.randn(10, 20, generator=peer.draws(k), dtype=F64) for k in range(2))
    solver = nsd.Anderson(memory=9, ridge=0.0, engage=0.0)
    memory, following = solver.init(z[:1]), None
    for k in range(10):
        following, memory = solver.step(memory, z[k : k + 1], (z + r)[k : k + 1], r[k : k + 1].norm(dim=1))
    alpha = torch.linalg.lstsq((z + r).T, following[0]).solution
    assert abs(float(alpha.sum()) - 1.0) < 1e-8
    slopes = r @ (r.T @ alpha)
    torch.testing.assert_close(slopes, slopes.mean().expand(10), rtol=1e-6, atol=1e-8)


# jaxopt: AndersonWrapper, which accelerates the steps of another method


def test_proximal_gradient_of_the_lasso():
    step = peer.lasso_step(peer.regression(100, 20))
    found = solve(lambda w: step(w, 10.0), torch.zeros(20, dtype=F64), nsd.Anderson(memory=15), 1e-3, 1000)
    assert residual(lambda w: step(w, 10.0), found.value) < 1e-3
    assert 0 < int((found.value == 0.0).sum()) < 20


def test_gradient_of_the_lasso_in_its_penalty():
    data = peer.regression(100, 3)
    step = peer.lasso_step(data)

    def loss(lam):
        f = lambda w, lam: step(w, lam)  # noqa: E731
        found = solve(f, torch.zeros(3, dtype=F64), ANDERSON, 1e-5, 1000, args=(lam,))
        return peer.least_squares(found.value, data)

    lam = torch.tensor(10.0, dtype=F64, requires_grad=True)
    slope = torch.autograd.grad(loss(lam), lam)[0]
    with torch.no_grad():
        difference = (loss(lam + 2e-2) - loss(lam - 2e-2)) / 4e-2
    torch.testing.assert_close(slope, difference, rtol=1e-3, atol=0.0)


def test_coordinate_descent_of_the_lasso():
    sweep = peer.lasso_sweep(peer.regression(10, 3), 10.0)
    found = solve(sweep, torch.zeros(3, dtype=F64), nsd.Anderson(memory=3, ridge=1e-5), 5e-4, 100)
    assert residual(sweep, found.value) < 5e-4


def test_gradient_descent_with_a_polyak_step():
    objective, start = peer.logistic(10, 5)
    slopes = torch.func.grad(objective)

    def f(p):
        g = slopes(p)
        length = torch.clamp(objective(p) / (g[0].square().sum() + g[1].square().sum()), max=0.01)
        return p[0] - length * g[0], p[1] - length * g[1]

    found = solve(f, start, nsd.Anderson(memory=5), 0.05 * 0.01, 500)  # the step is .01 times the gradient
    assert norm(slopes(found.value)) < 0.05


def test_gradient_descent_with_momentum():
    objective, start = peer.logistic(100, 20)
    slopes = torch.func.grad(objective)

    def f(state):
        p, v = state
        v = pytree.tree_map(lambda old, new: 0.8 * old + new, v, slopes(p))
        return pytree.tree_map(lambda old, change: old - 1e-2 * change, p, v), v

    found = solve(f, (start, pytree.tree_map(torch.zeros_like, start)), nsd.Anderson(memory=3, ridge=1e-3), 1e-5, 1000)
    assert norm(slopes(found.value[0])) <= 1e-2


# optimistix: FixedPointIteration; Newton and Chord on f(y) − y, to which Broyden corresponds

PROBLEMS = pytest.mark.parametrize("name", peer.OPTIMISTIX)


def close(ours, theirs, tol):
    for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=tol, atol=tol)


@EACH
@PROBLEMS
def test_optimistix(name, solver):
    f, start, parameters = peer.OPTIMISTIX[name]
    found = nsd.fixed_point(f, start, solver, args=parameters, max_steps=10_000, **peer.rtol_and_atol(1e-6), samples=0)
    close(found.value, f(found.value, *parameters), 1e-5)


@EACH
@PROBLEMS
def test_optimistix_with_aux(name, solver):
    f, start, parameters = peer.OPTIMISTIX[name]
    found = nsd.fixed_point(
        lambda z: (f(z, *parameters), SMOKE), start, solver, aux=True, max_steps=10_000, **peer.rtol_and_atol(1e-6), samples=0
    )
    close(found.value, f(found.value, *parameters), 1e-5)
    close(found.aux, SMOKE, 0.0)


def derivative(name, dtype, solver=PLAIN):
    """(forward derivative along a random direction, central difference)."""
    f, start, parameters = peer.OPTIMISTIX[name]
    start, parameters = pytree.tree_map(lambda x: x.to(dtype), (start, parameters))
    draw = peer.draws(3)
    along = tuple(torch.randn(p.shape, generator=draw, dtype=dtype) for p in parameters)

    def fixed(*parameters):
        options = peer.rtol_and_atol(1e-12) | {"samples": 0}
        return nsd.fixed_point(f, start, solver, args=parameters, max_steps=10_000, **options).value

    moved = [fixed(*(p + s * 1e-6 * t for p, t in zip(parameters, along, strict=True))) for s in (1, -1)]
    difference = pytree.tree_map(lambda up, down: (up - down) / 2e-6, *moved)
    return torch.func.jvp(fixed, parameters, along)[1], difference


@EACH
@PROBLEMS
def test_optimistix_derivatives(name, solver):
    close(*derivative(name, F64, solver), 1e-3)


@PROBLEMS
def test_optimistix_complex_derivatives(name):
    close(*derivative(name, torch.complex128), 1e-3)


@EACH
@pytest.mark.parametrize("name", peer.OPTIMISTIX_SCALAR)
def test_optimistix_scalar_states(name, solver):
    f, const = peer.OPTIMISTIX_SCALAR[name]
    const = torch.tensor(const, dtype=F64)
    found = nsd.fixed_point(f, torch.tensor(1.0, dtype=F64), solver, args=(const,), **peer.rtol_and_atol(1e-6))
    assert found.value.shape == ()
    close(f(found.value, const), found.value, 1e-4)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("solver", [ANDERSON, BROYDEN], ids=["anderson", "broyden"])
def test_a_root_from_either_side(sign, solver):
    # x and −x: as z ↦ z − g(z) these are 0 and 2z, from which plain steps run away.
    found = solve(lambda z: z - sign * z, torch.tensor(1.0, dtype=F64), solver, 1e-4)
    assert abs(float(found.value)) < 1e-3


@EACH
@pytest.mark.parametrize("bound", [1.0, -1.0])
def test_five_equations_with_a_double_root(bound, solver):
    # y_c = 0 is a double root, to which steps creep: optimistix's chord method is asked for 1e-2, and so are we.
    step, start, root = peer.five_equations(bound)
    found = solve(step, start, solver, 1e-5, 2000)
    close(found.value, root, 1e-2)
