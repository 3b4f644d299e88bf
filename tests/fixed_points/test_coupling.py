"""Rows that depend on each other, rows that do not, and what `samples` says of them."""

import warnings

import pytest
import torch

import notsodeep as nsd

from .maps import contraction, tanh_map


def graph_network(seed):
    """X ↦ relu(W X A + B) : features along the first axis, where samples would be, nodes along the second.

    Ref: Gu et al. (2020).
    """
    draw = torch.Generator().manual_seed(seed)
    a = (torch.rand(50, 50, generator=draw) < 0.08).double()
    a = a / torch.linalg.eigvals(a).abs().max()
    w = torch.randn(8, 8, generator=draw).double()
    w = w * 0.95 / torch.linalg.eigvals(w).abs().max()
    b = torch.randn(8, 50, generator=draw).double().requires_grad_()
    return (lambda x: torch.relu(w @ x @ a + b)), b


def solve(f, solver, **options):
    """The solution, and what was told on the way."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", nsd.NumericsWarning)
        found = nsd.fixed_point(f, torch.zeros(8, 50).double(), solver, tol=1e-5, max_steps=400, throw=False, **options)
    return found, [str(w.message) for w in told if w.category is nsd.NumericsWarning]


@torch.no_grad()
def residual(f, z):
    return float((f(z) - z).norm() / f(z).norm())


@pytest.mark.parametrize("solver", [nsd.Broyden(), nsd.Anderson(), nsd.Anderson(memory=20)])
@pytest.mark.parametrize("seed", [47, 0, 1, 2, 3])
def test_what_is_called_converged_is(seed, solver):
    f, _ = graph_network(seed)
    with torch.no_grad():
        found, told = solve(f, solver)
    assert found.reason is nsd.fixed_points.Reason.converged
    assert residual(f, found.value) <= 1e-5
    assert found.coupled == bool(told)
    assert all("samples=0" in message for message in told)
    if seed == 47:  # with others the rows may converge together before anybody looks
        assert found.coupled
        assert found.converged.shape == (1,)
        assert found.residuals.shape == (found.evaluations - found.extra, 1)


@pytest.mark.parametrize("solver", [nsd.Broyden(), nsd.Anderson()])
def test_nothing_is_told_where_the_whole_state_is_one_sample(solver):
    f, _ = graph_network(47)
    with torch.no_grad():
        (found, told), (guessed, _) = (solve(f, solver, **options) for options in ({"samples": 0}, {}))
    assert not told
    assert not found.coupled
    assert found.converged.tolist() == [True]
    assert residual(f, found.value) <= 1e-5
    assert found.evaluations < guessed.evaluations


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("samples", [None, 0, 1])
def test_gradients_of_coupled_rows(samples):
    f, b = graph_network(47)
    found = nsd.fixed_point(f, torch.zeros(8, 50).double(), nsd.Broyden(), tol=1e-10, max_steps=400, samples=samples)
    if samples != 1:  # of rows that are said to be independent, those that happen to converge together are not looked at
        assert found.coupled == (samples is None)
    weights = torch.linspace(-1.0, 1.0, 400).double()
    (gradient,) = torch.autograd.grad(found.value.flatten() @ weights, b)
    z = found.value.detach()
    j = torch.autograd.functional.jacobian(f, z).reshape(400, 400)
    wanted = torch.linalg.solve(torch.eye(400) - j.T, weights) * (f(z) > 0).flatten()
    torch.testing.assert_close(gradient.flatten(), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("solver", [nsd.Picard(), nsd.Anderson(engage=0.0), nsd.Broyden(engage=0.0)])
def test_two_axes_of_samples_are_one_reshaped(solver):
    weight, x = contraction(12, 5)
    one = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), solver, samples=1)
    x = x.reshape(3, 4, 5)
    two = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), solver, samples=2)
    assert torch.equal(two.value.flatten(0, 1), one.value)
    assert torch.equal(two.residuals, one.residuals)
    assert two.converged.shape == (12,)


@pytest.mark.parametrize(
    ("samples", "says"), [(3, "do not share 3 leading axes"), (-1, "0, 1, 2"), (True, "0, 1, 2"), ("all", "0, 1, 2")]
)
def test_samples_that_make_no_sense_are_refused(samples, says):
    with pytest.raises(nsd.BadInput, match=says):
        nsd.fixed_point(lambda z: 0.5 * z, torch.zeros(3, 4), samples=samples)


def test_noise_is_not_taken_for_coupling():
    draw = torch.Generator().manual_seed(0)
    f = lambda z: 0.9 * z + 1.0 + 1e-3 * torch.rand(z.shape, generator=draw)  # noqa: E731
    found, told = solve(f, nsd.Picard())
    assert not found.coupled
    assert not told


def test_states_are_kept_on_both_sides_of_the_turn():
    f, _ = graph_network(47)
    with torch.no_grad():
        found, told = solve(f, nsd.Anderson(), keep=(2, 20))
        (early, late), image = found.states, f(f(torch.zeros(8, 50).double()))
    assert "from evaluation 16 on" in told[0]
    assert len(found.residuals) > 20
    assert torch.equal(early, image)
    assert residual(f, late) < residual(f, early)
    assert not torch.equal(late, found.value)


def test_growth_is_measured_from_the_start():
    """A map that runs away, slowly: what is called diverged has grown since the first evaluation."""
    a = torch.full((8, 8), 1.02 / 8).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nsd.NumericsWarning)
        found = nsd.fixed_point(lambda z: a @ z + 1.0, torch.zeros(8, 3).double(), nsd.Picard(), throw=False)
    assert found.reason is nsd.fixed_points.Reason.diverged


def test_the_warning_names_the_line_of_ones_own():
    f, _ = graph_network(47)
    with pytest.warns(nsd.NumericsWarning, match="depend on each other") as told:
        nsd.fixed_point(f, torch.zeros(8, 50).double(), tol=1e-5, throw=False)
    assert told[0].filename == __file__
