"""Every solver on every map: the same fixed point, in no more evaluations than it should take."""

import itertools
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points.loop import iterate
from notsodeep.fixed_points.plan import Plan

from .maps import ACCELERATED, SOLVERS, contraction, tanh_map


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fixed_point_is_found(name, dtype):
    weight, x = contraction(20, 12, dtype=dtype)
    f = tanh_map(weight, x)
    found = nsd.fixed_point(f, torch.zeros(20, 12, dtype=dtype), SOLVERS[name])
    assert bool(found.converged.all())
    assert found.reason is nsd.fixed_points.Reason.converged
    z = found.value
    size = (f(z) - z).norm(dim=1) / f(z).norm(dim=1)
    # What is returned is the iterate whose residual was measured, not one that should be better.
    torch.testing.assert_close(size, found.residual, rtol=0.3, atol=1e-7 if dtype == torch.float32 else 1e-15)
    assert float(size.max()) <= found.tol


@pytest.mark.parametrize("name", ACCELERATED)
def test_a_linear_map_that_expands_is_solved_in_few_steps(name):
    # z = M z + b with eigenvalues −3 … 3, none of them 1: steps diverge, but a Krylov method needs d + 1 evaluations or so.
    d = 6
    eigenvalues = torch.tensor([-3.0, -1.5, -0.5, 0.5, 2.0, 3.0], dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    m, b = basis @ torch.diag(eigenvalues) @ basis.T, torch.ones(4, d, dtype=torch.float64)
    solver = nsd.Anderson(memory=8, engage=0.0) if "anderson" in name else nsd.Broyden(memory=30, engage=0.0)
    found = nsd.fixed_point(lambda z: z @ m + b, torch.zeros(4, d, dtype=torch.float64), solver, tol=1e-9)
    torch.testing.assert_close(found.value, torch.linalg.solve(torch.eye(d) - m, b.T).T, rtol=1e-7, atol=1e-7)
    assert found.evaluations <= 30
    with pytest.raises(nsd.NotConverged) as error:
        nsd.fixed_point(lambda z: z @ m + b, torch.zeros(4, d, dtype=torch.float64), nsd.Picard())
    assert error.value.reason is nsd.fixed_points.Reason.diverged


@pytest.mark.parametrize("name", ["tanh", "relu"])
@pytest.mark.parametrize("solver", [nsd.Anderson(), nsd.Broyden(), nsd.Anderson(engage=0.0), nsd.Broyden(engage=0.0)])
def test_no_solver_needs_more_products_than_picard_on_a_random_network(name, solver):
    # The spectrum of a random A is a disc, where Picard is near-optimal: acceleration must not cost.
    x = torch.randn(64, 100, generator=torch.Generator().manual_seed(0)) / 10.0
    net = nsd.Implicit(name, 0.2)
    counts = []
    for chosen in (nsd.Picard(), solver):
        deq = nsd.DEQ(net, 100, 512, solver=chosen, tol=1e-4, generator=torch.Generator().manual_seed(1))
        counts.append(deq.solve(x).evaluations)
    assert counts[1] <= counts[0]


@pytest.mark.parametrize("solver", [nsd.Anderson(), nsd.Broyden()])
def test_acceleration_engages_where_picard_is_slow(solver):
    weight, x = contraction(8, 30, radius=1.0)
    symmetric = 0.5 * (weight + weight.T)
    f = lambda z: 0.97 * z @ symmetric / torch.linalg.matrix_norm(symmetric, 2) + x  # noqa: E731
    z0 = torch.zeros(8, 30, dtype=torch.float64)
    plain = nsd.fixed_point(f, z0, nsd.Picard(), max_steps=2000).evaluations
    assert nsd.fixed_point(f, z0, solver, max_steps=2000).evaluations < plain / 4


@pytest.mark.parametrize("damping", [1.0, 0.9])
def test_one_of_four_fast_steps_of_anderson_is_mixed(damping):
    weight, x = contraction(3, 8, radius=0.2)
    f, solver, z = tanh_map(weight, x), nsd.Anderson(damping=damping), torch.zeros_like(x)
    memory, seen = solver.init(z), []
    for step in range(1, 9):
        image = f(z)
        seen.append((z, image - z))
        (z1, r1), (z2, r2) = seen[-2:] if step > 1 else (seen[0], seen[0])
        wanted = z2 + damping * r2
        if step % 4 == 0:  # α minimises ‖(1 − α) r2 + α r1‖, sample by sample
            alpha = ((r2 - r1) * r2).sum(1, keepdim=True) / (r2 - r1).square().sum(1, keepdim=True)
            wanted = (1.0 - alpha) * wanted + alpha * (z1 + damping * r1)
        z, memory = solver.step(memory, z, image, r2.norm(dim=1))
        torch.testing.assert_close(z, wanted, rtol=1e-12, atol=1e-14)


def test_fast_steps_of_anderson_save_evaluations():
    # z = M z + x with eigenvalues 0.2 … 0.38, where plain steps are fast enough that no window is begun.
    basis = torch.linalg.qr(torch.randn(30, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    m = basis @ torch.diag(torch.linspace(0.2, 0.38, 30, dtype=torch.float64)) @ basis.T
    f = lambda z: z @ m + 1.0  # noqa: E731
    z0 = torch.zeros(4, 30, dtype=torch.float64)
    plain, mixed = (nsd.fixed_point(f, z0, s, tol=1e-10).evaluations for s in (nsd.Picard(), nsd.Anderson()))
    assert mixed <= 0.75 * plain


def test_a_sample_that_stands_still_takes_plain_steps():
    rate = torch.tensor([[0.3], [0.0]], dtype=torch.float64)
    z = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    solver = nsd.Anderson()
    memory = solver.init(z)
    for _ in range(4):
        image = rate * z + 1.0
        z, memory = solver.step(memory, z, image, (image - z).norm(dim=1))
    torch.testing.assert_close(z, 1.0 / (1.0 - rate), rtol=1e-12, atol=0.0)


def test_the_ridge_of_anderson_is_relative():
    # Scaling the problem by 1e-6 changes no number of steps: an absolute ridge would turn mixing off.
    weight, x = contraction(5, 10, radius=0.98)
    counts = []
    for size in (1.0, 1e-6):
        f = lambda z, b=size * x: z @ weight.T + b  # noqa: E731
        counts.append(nsd.fixed_point(f, torch.zeros_like(x), nsd.Anderson(engage=0.0)).evaluations)
    assert counts[0] == counts[1]


def test_samples_do_not_depend_on_each_other():
    weight, x = contraction(6, 9)
    for name, solver in SOLVERS.items():
        if not name.endswith("at once") and "short" not in name and "picard" not in name:
            continue  # whether acceleration begins is decided for the batch
        plan = Plan(solver, tol=1e-12)
        together = iterate(tanh_map(weight, x), torch.zeros_like(x), plan)
        alone = [iterate(tanh_map(weight, row[None]), torch.zeros(1, 9, dtype=torch.float64), plan) for row in x]
        torch.testing.assert_close(together.value, torch.cat([one.value for one in alone]), rtol=1e-10, atol=1e-11)
        assert together.steps.tolist() == [int(one.steps) for one in alone]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: nsd.Picard(damping=0.0), "damping"),
        (lambda: nsd.Picard(damping=1.5), "damping"),
        (lambda: nsd.Anderson(memory=0), "memory"),
        (lambda: nsd.Anderson(memory=2.5), "memory"),
        (lambda: nsd.Anderson(ridge=-1.0), "ridge"),
        (lambda: nsd.Anderson(engage=2.0), "engage"),
        (lambda: nsd.Broyden(memory=True), "memory"),
        (lambda: nsd.fixed_points.PhantomAdjoint(steps=0), "steps"),
        (lambda: nsd.fixed_points.PhantomAdjoint(damping=0.0), "damping"),
        (lambda: nsd.ImplicitAdjoint(tol=-1.0), "tol"),
        (lambda: nsd.ImplicitAdjoint(solver="anderson"), "solver"),
        (lambda: nsd.Picard("a"), "damping of Picard must be in .* got 'a'"),
        (lambda: nsd.Picard(None), "damping of Picard"),
        (lambda: nsd.Picard(1j), "damping of Picard"),
        (lambda: nsd.Picard(Fraction(1, 2)), "damping of Picard"),
        (lambda: nsd.Anderson(ridge=None), "ridge of Anderson must be .* got None"),
        (lambda: nsd.Anderson(engage="a"), "engage"),
        (lambda: nsd.fixed_points.PhantomAdjoint(damping="a"), "damping of a phantom gradient .* got 'a'"),
        (lambda: nsd.fixed_points.PhantomAdjoint(steps=2.5), "steps"),
        (lambda: nsd.fixed_points.PeacemanRachford("a"), "alpha of PeacemanRachford .* got 'a'"),
        (lambda: Plan(tol="1e-3"), "tol must be a positive number, got '1e-3'"),
        (lambda: Plan(atol=None), "atol must be a finite number ≥ 0, got None"),
        (lambda: Plan(max_steps=2.0), "max_steps must be a whole number"),
        (lambda: Plan(max_steps=True), "max_steps must be a whole number"),
        (lambda: Plan(max_steps="9"), "max_steps must be a whole number"),
    ],
)
def test_options_that_make_no_sense_are_refused(build, says):
    with pytest.raises(nsd.BadInput, match=says):
        build()


