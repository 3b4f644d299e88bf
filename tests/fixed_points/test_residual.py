"""A state that is called converged has converged, also where squares under- or overflow, and far from the start."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import Activated, PeacemanRachford, plan as plans, spectral_radius

HALF = torch.float16


@pytest.mark.parametrize(
    ("f", "start", "solution", "tol"),
    [
        (lambda z: 0.9 * z + 10.0, torch.full((2, 1 << 18), 128.0, dtype=HALF), 100.0, 2e-2),
        (lambda z: 0.5 * z + 100.0, torch.zeros(1, 1 << 20, dtype=HALF), 200.0, 1e-2),
        (lambda z: 0.9 * z, torch.full((2, 4), 1.5e19), 0.0, 0.1),
        (lambda z: 0.5 * z + 1e-30, torch.zeros(2, 4), 2e-30, 1e-4),
        (lambda z: 0.5 * z + 1e-200, torch.zeros(2, 4).double(), 2e-200, 1e-9),
        (lambda z: 0.5 * z + 1.0, torch.full((2, 3), 1e15), 2.0, 1e-4),
        (lambda z: 0.5 * z + 1.0, torch.full((2, 3), 1e30).double(), 2.0, 1e-9),
    ],
    ids=["half", "half from 0", "large", "small", "smaller", "far", "farther"],
)
@pytest.mark.parametrize("solver", [nsd.Picard(), nsd.Anderson()])
def test_the_solution_is_reached(f, start, solution, tol, solver):
    found = nsd.fixed_point(f, start, solver, max_steps=1000)
    far = (found.value.double() - solution).abs().max()
    assert float(far) <= tol * (abs(solution) or 1.0)


@pytest.mark.parametrize("damping", [0.5, 1.0])
def test_a_fixed_point_at_zero_is_reached(damping):
    found = nsd.fixed_point(lambda z: 0.3 * z, torch.ones(2, 3).double(), nsd.Picard(damping), max_steps=300)
    assert float(found.value.abs().max()) < 1e-40


def test_small_cotangents_have_their_gradient():
    w = torch.tensor(0.5, requires_grad=True)
    z = nsd.fixed_point(lambda z: w * z + 1.0, torch.zeros(2, 4)).value
    (gradient,) = torch.autograd.grad(z.sum() * 1e-25, w)
    assert float(gradient / 1e-25) == pytest.approx(32.0, rel=1e-3)


def test_the_image_of_the_start_is_that_of_no_other_state(monkeypatch):
    """It is known where a gradient is wanted, and early steps in low precision lead away from it."""
    monkeypatch.setattr(plans, "has_fast_bfloat16", lambda _: True)
    w = torch.tensor(0.9, requires_grad=True)
    start = torch.full((256, 256), 0.7)
    found = nsd.fixed_point(
        lambda z: w * z + 0.1, start, nsd.Picard(), precision=nsd.fixed_points.MixedPrecision(), max_steps=500
    )
    assert float((found.value.detach() - 1.0).abs().max()) <= 2e-4


@pytest.mark.parametrize("adjoint", [nsd.fixed_points.PhantomAdjoint(5), nsd.fixed_points.UnrolledAdjoint()])
def test_the_value_is_what_was_measured(adjoint):
    """Where f does not contract, steps from the solution lead away from it: they are for the gradient alone."""
    w = torch.tensor(-9.0, requires_grad=True, dtype=torch.float64)
    f = lambda z: w * z + 1.0  # noqa: E731
    found = nsd.fixed_point(f, torch.zeros(4, 5).double(), nsd.Anderson(), adjoint, tol=1e-3)
    z = found.value.detach()
    true = (f(z) - z).norm(dim=1) / f(z).norm(dim=1)
    torch.testing.assert_close(found.residual.detach(), true.detach(), rtol=1e-6, atol=1e-12)
    assert found.value.requires_grad


def test_a_start_that_is_the_answer_has_no_gradient():
    z0 = torch.ones(2, 3, requires_grad=True)
    assert not nsd.fixed_point(lambda z: z * z, z0).value.requires_grad


@pytest.mark.parametrize("throw", [True, False])
@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
def test_a_cotangent_that_is_not_a_number_is_passed_on(throw):
    w = torch.tensor(0.5, requires_grad=True)
    z = nsd.fixed_point(lambda z: w * z + 1.0, torch.zeros(2, 4), adjoint=nsd.ImplicitAdjoint(throw=throw)).value
    (gradient,) = torch.autograd.grad((z * torch.tensor([[torch.nan], [1.0]])).sum(), w)
    assert bool(gradient.isnan())


def test_a_sample_that_is_not_a_number_does_not_stop_the_backward_pass():
    w = torch.full((3, 1), 0.5, requires_grad=True)
    x = torch.tensor([[1.0], [torch.nan], [2.0]])
    found = nsd.fixed_point(lambda z: w * z + x, torch.zeros(3, 1), throw=False, samples=1)
    (gradient,) = torch.autograd.grad(found.value[found.converged].sum(), w)
    assert gradient[[0, 2]].flatten().tolist() == pytest.approx([4.0, 8.0], rel=1e-4)


def test_a_gradient_that_overflows_in_float16_is_left_to_the_scaler():
    linear = torch.nn.Linear(16, 16)
    torch.nn.init.orthogonal_(linear.weight, gain=0.5)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=HALF):
        z = nsd.fixed_point(lambda z: torch.tanh(linear(z) + x), torch.zeros(8, 16)).value
    (1e9 * z.float().square().sum()).backward()
    assert not bool(linear.weight.grad.isfinite().all())


def test_samples_that_left_come_back_where_rounding_wants_one_step_more():
    linear = torch.nn.Linear(48, 48)
    draw = torch.Generator().manual_seed(0)
    torch.nn.init.orthogonal_(linear.weight, gain=0.95, generator=draw)
    slow = torch.linspace(0.0, 1.0, 64)[:, None] ** 2
    f = lambda z, x, r: torch.tanh(r * linear(z) + x)  # noqa: E731
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(64, 48, generator=draw)
            found = [
                nsd.fixed_point(f, torch.zeros_like(x), nsd.Picard(), tol=3e-7, throw=False, samples=1, **{how: (x, slow)})
                for how in ("args", "inputs")
            ]
            assert found[0].reason == found[1].reason


def test_a_map_too_steep_to_be_split_stalls():
    steep = Activated(torch.tanh, 1000.0 * torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), torch.tensor([[1.0, -2.0]]))
    found = nsd.fixed_point(steep, torch.zeros(1, 2), PeacemanRachford(), max_steps=1000, throw=False)
    assert found.reason is nsd.fixed_points.Reason.stalled


def test_coupling_shows_at_zero_too():
    a = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double()
    a = 0.9 * a / torch.linalg.eigvals(a).abs().max()
    with pytest.warns(nsd.NumericsWarning, match="one sample"):
        assert spectral_radius(lambda z: a @ z, torch.zeros(4, 3).double()).tolist() == pytest.approx([0.9], rel=1e-2)


@pytest.mark.parametrize("kind", ["inference", "half"])
def test_jacobians_that_cannot_be(kind):
    z = torch.ones(2, 3, dtype=HALF if kind == "half" else torch.float32)
    with torch.inference_mode(kind == "inference"), pytest.raises(nsd.BadInput, match="Jacobian"):
        spectral_radius(lambda z: 0.5 * z, z)
