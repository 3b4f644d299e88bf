"""Gaussian expectations by panels and by the classical rule."""

import math

import pytest
import torch

from notsodeep.approximation.quadrature import gauss_hermite_rule, normal_rule
from tests.zoo import CONTINUOUS, OSCILLATING, build, each

NO_MARKS = torch.zeros(0, dtype=torch.float64)


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def double_factorial(k):
    return float(math.prod(range(k, 0, -2)))


@pytest.mark.parametrize("std", [1e-3, 1.0, 40.0, 1e3])
@pytest.mark.parametrize("power", [0, 1, 2, 3, 4, 6, 8, 12])
def test_powers(power, std):
    """E[u^k] = (k − 1)!! σ^k for even k, 0 for odd."""
    rule = normal_rule(float64(std), NO_MARKS)
    exact = 0.0 if power % 2 else double_factorial(power - 1) * std**power
    found = float(rule.mean_of(rule.u**power))
    assert found == pytest.approx(exact, rel=1e-14, abs=1e-14 * std**power)


@pytest.mark.parametrize("mean", [-3.0, 0.0, 0.7, 1e3])
def test_a_mean(mean):
    rule = normal_rule(float64(2.0), NO_MARKS, mean=float64(mean))
    assert float(rule.mean_of(rule.u)) == pytest.approx(mean, rel=1e-14, abs=1e-14)
    assert float(rule.mean_of(rule.u.square())) == pytest.approx(mean**2 + 4.0, rel=1e-14)
    torch.testing.assert_close(rule.u, mean + 2.0 * rule.xi, rtol=1e-15, atol=0.0)


@pytest.mark.parametrize("kink", [-2.0, -1.0 / 3.0, 0.0, 0.1234, 5.0])
def test_a_marked_kink_costs_nothing(kink):
    """E[max(u − a, 0)] = σ N(a/σ) − a P(u > a)."""
    std = 1.7
    rule = normal_rule(float64(std), float64(kink))
    z = kink / std
    exact = std * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) - kink * 0.5 * math.erfc(z / math.sqrt(2.0))
    assert float(rule.mean_of(torch.relu(rule.u - kink))) == pytest.approx(exact, rel=1e-13, abs=0.0)


def test_an_unmarked_kink_costs_digits():
    """The reason for the marks: without them the same rule is no better than 1e-5."""
    rule = normal_rule(float64(1.0), NO_MARKS)
    exact = math.exp(-0.5 * 0.01) / math.sqrt(2.0 * math.pi) - 0.1 * 0.5 * math.erfc(0.1 / math.sqrt(2.0))
    assert 1e-9 < abs(float(rule.mean_of(torch.relu(rule.u - 0.1))) - exact) < 1e-2


@pytest.mark.parametrize("marks", [NO_MARKS, float64(0.0, 0.5, 0.5, -100.0, 1e300, 1e-300)])
def test_weights_are_a_probability(marks):
    """Repeated marks and marks far outside make empty panels, nothing worse."""
    std = float64(1e-3, 1.0, 1e3)
    rule = normal_rule(std, marks)
    torch.testing.assert_close(rule.weights.sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-14, atol=0.0)
    assert (rule.weights >= 0).all()


def test_shapes():
    rule = normal_rule(torch.ones(2, 3, dtype=torch.float64), float64(0.0, 1.0))
    assert rule.u.shape == rule.xi.shape == rule.weights.shape
    assert rule.u.shape[:2] == (2, 3)
    assert rule.mean_of(rule.u).shape == (2, 3)
    own_marks = normal_rule(float64(1.0, 2.0), torch.tensor([[0.0, 1.0], [0.5, 2.0]], dtype=torch.float64))
    assert own_marks.u.shape[0] == 2


def test_no_width():
    """std = 0: all nodes at the mean, wherever the marks are."""
    rule = normal_rule(float64(0.0, 0.0), float64(-1.0, 0.0, 0.3), mean=float64(0.0, 0.3))
    assert torch.equal(rule.u, rule.u[:, :1].expand_as(rule.u))
    torch.testing.assert_close(rule.mean_of(rule.u), float64(0.0, 0.3), rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("std", [0.05, 1.0, 30.0])
@each(tuple(name for name in CONTINUOUS if name not in OSCILLATING))
def test_narrower_panels_change_nothing(name, std):
    """The marks of every activation resolve it: a rule four times as fine agrees to round-off."""
    phi = build(name)
    coarse, fine = (normal_rule(float64(std), phi.mesh(12.0 * std).edges, spacing=s) for s in (3.0, 0.75))
    with torch.no_grad():
        for function in (phi, lambda u: phi(u).square(), lambda u: phi.derivative(u).square()):
            one, other = (float(rule.mean_of(function(rule.u))) for rule in (coarse, fine))
            size = float(fine.mean_of(function(fine.u).abs()))
            assert abs(one - other) <= 1e-13 * size


def test_gradient_in_the_deviation():
    """d/dσ E[g(u)] = E[g(u)(ξ² − 1)]/σ, for a g that jumps: P(u > 1) has derivative N(1/σ)/σ²."""
    std = float64(0.8).requires_grad_()
    rule = normal_rule(std, float64(1.0))
    probability = rule.mean_of((rule.u > 1.0).double())
    (slope,) = torch.autograd.grad(probability.sum(), std)
    exact = math.exp(-0.5 / 0.64) / math.sqrt(2.0 * math.pi) / 0.64
    assert float(slope) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("nodes", [1, 2, 5, 20, 60, 150, 300])
def test_gauss_hermite_is_exact_up_to_its_degree(nodes):
    """For polynomials of degree < 2·nodes; higher powers than 60 overflow their own size."""
    std = float64(0.5, 3.0)
    rule = gauss_hermite_rule(std, nodes)
    for power in range(0, min(2 * nodes, 60), max(1, min(2 * nodes, 60) // 7)):
        exact = (0.0 if power % 2 else double_factorial(power - 1)) * std**power
        scale = double_factorial(2 * ((power + 1) // 2) - 1) * std**power
        assert float(((rule.mean_of(rule.u**power) - exact).abs() / scale).max()) <= 1e-12, power


def test_gauss_hermite_is_not_exact_beyond_it():
    rule = gauss_hermite_rule(float64(1.0), 3)
    assert float(rule.mean_of(rule.u**6)) != pytest.approx(15.0, rel=1e-3)


@pytest.mark.parametrize("nodes", [350, 400, 520])
def test_gauss_hermite_with_many_nodes(nodes):
    """A Hermite design of 256 terms asks for 514."""
    rule = gauss_hermite_rule(float64(1.0), nodes)
    assert float(rule.mean_of(rule.u**4)) == pytest.approx(3.0, rel=1e-12)


def test_gauss_hermite_gradient():
    """d/dσ E[u⁴] = 12 σ³."""
    std = float64(0.5, 2.0).requires_grad_()
    rule = gauss_hermite_rule(std, 8)
    (slope,) = torch.autograd.grad(rule.mean_of(rule.u**4).sum(), std)
    torch.testing.assert_close(slope, 12.0 * std.detach() ** 3, rtol=1e-12, atol=0.0)
