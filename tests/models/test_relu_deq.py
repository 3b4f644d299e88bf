"""A ReLU DEQ with any weights: exact where its units have an order, solved elsewhere, differentiable both ways."""

import pytest
import torch

import notsodeep as nsd
from notsodeep import separation as sep
from notsodeep.models.relu_deq import longest_chain

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random(p=2, m=5, outputs=2, seed=0, **options):
    return sep.ReluDEQ.random(p, m, outputs, skip=True, generator=generator(seed), dtype=F64, **options)


def inputs(n=4, p=2, seed=1):
    return torch.randn(n, p, dtype=F64, generator=generator(seed))


def rebuilt(x, *weights, **options):
    """The network's outputs as a function of its weights."""
    module = random(**options)
    return torch.func.functional_call(module, dict(zip("WUbAVc", weights, strict=True)), (x,))


def weights_of(module):
    return [getattr(module, name).detach().clone().requires_grad_() for name in "WUbAVc"]


def test_the_equilibrium_is_one():
    module, x = random(m=30), inputs(20)
    solution = module.solve(x)
    assert bool(solution.converged.all())
    z = solution.value
    torch.testing.assert_close(torch.relu(z @ module.W.T + x @ module.U.T + module.b), z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(module(x), z @ module.A.T + x @ module.V.T + module.c, rtol=1e-9, atol=1e-9)
    assert torch.equal(module.features(x), z)


@pytest.mark.parametrize("adjoint", [nsd.ImplicitAdjoint(tol=1e-13), nsd.fixed_points.UnrolledAdjoint()])
def test_gradients_through_the_solver(adjoint):
    options = {"adjoint": adjoint, "tol": 1e-13}
    weights, x = weights_of(random(**options)), inputs().requires_grad_()
    assert torch.autograd.gradcheck(lambda *all_: rebuilt(*all_, **options), (x, *weights))


def test_second_derivatives_through_the_solver():
    options = {"adjoint": nsd.ImplicitAdjoint(tol=1e-13), "tol": 1e-13, "m": 3}
    weights, x = weights_of(random(**options)), inputs(2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda *all_: rebuilt(*all_, **options), (x, *weights))


def ordered(kind, m=5):
    """Weights whose W is strictly lower triangular, up to the order of the units."""
    weights = weights_of(random(m=m))
    W = 2.0 * weights[0].detach().tril(-1)
    if kind == "zero":
        W = torch.zeros_like(W)
    elif kind == "shuffled":
        order = torch.randperm(m, generator=generator(3))
        W = W[order][:, order]
    return [W.requires_grad_(), *weights[1:]]


@pytest.mark.parametrize("kind", ["lower", "zero", "shuffled"])
def test_gradients_of_the_sweeps_are_those_of_the_equilibrium(kind):
    """Of every entry of W, those that are 0 too: where one changes, the solver takes over, and the two must meet."""
    weights, x = ordered(kind), inputs().requires_grad_()
    assert longest_chain(weights[0]) is not None
    assert torch.autograd.gradcheck(lambda *all_: rebuilt(*all_, tol=1e-14), (x, *weights))


def test_second_derivatives_of_the_sweeps():
    weights, x = ordered("lower", m=3), inputs(2).requires_grad_()
    options = {"m": 3, "tol": 1e-14, "adjoint": nsd.ImplicitAdjoint(tol=1e-14)}
    assert torch.autograd.gradgradcheck(lambda *all_: rebuilt(*all_, **options), (x, *weights))


def test_the_sawtooth_has_the_gradient_of_the_sawtooth():
    x = torch.rand(200, 1, dtype=F64, generator=generator()).requires_grad_()
    network = sep.sawtooth_deq(8)
    slopes = torch.autograd.grad(network(x).sum(), x)[0]
    assert bool((slopes.abs() == 2.0**8).all())
    solution = network.solve(x)
    assert bool(solution.converged.all())
    assert torch.equal(solution.value, network.features(x))


@pytest.mark.parametrize(
    ("W", "chain"),
    [
        ([[0.0, 0.0], [0.0, 0.0]], 1),
        ([[0.0, 0.0], [3.0, 0.0]], 2),
        ([[0.0, 3.0], [0.0, 0.0]], 2),
        ([[0.0, 3.0], [1.0, 0.0]], None),
        ([[0.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.0]], None),
    ],
)
def test_the_longest_chain(W, chain):
    assert longest_chain(torch.tensor(W)) == chain


@pytest.mark.parametrize("width", [1, 3, 50, 400])
def test_random_weights_contract(width):
    module = sep.ReluDEQ.random(3, width, generator=generator(width), dtype=F64)
    assert float(torch.linalg.matrix_norm(module.W.detach(), 2)) < 0.8
    assert (module.in_features, module.width, module.out_features) == (3, width, 1)
    assert float(module.U.detach().abs().max()) <= 3**-0.5
    assert float(module.A.detach().abs().max()) <= width**-0.5
    assert module.V is None


def test_random_weights_repeat_and_leave_out_what_is_not_asked_for():
    one, two = (sep.ReluDEQ.random(2, 4, bias=False, generator=generator(5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one.c is None
    assert not one.b.requires_grad
    assert not one.b.any()
    assert one.W.dtype == torch.float32


@pytest.mark.parametrize("kind", ["lower", None])
def test_transforms_of_torch_func(kind):
    module = random() if kind is None else sep.ReluDEQ(*ordered(kind))
    x = inputs()
    jacobians = torch.func.vmap(torch.func.jacrev(lambda one: module(one[None])[0]))(x)
    wanted = torch.autograd.functional.jacobian(lambda all_: module(all_).sum(0), x)
    torch.testing.assert_close(jacobians, wanted.movedim(1, 0), rtol=1e-8, atol=1e-8)


def test_it_trains():
    module = sep.ReluDEQ.random(1, 20, generator=generator(), solver=nsd.Broyden(), tol=1e-5)
    x = torch.linspace(-1, 1, 64)[:, None]
    optimiser = torch.optim.Adam(module.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        loss = (module(x) - x.abs()).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.05 * losses[0]


def test_leading_axes_and_no_samples():
    for module in (random(), sep.ReluDEQ(*ordered("lower"))):
        x = inputs(6)
        torch.testing.assert_close(module(x.reshape(2, 3, 2)).reshape(6, 2), module(x))
        assert module(x[:0]).shape == (0, 2)
        with pytest.raises(nsd.BadInput, match="no sample"):
            module.solve(x[:0])


def test_a_state_that_is_not_found_says_so():
    weights = [torch.tensor(w, dtype=F64) for w in ([[2.0]], [[1.0]], [0.0], [[1.0]])]
    x = torch.ones(1, 1, dtype=F64)  # z = relu(2z + 1) has no solution
    with pytest.raises(nsd.NotConverged, match="The equilibrium of the ReluDEQ was not found"):
        sep.ReluDEQ(*weights)(x)
    assert not bool(sep.ReluDEQ(*weights, throw=False, max_steps=5).solve(x).converged.any())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random(solver="anderson"), "solver must be"),
        (lambda: random(adjoint="implicit"), "adjoint must be"),
        (lambda: random(m=0), "width must be a whole number"),
        (lambda: sep.ReluDEQ(*map(torch.zeros, [(2, 2), (2, 1), (2,), (1, 3)])), r"A has shape \(1, 3\).*\(1, 2\)"),
        (lambda: random()(inputs(p=3)), "in_features = 2"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(nsd.BadInput, match=message):
        call()
