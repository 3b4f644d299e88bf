"""Training keeps a DEQ well posed when asked; its Jacobian is measured right."""

import math

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import ForwardBackward, PeacemanRachford
from notsodeep.models.well_posed import gram_bound

P, M = 10, 48


def data(n=32, seed=0, dtype=torch.float64):
    return torch.randn(n, P, generator=torch.Generator().manual_seed(seed), dtype=dtype) / math.sqrt(P)


def deq(name="relu", **options):
    options = {"var_a": 0.2, "dtype": torch.float64, **options}
    net = nsd.Implicit(name, options.pop("var_a"))
    return nsd.DEQ(net, P, M, 1, generator=torch.Generator().manual_seed(1), **options)


def jacobians(module, x):
    weight, u = module.terms(x)
    s = module.features(x).detach() / module.form.output
    pairs = zip(s, u, strict=True)
    return [torch.autograd.functional.jacobian(lambda row, v=v: module.step(row, weight, v), r) for r, v in pairs]


def push(module, steps=30, rate=0.3):
    """Training that drives A up as hard as it can: the loss rewards large features."""
    optimiser = torch.optim.SGD([p for name, p in module.named_parameters() if "A" in name], lr=rate)
    x = data()
    for _ in range(steps):
        optimiser.zero_grad()
        (-module.features(x).square().sum()).backward()
        optimiser.step()
    return module


@pytest.mark.parametrize("name", ["relu", "tanh", "silu"])
def test_spectral_keeps_the_map_contractive(name):
    module = push(deq(name, well_posed="spectral"), rate=3.0)
    norm = float(torch.linalg.matrix_norm(module.A.detach() * module.form.recurrent, 2))
    assert norm * module.form.phi.lipschitz <= 0.95 + 1e-12
    assert norm * module.form.phi.lipschitz > 0.8  # the bound is reached, and is not far too careful
    assert module.solve(data()).reason is nsd.fixed_points.Reason.converged


@pytest.mark.parametrize("name", ["relu", "tanh", "leaky_relu:0.1"])
def test_monotone_keeps_one_equilibrium(name):
    module = push(deq(name, well_posed="monotone"), rate=1.0)
    w = module.A.detach() * module.form.recurrent
    assert float(torch.linalg.eigvalsh(0.5 * (w + w.T)).max()) <= 0.95 + 1e-9
    x = data()
    found = module.solve(x)
    assert found.reason is nsd.fixed_points.Reason.converged
    for jacobian in jacobians(module, x[:4]):
        assert float(torch.linalg.eigvals(torch.eye(M) - jacobian).real.min()) > 0.0


@pytest.mark.parametrize("name", ["relu", "tanh"])
@pytest.mark.parametrize("width", [48, 256])
def test_monotone_and_all_skew(name, width):
    # Eigenvalues all along the imaginary axis: the hardest that the form allows.
    draw = torch.Generator().manual_seed(0)
    net = nsd.Implicit(name, 0.2)
    module = nsd.DEQ(net, P, width, well_posed="monotone", dtype=torch.float64, generator=draw)
    with torch.no_grad():
        root, skew = module.parametrizations.A.parameters()
        root.zero_()
        skew.normal_(generator=draw)
    x = data().requires_grad_()
    assert float(torch.linalg.matrix_norm(module.A.detach() * module.form.recurrent, 2)) > 1.5
    module(x).sum().backward()  # both solves converge, or this raises


@pytest.mark.parametrize("name", ["relu", "tanh"])
@pytest.mark.parametrize("solver", [PeacemanRachford(), ForwardBackward()])
def test_a_splitting_solves_and_trains_a_monotone_deq(name, solver):
    usual, split = (deq(name, well_posed="monotone", **options) for options in ({}, {"solver": solver}))
    assert split.adjoint.solver == solver
    x = data()
    for _ in range(2):
        outputs = [module(x) for module in (usual, split)]
        torch.testing.assert_close(*outputs, rtol=1e-7, atol=1e-8)
        for module, out in zip((usual, split), outputs, strict=True):
            module.zero_grad()
            out.square().mean().backward()
            torch.optim.SGD(module.parameters(), lr=0.1).step()
        for a, b in zip(usual.parameters(), split.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-8)
    assert split(x).square().mean().item() < outputs[1].square().mean().item()


