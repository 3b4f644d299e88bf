"""The fast paths of s ↦ φ(W s + u) against their slow twins: refinement, the adjoint, stages."""

import math

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import implicit as module, plan as plans
from notsodeep.fixed_points.affine import AffineStep

N, M = 96, 700  # above the size from which mixed precision is worth it


@pytest.fixture
def bfloat16(monkeypatch):
    """Mixed precision wherever the tests run: bfloat16 by software gives the same numbers, slowly."""
    monkeypatch.setattr(plans, "has_fast_bfloat16", lambda _: True)


def problem(name="tanh", dtype=torch.float32, n=N, m=M):
    draw = torch.Generator().manual_seed(0)
    weight = (math.sqrt(0.2 / m) * torch.randn(m, m, generator=draw, dtype=torch.float64)).to(dtype)
    u = torch.randn(n, m, generator=draw, dtype=torch.float64).to(dtype)
    return AffineStep(nsd.activation(name)), weight, u


def residual(step, weight, u, s):
    s, weight, u = (t.detach().double() for t in (s, weight, u))
    return float(((step(s, weight, u) - s).norm(dim=1) / s.norm(dim=1)).max())


def deq(name, tol, mixed=True, **options):
    options = {"precision": nsd.fixed_points.MixedPrecision() if mixed else nsd.fixed_points.FullPrecision(), **options}
    return nsd.DEQ(nsd.Implicit(name, 0.2), 50, M, tol=tol, generator=torch.Generator().manual_seed(0), **options)


def data():
    return torch.randn(N, 50, generator=torch.Generator().manual_seed(1)) / math.sqrt(50)


@pytest.mark.parametrize("name", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("tol", [1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("solver", [nsd.Picard(), nsd.Anderson(engage=0.0)])
@pytest.mark.usefixtures("bfloat16")
def test_mixed_precision_ends_at_the_residual_of_full_precision(name, tol, solver):
    x = data()
    module_ = deq(name, tol, solver=solver)
    found = module_.solve(x)
    assert bool(found.converged.all())
    assert found.low_precision_steps >= 3
    s = found.value / module_.form.output
    assert residual(module_.step, *module_.terms(x), s) <= 1.05 * tol
    plain = deq(name, tol, mixed=False, solver=solver).solve(x)
    assert found.evaluations <= plain.evaluations + 3


@pytest.mark.usefixtures("bfloat16")
def test_products_in_full_precision_are_few(monkeypatch):
    calls = []
    original = module.AffineMap.__call__
    monkeypatch.setattr(module.AffineMap, "__call__", lambda self, s: calls.append(1) or original(self, s))
    found = deq("tanh", 1e-4).solve(data())
    assert found.evaluations >= 8
    assert len(calls) == 1


@pytest.mark.usefixtures("bfloat16")
def test_small_states_and_other_dtypes_stay_in_full_precision():
    assert nsd.DEQ(nsd.Implicit("relu", 0.2), 50, 20).solve(data()).low_precision_steps == 0
    assert deq("relu", 1e-8).double().solve(data().double()).low_precision_steps == 0


@pytest.mark.usefixtures("bfloat16")
def test_the_verdict_is_in_full_precision():
    found = deq("relu", 1e-2, max_steps=5, throw=False).solve(data())
    module_ = deq("relu", 1e-2)
    true = residual(module_.step, *module_.terms(data()), found.value / module_.form.output)
    assert float(found.residual.max()) == pytest.approx(true, rel=1e-3)


@pytest.mark.usefixtures("bfloat16")
def test_absolute_tolerances_are_in_full_precision():
    module_ = deq("relu", 1e-3, relative=False)
    found = module_.solve(100.0 * data())  # at 1000 times, rounding leaves 1.1e-3 of a plain iteration too
    assert found.low_precision_steps == 0


@pytest.mark.usefixtures("bfloat16")
def test_failures_in_mixed_precision_are_those_of_full_precision():
    x = data()
    x[3, 3] = torch.nan
    for mixed in (True, False):
        found = deq("tanh", 1e-4, mixed, throw=False).solve(x)
        assert found.reason is nsd.fixed_points.Reason.nan
        assert found.converged.logical_not().nonzero().flatten().tolist() == [3]
    for mixed in (True, False):
        wild = deq("relu", 1e-4, mixed, throw=False, solver=nsd.Picard())
        with torch.no_grad():
            wild.A.mul_(20.0)
        found = wild.solve(data())
        assert found.reason is nsd.fixed_points.Reason.diverged
        assert float(found.value.abs().max()) < 1e3


@pytest.mark.usefixtures("bfloat16")
def test_gradients_of_mixed_precision():
    gradients = []
    for mixed in (True, False):
        network = deq("tanh", 1e-6, mixed, adjoint=nsd.ImplicitAdjoint(tol=1e-6))
        network(data()).square().sum().backward()
        gradients.append((network.A.grad, network.B.grad))
    for a, b in zip(*gradients, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5


@pytest.mark.usefixtures("bfloat16")
def test_a_map_of_ones_own_in_mixed_precision():
    _, weight, u = problem()
    weight.requires_grad_()
    f = lambda z: torch.tanh(z @ weight.T + u)  # noqa: E731
    found = nsd.fixed_point(f, torch.zeros_like(u), precision=nsd.fixed_points.MixedPrecision(), tol=1e-5)
    assert found.low_precision_steps >= 3
    with torch.no_grad():
        z = found.value
        assert float(((f(z) - z).norm(dim=1) / z.norm(dim=1)).max()) <= 1.05e-5
    assert math.isfinite(float(torch.autograd.grad(found.value.sum(), weight)[0].sum()))


@pytest.mark.parametrize("name", ["tanh", "relu", "leaky_relu:0.2", "silu", "hard_tanh:1,0.7", "abs"])
def test_the_affine_adjoint_is_the_general_one(name):
    step, weight, u = problem(name, torch.float64, n=5, m=12)
    weight.requires_grad_()
    u.requires_grad_()
    plan, adjoint = module.Plan(tol=1e-13), nsd.ImplicitAdjoint(tol=1e-13)

    def gradients(general):
        value = module.equilibrium(step, torch.zeros_like(u), (weight, u), plan, adjoint).value
        return torch.autograd.grad((value * torch.arange(12)).sum(), (weight, u), create_graph=general)

    for a, b in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_gradients_of_one_argument_only():
    step, weight, u = problem("tanh", torch.float64, n=5, m=12)
    u.requires_grad_()
    value = module.equilibrium(
        step, torch.zeros_like(u), (weight, u), module.Plan(tol=1e-12), nsd.ImplicitAdjoint(tol=1e-12)
    ).value
    slopes = 1 - value.detach() ** 2
    wanted = torch.stack(
        [torch.linalg.solve(torch.eye(12) - weight.T * d, torch.ones(12, dtype=torch.float64)) * d for d in slopes]
    )
    torch.testing.assert_close(torch.autograd.grad(value.sum(), u)[0], wanted, rtol=1e-8, atol=1e-10)