@pytest.mark.parametrize("kind", [np.int64, np.int8, int])
def test_whole_numbers_of_any_kind(kind):
    found = nsd.fixed_point(
        lambda z: 0.5 * z + 1.0, torch.zeros(2, 3), nsd.Picard(), nsd.fixed_points.PhantomAdjoint(kind(2)), max_steps=kind(50)
    )
    assert bool(found.converged.all())
    assert type(Plan(max_steps=kind(50)).max_steps) is int


@pytest.mark.parametrize(
    ("dtype", "options", "says"),
    [
        (torch.float32, {"tol": 1e-50}, r"tol=1e-50 is outside of what float32 can tell apart, 1.2e-38 to 3.4e\+38"),
        (torch.float32, {"tol": 1e-50, "atol": 1e-3}, "tol=1e-50 is outside"),
        (torch.float32, {"tol": 1e-50, "relative": False}, "tol=1e-50 is outside"),
        (torch.float32, {"tol": 1e50}, r"tol=1e\+50 is outside"),
        (torch.float32, {"tol": 1e-30, "atol": 1e10}, r"atol=1e\+10 is 1.0e\+40 times tol=1e-30, more than .* float32"),
        (torch.float16, {"tol": 1e-5}, "tol=1e-05 is outside of what float16"),
        (torch.complex64, {"tol": 1e-50}, "float32"),
    ],
)
def test_tolerances_that_are_no_numbers_in_the_dtype(dtype, options, says):
    with pytest.raises(nsd.BadInput, match=says):
        nsd.fixed_point(lambda z: 0.5 * z + 1.0, torch.zeros(2, 3, dtype=dtype), **options)