def test_second_derivatives_of_a_monotone_deq_by_splitting():
    x, results = data(3).requires_grad_(), []
    for options in ({}, {"solver": PeacemanRachford()}):
        (first,) = torch.autograd.grad(deq("tanh", well_posed="monotone", **options)(x).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


def test_weights_of_zero_stay_zero():
    module = deq("relu", well_posed="spectral")
    with torch.no_grad():
        module.parametrizations.A.original.zero_()
    assert float(module.A.detach().abs().max()) == 0.0


def test_without_it_the_same_training_fails():
    with pytest.raises(nsd.NotConverged):
        push(deq("relu", solver=nsd.Picard()), rate=3.0)(data())


@pytest.mark.parametrize("well_posed", ["spectral", "monotone"])
def test_a_contractive_start_is_left_as_it_is(well_posed):
    plain, kept = deq("tanh", var_a=0.1), deq("tanh", var_a=0.1, well_posed=well_posed)
    torch.testing.assert_close(kept.A.detach(), plain.A.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kept(data()), plain(data()), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", [(30, 30), (5, 40), (40, 5), (1, 1)])
def test_the_gram_bound_is_never_below_the_norm(shape):
    for seed in range(5):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 10.0**seed
        norm = float(torch.linalg.matrix_norm(weight, 2))
        assert norm <= float(gram_bound(weight)) * (1 + 1e-12)
        assert float(gram_bound(weight)) <= norm * min(shape) ** (1 / 64) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_spectral_radius_is_right_to_one_per_cent(name, dtype):
    module, x = deq(name, dtype=dtype), data(5, dtype=dtype)
    exact = torch.stack([torch.linalg.eigvals(j.double()).abs().max() for j in jacobians(module, x)])
    torch.testing.assert_close(nsd.fixed_points.spectral_radius(module, x).double(), exact, rtol=0.01, atol=0.0)


def test_the_spectral_radius_of_a_wide_network():
    x = data(3, dtype=torch.float32)
    module = nsd.DEQ(nsd.Implicit("relu", 0.2), P, 512, generator=torch.Generator().manual_seed(0))
    exact = torch.stack([torch.linalg.eigvals(j.double()).abs().max() for j in jacobians(module, x)])
    torch.testing.assert_close(nsd.fixed_points.spectral_radius(module, x).double(), exact, rtol=0.01, atol=0.0)


def test_picard_contracts_by_the_spectral_radius():
    module, x = deq("tanh", solver=nsd.Picard()), data(1)
    trace = module.solve(x).residuals[:, 0]
    rate = float((trace[-1] / trace[-9]) ** (1 / 8))
    assert rate == pytest.approx(float(nsd.fixed_points.spectral_radius(module, x)), rel=0.15)


def test_the_jacobian_penalty_is_an_unbiased_estimate():
    module, x = deq("relu"), data(6)
    exact = sum(float(j.square().sum()) for j in jacobians(module, x)) / (6 * M)
    draw = torch.Generator().manual_seed(0)
    estimates = torch.stack([nsd.fixed_points.jacobian_penalty(module, x, generator=draw).detach() for _ in range(400)])
    assert float(estimates.mean()) == pytest.approx(exact, abs=4 * float(estimates.std()) / 20)
    assert float(nsd.fixed_points.jacobian_penalty(module, x, probes=400, generator=draw)) == pytest.approx(exact, rel=0.03)


def test_the_jacobian_penalty_trains():
    module, x = deq("relu", var_a=0.24), data()
    before = nsd.fixed_points.spectral_radius(module, x).mean()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.03)
    for step in range(20):
        optimiser.zero_grad()
        nsd.fixed_points.jacobian_penalty(module, x, generator=torch.Generator().manual_seed(step)).backward()
        optimiser.step()
    assert float(nsd.fixed_points.spectral_radius(module, x).mean()) < 0.8 * float(before)


def test_the_penalty_has_the_exact_gradient():
    module, x = deq("tanh"), data(4)
    value = lambda: nsd.fixed_points.jacobian_penalty(module, x, generator=torch.Generator().manual_seed(0))  # noqa: E731
    (gradient,) = torch.autograd.grad(value(), module.A)
    direction = torch.randn(M, M, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            module.A += step * direction
            values.append(float(value()))
            module.A -= step * direction
    assert float((gradient * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5)


def test_other_modules_are_refused():
    with pytest.raises(nsd.BadInput, match="ENN"):
        nsd.fixed_points.spectral_radius(nsd.ENN(nsd.Explicit("relu"), P, M), data())
