"""Counting pieces of any ReLU DEQ: against sign patterns of the solved state, and where the equilibrium is not unique."""

import contextlib
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import notsodeep as nsd
from notsodeep import separation as sep
from notsodeep.separation.pieces import EquilibriumPath, OrderedUnits, Units, _different

LOW, HIGH = -4.0, 4.0


def drawn(m, seed, kind="contracting", outputs=1):
    """A ReluDEQ of one input whose I − W is a P-matrix."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((m, m))
    if kind == "contracting":
        W *= 0.9 / np.linalg.norm(W, 2)
    elif kind == "skew":
        W = 5.0 * (W - W.T)
    else:  # a small symmetric part, and signs and sizes that do not contract
        W = 3.0 * (W - W.T) + 0.5 * (W + W.T) / np.linalg.norm(W + W.T, 2)
    weights = (W, rng.standard_normal((m, 1)), rng.standard_normal(m), rng.standard_normal((outputs, m)))
    return sep.ReluDEQ(*map(torch.from_numpy, weights))


def shuffled(network, seed=0):
    """The same network, its units in another order."""
    p = torch.randperm(network.width, generator=torch.Generator().manual_seed(seed))
    return sep.ReluDEQ(network.W[p][:, p], network.U[p], network.b[p], network.A[:, p], network.V)


def kinds_of_state(network, low, high):
    """Pieces by brute force: each active set's own interval of x, from its linear inequalities; those of more than one point.

    All 2^m sets are looked at, no walk is made.
    """
    W, u, b, A, v = (getattr(Units.of(network), name) for name in ("W", "u", "b", "A", "v"))
    found = []
    for bits in itertools.product((False, True), repeat=len(b)):
        on = np.array(bits)
        inverse = np.linalg.inv(np.eye(on.sum()) - W[np.ix_(on, on)])
        slope, offset = np.zeros(len(b)), np.zeros(len(b))
        slope[on], offset[on] = inverse @ u[on], inverse @ b[on]
        # z_i ≥ 0 where on, h_i ≤ 0 where off: all of rate·x + start ≥ 0
        rate, start = np.where(on, slope, -(W @ slope + u)), np.where(on, offset, -(W @ offset + b))
        left = max([low, *(-start[rate > 0] / rate[rate > 0])])
        right = min([high, *(-start[rate < 0] / rate[rate < 0])])
        if right - left > 1e-11 and (start[rate == 0] >= 0).all():
            found.append((left, right, A @ slope + v))
    found.sort(key=lambda piece: piece[0])
    assert found[0][0] == low
    assert found[-1][1] == high
    for before, after in itertools.pairwise(found):  # they cover the interval, each once
        assert before[1] == pytest.approx(after[0], abs=1e-9)
    return 1 + sum(not np.allclose(p[2], q[2], rtol=1e-9, atol=1e-9) for p, q in itertools.pairwise(found))


@pytest.mark.parametrize("kind", ["contracting", "skew", "mixed"])
@pytest.mark.parametrize("m", range(3, 9))
def test_pieces_are_those_of_all_active_sets(m, kind):
    for seed in range(4):
        network = drawn(m, seed, kind, outputs=1 + seed % 2)
        found = sep.count_pieces(network, LOW, HIGH)
        assert found == kinds_of_state(network, LOW, HIGH)
        assert 1 <= found <= sep.max_pieces_deq(m)


@pytest.mark.parametrize("seed", range(3))
def test_pieces_are_those_of_a_fine_grid(seed):
    network = drawn(6, seed)
    x = torch.linspace(LOW, HIGH, 50_001, dtype=torch.float64)[:, None]
    with torch.no_grad():
        on = network.features(x) > 1e-8
    assert sep.count_pieces(network, LOW, HIGH) == 1 + int((on[1:] != on[:-1]).any(1).sum())


@pytest.mark.parametrize("m", [2, 6, 9])
def test_units_in_another_order_have_the_same_pieces(m):
    assert sep.count_pieces(shuffled(sep.sawtooth_deq(m), m), 0.0, 1.0) == 2**m


@pytest.mark.parametrize("seed", range(5))
def test_both_paths_agree_where_both_apply(seed):
    network = drawn(12, seed)
    network.W.data.copy_(3.0 * network.W.data.tril(-1))
    units = Units.of(network)
    assert units.in_order
    assert _different(EquilibriumPath(units), LOW, HIGH) == _different(OrderedUnits(units), LOW, HIGH) > 3


@given(st.integers(0, 10_000), st.sampled_from(["contracting", "skew", "mixed"]), st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_pieces_of_two_parts_are_those_of_the_whole_or_one_more(seed, kind, share):
    network = drawn(7, seed, kind)
    middle = LOW + share * (HIGH - LOW)
    whole = sep.count_pieces(network, LOW, HIGH)
    parts = sep.count_pieces(network, LOW, middle) + sep.count_pieces(network, middle, HIGH)
    assert whole <= parts <= whole + 1


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_units_that_turn_together(seed):
    """Small whole numbers over eight: many units at 0 at once, units without slope, and outputs that do not see a turn."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 7))
    W = rng.integers(-1, 2, (m, m)) / 8.0
    u, b, A = rng.integers(-1, 2, (m, 1)) * 1.0, rng.integers(-1, 2, m) * 1.0, rng.integers(-1, 2, (1, m)) * 1.0
    network = sep.ReluDEQ(*map(torch.from_numpy, (W, u, b, A)))
    assert sep.count_pieces(network, LOW, HIGH) == sep.count_pieces(shuffled(network, seed), LOW, HIGH)
    assert sep.count_pieces(network, LOW, HIGH) == by_slopes(network)


