"""Smooth functions of two numbers as short sums of products."""

import pytest
import torch

from notsodeep.approximation.tables import chebyshev_subset, separate as separate_core
from notsodeep.tolerances import SEPARABLE_RTOL


def on(places, function):
    def entries(rows, columns):
        return function(places[rows][:, None], places[columns][None, :])

    return entries


def separate(entries, places):
    """Features (n, r) and weights (r,) of a function on all places."""
    pivots = chebyshev_subset(places)
    basis, weights = separate_core(entries(pivots, pivots))
    return entries(slice(None), pivots) @ basis, weights


FUNCTIONS = {
    "resolvent": lambda a, b: 1.0 / (1.0 - 0.2 * a * b),
    "gaussian": lambda a, b: torch.exp(-((a - b) ** 2)),
    "product": lambda a, b: a * b,
    "constant": lambda a, b: torch.ones_like(a * b),
    "indefinite": lambda a, b: (a + b) ** 2 - 3.0,
    "negative": lambda a, b: -torch.exp(a * b),
}


def spread(n=300, seed=0):
    return 0.7 + 0.6 * torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("n", [1, 2, 7, 30, 300])
def test_the_sum_is_the_function(name, n):
    places = spread(n)
    entries = on(places, FUNCTIONS[name])
    features, weights = separate(entries, places)
    assert features.shape == (n, len(weights))
    assert relative_gap(features, weights, entries) <= 3.0 * SEPARABLE_RTOL


def relative_gap(features, weights, entries):
    """In operator norm, which is what the terms are left out by."""
    exact = entries(slice(None), slice(None))
    gap = (features * weights) @ features.T - exact
    return float(torch.linalg.matrix_norm(gap, 2) / torch.linalg.matrix_norm(exact, 2))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_sum_is_short(name):
    places = spread()
    _, weights = separate(on(places, FUNCTIONS[name]), places)
    assert len(weights) <= 6


def test_one_term_is_enough_for_a_product():
    places = spread()
    features, weights = separate(on(places, FUNCTIONS["product"]), places)
    assert len(weights) == 1
    torch.testing.assert_close((features * weights) @ features.T, torch.outer(places, places), rtol=1e-12, atol=1e-12)


def test_equal_places():
    """Samples of one norm: a matrix of one number."""
    places = torch.full((50,), 0.9, dtype=torch.float64)
    features, weights = separate(on(places, FUNCTIONS["resolvent"]), places)
    torch.testing.assert_close(
        (features * weights) @ features.T, torch.full((50, 50), 1.0 / (1.0 - 0.162), dtype=torch.float64), rtol=1e-12, atol=0.0
    )


def test_a_far_outlier_does_not_spoil_the_others():
    """One sample of a very different norm stretches the Chebyshev points."""
    places = torch.cat([spread(), torch.tensor([1.9], dtype=torch.float64)])
    entries = on(places, FUNCTIONS["resolvent"])
    features, weights = separate(entries, places)
    assert relative_gap(features[:-1], weights, on(places[:-1], FUNCTIONS["resolvent"])) <= 10.0 * SEPARABLE_RTOL


def test_zero():
    places = spread(20)
    features, weights = separate(on(places, lambda a, b: torch.zeros_like(a * b)), places)
    assert features.shape == (20, 0)
    assert weights.shape == (0,)


def test_float32():
    places = spread().float()
    entries = on(places, FUNCTIONS["resolvent"])
    features, weights = separate(entries, places)
    assert features.dtype == weights.dtype == torch.float32
    assert relative_gap(features, weights, entries) <= 3.0 * SEPARABLE_RTOL
