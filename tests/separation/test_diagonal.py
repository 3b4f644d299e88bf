"""The diagonal linear DEQ: descent, flow, and the limit that a convex programme tells."""

import pytest
import torch
from scipy.optimize import minimize

import notsodeep as nsd
from notsodeep import separation as sep


def task(n, d, seed):
    draw = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=draw, dtype=torch.float64)
    beta = 0.5 + torch.rand(d, generator=draw, dtype=torch.float64)
    start = 0.7 + 0.6 * torch.rand(d, generator=draw, dtype=torch.float64)
    return X, X @ beta, start


@pytest.mark.parametrize(("n", "d"), [(1, 3), (3, 6), (5, 5), (2, 10)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_flow_ends_at_the_limit(n, d, seed):
    X, y, start = task(n, d, seed)
    limit = sep.flow_limit(X, y, start)
    torch.testing.assert_close(sep.gradient_flow(X, y, start, 1e4), limit, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(X @ limit, y, rtol=1e-11, atol=1e-11)


def test_the_limit_minimises_what_it_should():
    X, y, start = task(2, 5, 3)
    limit = sep.flow_limit(X, y, start).numpy()
    found = minimize(
        lambda b: (0.5 / b**2 + start.numpy() ** -3.0 * b).sum(),
        torch.linalg.lstsq(X, y[:, None]).solution[:, 0].numpy().clip(0.3, None),
        constraints={"type": "eq", "fun": lambda b: X.numpy() @ b - y.numpy()},
        bounds=[(0.05, None)] * 5,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert found.success
    assert found.x == pytest.approx(limit, abs=1e-5)


def test_gradient_descent_follows_the_flow():
    X, y, _ = task(3, 6, 0)
    network = sep.DiagonalDEQ(6, dtype=torch.float64)
    optimiser = torch.optim.SGD(network.parameters(), lr=5e-3)
    for _ in range(6000):
        optimiser.zero_grad()
        (0.5 * (network(X)[:, 0] - y).square().sum()).backward()
        optimiser.step()
    beta = 1.0 / (1.0 - network.w.detach())
    torch.testing.assert_close(beta, sep.flow_limit(X, y, torch.ones(6, dtype=torch.float64)), rtol=0.0, atol=2e-2)


def test_the_unseen_half_of_f1():
    beta, error = sep.gotu_limit(0.0, 1.25)
    assert beta == pytest.approx(1.141042, abs=5e-7)
    assert error == pytest.approx(0.047488, abs=5e-7)
    assert sep.gotu_bound(1.25) == pytest.approx(2.218, abs=5e-4)
    assert error < sep.gotu_bound(1.25) < 4 * 1.25**2


@pytest.mark.parametrize("f_k", [0.1, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("f_empty", [0.0, 0.7, -2.0])
def test_the_limit_solves_its_equation(f_k, f_empty):
    beta, error = sep.gotu_limit(f_empty, f_k)
    assert beta > 0.0
    assert beta + (1.0 - beta**-3) / 3.0 == pytest.approx(f_empty + f_k, abs=1e-10)
    assert error == 4.0 * (f_k - beta) ** 2


def test_training_on_the_seen_half_ends_there():
    """f1 with a bias: the flow of (β, b) on the seen half, whose column k is all ones."""
    target = sep.BOOLEAN_TARGETS["f1"]
    seen, unseen = target.seen_and_unseen()
    network = sep.DiagonalDEQ(10, bias=True, dtype=torch.float64)
    optimiser = torch.optim.SGD(network.parameters(), lr=2e-3)
    y = target(seen)
    for _ in range(6000):
        optimiser.zero_grad()
        (0.5 * (network(seen) - y).square().mean()).backward()
        optimiser.step()
    with torch.no_grad():
        error = float((network(unseen) - target(unseen)).square().mean())
    assert 1.0 / (1.0 - float(network.w.detach()[1])) == pytest.approx(sep.gotu_limit(0.0, 1.25)[0], abs=2e-3)
    assert error == pytest.approx(sep.gotu_limit(0.0, 1.25)[1], abs=4e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sep.flow_limit(torch.ones(2, 3), torch.ones(3), torch.ones(3)), "expected"),
        (lambda: sep.flow_limit(torch.ones(1, 2), torch.ones(1), torch.zeros(2)), "must be positive"),
        (lambda: sep.gotu_limit(0.0, float("nan")), "f_k = nan is not a finite number"),
        (lambda: sep.gotu_bound(-1.0), "f_k > 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(nsd.BadInput, match=message):
        call()


def test_a_constraint_that_no_positive_beta_meets():
    with pytest.raises(nsd.NotConverged, match="β > 0"):
        sep.flow_limit(torch.ones(1, 2), -torch.ones(1), torch.ones(2))


def test_gradient_descent_ends_where_the_flow_does():
    target = sep.BOOLEAN_TARGETS["f1"]
    seen, unseen = target.seen_and_unseen()
    network = sep.gradient_descent(seen, target(seen), 3000)
    with torch.no_grad():
        assert float((network(seen) - target(seen)).square().mean()) < 1e-5
        error = float((network(unseen) - target(unseen)).square().mean())
    assert error == pytest.approx(sep.gotu_limit(0.0, 1.25)[1], rel=0.05)