def by_slopes(network):
    """Kinks of the outputs between the points of a fine grid: each shows in one or two neighbouring second differences."""
    x = torch.linspace(LOW, HIGH, 40_008, dtype=torch.float64)[:, None]
    with torch.no_grad():
        slopes = (network(x[1:]) - network(x[:-1])) / (x[1:] - x[:-1])
    kinks = torch.nonzero((slopes.diff(dim=0).abs() > 1e-5).any(1)).flatten()
    return 1 + len(kinks) - int((kinks.diff() == 1).sum())


def test_a_line_through_one_point_where_all_units_turn():
    """b = 0: z is homogeneous, one piece on either side of 0, all units turning there."""
    for kind in ("contracting", "skew", "mixed"):
        network = drawn(8, 3, kind)
        network.b.data.zero_()
        assert sep.count_pieces(network, -1.0, 1.0) == 2
        assert sep.count_pieces(network, 0.0, 1.0) == sep.count_pieces(network, -1.0, 0.0) == 1


def test_a_large_shift_of_x_changes_nothing():
    network = drawn(8, 1, "skew")
    found = sep.count_pieces(network, LOW, HIGH)
    network.b.data.sub_(1000.0 * network.U.data[:, 0])
    assert sep.count_pieces(network, 1000.0 + LOW, 1000.0 + HIGH) == found


@pytest.mark.parametrize("seed", [5, 22, 38, 98])
def test_the_way_back_has_as_many_pieces(seed):
    """Units of sizes from 1e-3 to 1e3, and sets of them of condition number past 1e10, whose pieces are 1e-6 wide and less."""
    rng = np.random.default_rng(seed)
    m = 30
    W = rng.standard_normal((m, m))
    W = 100.0 * (W - W.T) + 0.99999 * np.eye(m)
    size = 10.0 ** rng.uniform(-3.0, 3.0, m)
    weights = (W * size[:, None] / size, rng.standard_normal((m, 1)) * size[:, None], rng.standard_normal(m) * size)
    there = sep.ReluDEQ(*map(torch.from_numpy, (*weights, rng.standard_normal((1, m)))))
    back = sep.ReluDEQ(there.W, -there.U, there.b, there.A)
    assert sep.count_pieces(there, LOW, HIGH) == sep.count_pieces(back, LOW, HIGH) > 5


def test_float32_weights_are_taken():
    network = drawn(6, 2).float()
    assert sep.count_pieces(network, LOW, HIGH) == sep.count_pieces(network.double(), LOW, HIGH)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_weights_on_a_device_are_taken():
    network = drawn(6, 2)
    assert sep.count_pieces(network, LOW, HIGH) == sep.count_pieces(network.cuda(), LOW, HIGH)


def of(*weights):
    return sep.ReluDEQ(*(torch.tensor(weight, dtype=torch.float64) for weight in weights))


RING = [[0.0, 0.0, 1.5], [1.5, 0.0, 0.0], [0.0, 1.5, 0.0]]  # det(I − W) = 1 − 1.5³, every smaller minor 1


@pytest.mark.parametrize(
    ("network", "message", "units"),
    [
        (of([[2.0]], [[1.0]], [-10.0], [[1.0]]), r"not unique for every x.*= -1 ≤ 0 for the units 0\.", [0]),
        (of([[0.0, 2.0], [2.0, 0.0]], [[1.0], [1.0]], [0.0, 0.0], [[1.0, 1.0]]), "= -3 ≤ 0 for the units 0, 1", [0, 1]),
        (of(RING, [[1.0]] * 3, [-1.0] * 3, [[1.0] * 3]), r"not unique near x = 1,.*= -2\.38 ≤ 0", [0, 1, 2]),
        (of([[1.0]], [[1.0]], [0.0], [[1.0]]), "= 0 ≤ 0", [0]),
    ],
)
def test_an_equilibrium_that_is_not_unique_is_refused(network, message, units):
    with pytest.raises(nsd.NotContractive, match=message) as error:
        sep.count_pieces(network, 0.0, 2.0)
    assert error.value.units == units
    assert error.value.left <= error.value.right == 0.0
    assert "Scale W down" in str(error.value)


@pytest.mark.parametrize("seed", range(40))
def test_no_walk_goes_on_for_ever(seed):
    """Weights that are no P-matrix, more often than not: a number within the bound, or a refusal."""
    network = drawn(8, seed)
    network.W.data.mul_(2.5)
    with contextlib.suppress(nsd.NotContractive):
        assert 1 <= sep.count_pieces(network, LOW, HIGH) <= sep.max_pieces_deq(8)


def test_weights_and_intervals_that_are_not_finite_are_refused():
    network = drawn(3, 0)
    with pytest.raises(nsd.BadInput, match="high = inf is not a finite number"):
        sep.count_pieces(network, 0.0, float("inf"))
    network.W.data[0, 0] = float("nan")
    with pytest.raises(nsd.BadInput, match="NaN"):
        sep.count_pieces(network, 0.0, 1.0)