def test_a_named_tuple_in_a_solver_s_memory_stays_one():
    class Memory(NamedTuple):
        seen: torch.Tensor
        count: int

    class Own(nsd.fixed_points.Solver):
        def init(self, z):
            return Memory(z, 0)

        def step(self, memory, z, fz, size):  # noqa: ARG002
            assert memory.seen.shape == z.shape
            return fz, Memory(fz, memory.count + 1)

    rate = torch.tensor([[0.1], [0.2], [0.9]])
    found = nsd.fixed_point(lambda z, a: a * z + 1.0, torch.zeros(3, 2), Own(), inputs=(rate,))
    assert bool(found.converged.all())


def test_unknown_options_are_errors():
    with pytest.raises(TypeError, match="beta"):
        nsd.Anderson(beta=1.0)
    with pytest.raises(TypeError, match="f_tol"):
        nsd.fixed_point(lambda z: 0.5 * z, torch.zeros(2, 3), f_tol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_anderson_stays_on_the_way_to_a_fixed_point_at_zero(dtype):
    """f is 0, so that all differences have one direction and the products of those are singular to rounding."""
    z = torch.randn(37, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    start = z.norm(dim=1)
    solver, sizes = nsd.Anderson(damping=0.7, engage=0.0), []
    memory = solver.init(z)
    with torch.no_grad():
        for _ in range(14):
            sizes.append(z.norm(dim=1))
            z, memory = solver.step(memory, z, torch.zeros_like(z), sizes[-1])
    for before, after in itertools.pairwise(sizes):
        assert bool((after <= 0.31 * before + torch.finfo(dtype).eps * start).all())
