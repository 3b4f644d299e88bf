"""Constructions without training: exact, as large as the theorems say, and with as many pieces."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep import separation as sep

GRID = torch.rand(1000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("m", range(1, 16))
def test_the_sawtooth_deq_is_the_sawtooth(m):
    network = sep.sawtooth_deq(m)
    with torch.no_grad():
        assert torch.equal(network(GRID), sep.Sawtooth(m)(GRID))
    assert network.width == m


@pytest.mark.parametrize("m", [*range(1, 12), pytest.param(15, marks=pytest.mark.slow)])
def test_it_has_two_to_the_m_pieces(m):
    assert sep.count_pieces(sep.sawtooth_deq(m), 0.0, 1.0) == 2**m == sep.max_pieces_deq(m)


def test_pieces_of_a_part_of_the_interval():
    network = sep.sawtooth_deq(6)
    assert sep.count_pieces(network, 0.0, 0.5) == 32
    assert sep.count_pieces(network, 0.01, 0.012) == 1


def in_grid(network, low, high, cells=400_000):
    """Kinks of the outputs between grid points: one shows in one or two neighbouring second differences."""
    x = torch.linspace(low, high, cells + 1, dtype=torch.float64)[:, None]
    with torch.no_grad():
        slopes = network(x).diff(dim=0) * cells / (high - low)
    kinks = torch.nonzero((slopes.diff(dim=0).abs() > 1e-5).any(1)).flatten()
    return 1 + len(kinks) - int((kinks.diff() == 1).sum())


@pytest.mark.parametrize("seed", range(6))
def test_pieces_of_feed_forward_networks_are_those_of_a_fine_grid(seed):
    torch.manual_seed(seed)
    linear = torch.nn.Linear
    network = torch.nn.Sequential(linear(1, 8), torch.nn.ReLU(), linear(8, 6), torch.nn.ReLU(), linear(6, 2)).double()
    found = sep.count_pieces(network, -3.0, 3.0)
    assert found == in_grid(network, -3.0, 3.0)
    assert found <= sep.max_pieces_fnn(3, 8)


def test_pieces_of_an_enn():
    torch.manual_seed(1)
    network = nsd.ENN(nsd.Explicit(["relu", "relu"]), 1, 9, 1, bias=True, dtype=torch.float64)
    for bias in network.biases:
        torch.nn.init.normal_(bias)
    assert sep.count_pieces(network, -3.0, 3.0) == in_grid(network, -3.0, 3.0) > 3


def test_a_unit_that_does_nothing_makes_no_piece():
    network = sep.ReluDEQ(*(torch.tensor(w, dtype=torch.float64) for w in ([[0.0]], [[1.0]], [-0.5], [[0.0]])))
    assert sep.count_pieces(network, 0.0, 1.0) == 1
    two = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1)).double()
    with torch.no_grad():  # relu(x) − relu(−x) = x: two units turn at 0, and the slope stays
        for weight, value in zip(two.parameters(), ([[1.0], [-1.0]], [0.0, 0.0], [[1.0, -1.0]], [0.0]), strict=True):
            weight.copy_(torch.tensor(value))
    assert sep.count_pieces(two, -1.0, 1.0) == 1


@pytest.mark.parametrize(("N", "error"), [(4, 0.0996), (10, 0.045), (20, 0.024), (50, 0.0097)])
def test_the_steep_deq_errs_as_much_as_it_should(N, error):
    d = 20
    first = torch.cat([torch.linspace(0, 1, 2001), 1.0 - torch.logspace(-9, 0, 6001, dtype=torch.float64)]).double()
    x = torch.zeros(len(first), d, dtype=torch.float64)
    x[:, 0] = first
    network = sep.SteepDEQ(d, N)
    missed = float((network(x) - sep.Steep(d)(x)).abs().max())
    assert missed == pytest.approx(error, rel=0.03)
    assert network.width == 4 * N + 2
    assert missed <= 1.0 / (2 * N)


def test_the_steep_deq_is_at_an_equilibrium():
    network = sep.SteepDEQ(6, 10)
    x = sep.Steep(6).sample(200, torch.Generator().manual_seed(0))
    z = network(x)
    torch.testing.assert_close(network.step(z, x[:, :1]), z, rtol=0.0, atol=1e-12)


def test_the_interpolated_square_is_one():
    network = sep.SteepDEQ(3, 8)
    knots = torch.arange(-8, 9, dtype=torch.float64) / 8
    torch.testing.assert_close(network.square(knots), knots.square(), rtol=0.0, atol=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sep.sawtooth_deq(0), "m must be a whole number"),
        (lambda: sep.count_pieces(sep.sawtooth_deq(2), 1.0, 0.0), "is empty"),
        (lambda: sep.count_pieces(torch.nn.Linear(1, 1), 0.0, 1.0), "got Linear"),
        (lambda: sep.count_pieces(torch.nn.Sequential(torch.nn.Linear(2, 1)), 0.0, 1.0), "this one has 2"),
        (lambda: sep.count_pieces(nsd.ENN(nsd.Explicit(["tanh"]), 1, 3, 1), 0.0, 1.0), "other activations"),
        (lambda: sep.steep_deq_size(0.0), "must be in"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(nsd.BadInput, match=message):
        call()


def test_a_deq_that_is_not_nilpotent_is_solved():
    network = sep.ReluDEQ(*(torch.tensor(w, dtype=torch.float64) for w in ([[0.5]], [[1.0]], [0.0], [[1.0]])))
    assert float(network(torch.ones(1, 1, dtype=torch.float64)).detach()) == pytest.approx(2.0, rel=1e-9)
    assert sep.count_pieces(network, 0.0, 1.0) == 1
    assert sep.count_pieces(network, -1.0, 1.0) == 2


def test_bounds():
    assert sep.max_pieces_deq(5) == 32
    assert sep.max_pieces_fnn(3, 10) == 400
    assert sep.max_pieces_fnn(1, 10) == 1
    assert sep.min_weight_fnn(20, 5) == 4.0
    assert sep.steep_deq_size(0.1) == (50, 20.0)
    assert np.isclose(sep.min_weight_fnn(10, 3), 2 ** (10 / 6))
