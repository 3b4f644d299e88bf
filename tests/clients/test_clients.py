"""Layers that people train: truly solved, with the right gradient, in no more evaluations than another library needs."""

import json
import pathlib

import pytest
import torch

import notsodeep as nsd

from . import CLIENTS
from .client import Counted, loss
from .monotone_convolution import composed, composite_kernel, convolved
from .reference import Flat, reference

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "torchdeq_evaluations.json"
ROUNDING = 1.05  # a residual at 1e-5 of float32 numbers, computed twice
MORE = 1.1

every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def gradients(client, problem, tol=None):
    return torch.autograd.grad(loss(client.solve(problem, tol).value), problem.parameters)


def distance(found, wanted):
    """Relative, of all parameters' gradients together."""
    found, wanted = (torch.cat([g.double().flatten() for g in grads]) for grads in (found, wanted))
    return float((found - wanted).norm() / wanted.norm())


@every_client
def test_the_state_is_within_tolerance_by_an_evaluation_of_ones_own(client):
    problem = client.build(torch.float32, 0)
    with torch.no_grad():
        found = client.solve(problem)
    assert bool(found.converged.all())
    assert client.residual(problem, found.value) <= ROUNDING * client.tol


@every_client
def test_the_state_and_the_gradient_are_those_of_a_dense_newton_method(client):
    problem = client.build(torch.float64, 0)
    wanted, wanted_gradients = reference(client)
    with torch.no_grad():
        value = Flat(problem).pack(client.solve(problem, 1e-11).value)
    assert float((value - wanted).norm() / wanted.norm()) <= 1e-8
    assert distance(gradients(client, problem, 1e-11), wanted_gradients) <= 1e-6


@every_client
def test_the_gradient_in_float32_is_as_good_as_its_tolerance(client):
    found = gradients(client, client.build(torch.float32, 0))
    assert distance(found, reference(client)[1]) <= client.gradient_tol


@every_client
def test_no_more_evaluations_than_torchdeq(client):
    counts = json.loads(GOLDEN.read_text())["evaluations"][client.name]
    best = min((count for count in counts.values() if count is not None), default=client.max_steps)
    problem = client.build(torch.float32, 0)
    counted = Counted(problem.f)
    split = isinstance(client.solver, nsd.fixed_points.Splitting)  # needs the parts of f; one product a step as well
    with torch.no_grad():
        found = client.solve(problem if split else problem._replace(f=counted))
    assert found.evaluations <= MORE * best
    assert split or counted.evaluations == found.evaluations


def test_one_circular_convolution_is_the_composition():
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4, 4, 3, 3, generator=draw, dtype=torch.float64) for _ in range(2))
    z = torch.randn(2, 4, 7, 6, generator=draw, dtype=torch.float64)
    torch.testing.assert_close(convolved(z, composite_kernel(a, b, 0.1)), composed(z, a, b, 0.1))


def test_the_composed_operator_is_monotone():
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4, 4, 3, 3, generator=draw, dtype=torch.float64) for _ in range(2))
    z = torch.randn(20, 4, 7, 6, generator=draw, dtype=torch.float64)
    along = (z * (z - composed(z, a, b, 0.1))).flatten(1).sum(1)
    assert bool((along >= 0.1 * z.flatten(1).square().sum(1)).all())
