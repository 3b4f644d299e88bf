"""How large weights must be on the steep function: the networks that are built, and the bound that none goes below."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from scipy.integrate import quad

import notsodeep as nsd
from notsodeep import separation as sep

SHAPES = [(50, 50), (50,), (8, 8), (30, 30, 30), (20, 7, 11)]


def largest(network):
    return max(float(weight.detach().abs().max()) for weight in network.parameters())


def mean_loss(network, d, cells=100_000):
    """Over the law of `Steep.sample`, of which networks here read x_1 alone."""
    target = sep.Steep(d)
    middle = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    halves = (1.0 - target.delta * middle, (1.0 - target.delta) * middle)
    with torch.no_grad():
        parts = [torch.nn.functional.pad(x1[:, None], (0, d - 1)) for x1 in halves]
        return sum(0.5 * float((network(x) - target(x)).square().mean()) for x in parts)


@pytest.mark.parametrize("d", [1, 3, 6, 13, 20])
@pytest.mark.parametrize("N", [1, 2, 12])
def test_the_steep_deq_as_a_layer_is_at_its_equilibrium(d, N):
    deq = sep.SteepDEQ(d, N)
    layer = deq.as_relu_deq()
    x = sep.Steep(d).sample(300, torch.Generator().manual_seed(N))
    with torch.no_grad():
        y = deq(x)
        of_output = layer.W @ torch.linalg.pinv(layer.A)  # W = w A
        z = torch.relu(y @ of_output.T + x @ layer.U.T + layer.b)
        torch.testing.assert_close(torch.relu(z @ layer.W.T + x @ layer.U.T + layer.b), z, rtol=0.0, atol=2e-15)
        torch.testing.assert_close(z @ layer.A.T, y, rtol=0.0, atol=1e-15)
    assert layer.width == deq.width == 4 * N + 2
    assert int(torch.linalg.matrix_rank(layer.W.detach())) == 1


def test_the_layers_largest_weight_does_not_depend_on_d():
    assert {largest(sep.SteepDEQ(d, 12).as_relu_deq()) for d in range(1, 30)} == {1.0}


@pytest.mark.parametrize("widths", SHAPES)
@pytest.mark.parametrize("d", [1, 6, 12, 20])
def test_the_feed_forward_network_has_the_loss_that_was_asked_for(d, widths):
    network = sep.steep_fnn(d, widths)
    assert [len(layer.weight) for layer in network if isinstance(layer, torch.nn.Linear)] == [*widths, 1]
    loss = mean_loss(network, d)
    assert loss <= 1e-4
    assert largest(network) >= sep.min_weight_steep_fnn(d, widths, loss) >= sep.min_weight_steep_fnn(d, widths, 1e-4)


@pytest.mark.parametrize("d", range(8, 21, 2))
def test_its_weights_are_within_a_tenth_of_the_least(d):
    assert largest(sep.steep_fnn(d)) <= 1.1 * sep.min_weight_steep_fnn(d, (50, 50), 1e-4)


def test_its_loss_is_that_of_samples():
    d = 7
    x = sep.Steep(d).sample(100_000, torch.Generator().manual_seed(0))
    with torch.no_grad():
        sampled = float((sep.steep_fnn(d)(x) - sep.Steep(d)(x)).square().mean())
    assert sampled == pytest.approx(mean_loss(sep.steep_fnn(d), d), rel=0.02)


@pytest.mark.parametrize("d", [1, 4, 20])
def test_the_bound_s_integrals(d):
    delta = 2.0**-d

    def g(s):
        return float(sep.Steep(d)(torch.tensor(1.0 - delta * s, dtype=torch.float64)))

    against = quad(lambda s: (0.5 - s) * g(s), 0.0, 1.0)[0]
    assert against == pytest.approx((1.0 + delta) * (3.0 * math.log(2.0) - 2.0) / 4.0, rel=1e-8)
    slope = sep.min_weight_steep_fnn(d, (1,), 0.0) ** 2 * delta  # with one unit, L = δ B²
    assert slope == pytest.approx(12.0 * against, rel=1e-8)
    assert quad(lambda s: s * (1.0 - s) / 2.0, 0.0, 1.0)[0] == pytest.approx(1.0 / 12.0)


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=12), st.floats(0.0, 0.6), st.floats(0.2, 0.6))
def test_no_function_of_a_small_slope_is_close(turns, slope, start):
    """Any f with |f'| ≤ L on the steep half has a loss of which the bound's Λ is at most L; the flat half only adds to it."""
    d, cells = 20, 1200
    s = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    falls = slope * torch.tensor(turns, dtype=torch.float64).repeat_interleave(-(-cells // len(turns)))[:cells] / cells
    f = start - falls.cumsum(0)
    loss = 0.5 * float((f - sep.Steep(d)(1.0 - 2.0**-d * s)).square().mean())
    needed = sep.min_weight_steep_fnn(d, (1,), loss) ** 2 * 2.0**-d
    assert needed <= slope * max(map(abs, turns)) + 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_trained_networks_obey_the_bound(seed):
    """d = 3: the steep part is resolved within a few hundred steps."""
    d, widths = 3, (3, 2)
    torch.manual_seed(seed)
    shape = (torch.nn.Linear(d, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    network = torch.nn.Sequential(*shape).double()
    optimiser = torch.optim.Adam(network.parameters(), 0.02)
    draw = torch.Generator().manual_seed(seed)
    for step in range(400):
        x = sep.Steep(d).sample(256, draw)
        x[:, 1:] = 0.0  # as in `mean_loss`
        loss = (network(x) - sep.Steep(d)(x)).square().mean()
        if step % 50 == 0:
            assert largest(network) >= sep.min_weight_steep_fnn(d, widths, mean_loss(network, d, 5000))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert largest(network) >= sep.min_weight_steep_fnn(d, widths, mean_loss(network, d, 5000))


def test_where_the_steep_part_need_not_be_resolved_the_bound_says_nothing():
    assert sep.min_weight_steep_fnn(20, (50, 50), 2.45e-3) == 0.0
    assert sep.min_weight_steep_fnn(20, (50, 50), 1e-4) == pytest.approx(4.2983, rel=1e-4)
    ratio = sep.min_weight_steep_fnn(23, (50, 50), 1e-4) / sep.min_weight_steep_fnn(20, (50, 50), 1e-4)
    assert ratio == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sep.min_weight_steep_fnn(5, (3,), -1.0), "mean of squares"),
        (lambda: sep.min_weight_steep_fnn(5, (0,), 0.1), "width must be"),
        (lambda: sep.steep_fnn(5, ()), "one hidden layer"),
        (lambda: sep.steep_fnn(5, (4, 4), loss=1e-9), "Allow a loss"),
        (lambda: sep.steep_fnn(6, (4, 1)), "wider last layer"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(nsd.BadInput, match=message):
        call()
