"""L = sup |φ'|: an upper bound, and no larger than it must be."""

import math

import pytest
import torch

from notsodeep.activations import Custom, Elu, Gelu, HardTanh, HermiteSeries, Polynomial, Rectifier, Scaled, Silu, Sum, custom
from tests.zoo import CUSTOM, JUMPING, POLYNOMIAL, build, each

SILU = 1.0998393201288669
"""σ(x) + xσ(x)σ(−x) at x = 2.39935728051546766…, the root of x tanh(x/2) = 2; 25 digits by mpmath."""

EXACT = 1e-6
"""How far below L the largest slope found on the grid may be, for an L known in closed form."""


def largest_slope(phi):
    """On a grid fine enough for EXACT (φ''' ≤ 5 or so), with both sides of every kink."""
    sides = [kink + side for kink in phi.kinks for side in (-1e-9, 1e-9)]
    x = torch.cat([torch.linspace(-20.0, 20.0, 40001, dtype=torch.float64), torch.tensor(sides, dtype=torch.float64)])
    return float(phi.derivative(x).abs().max())


@each()
def test_no_slope_exceeds_the_constant(name):
    """For a user's function as well: an estimate that is too small would promise a contraction that is not there."""
    phi = build(name)
    rounding = 1e-4 if name in CUSTOM else 1e-14  # a user's function is looked at on a grid of step 2⁻⁷
    assert largest_slope(phi) <= phi.lipschitz * (1.0 + rounding)


@each()
def test_the_constant_is_reached(name):
    phi = build(name)
    if name in JUMPING or name in POLYNOMIAL:
        assert phi.lipschitz == math.inf
    elif isinstance(phi, Sum):
        assert phi.lipschitz_is_estimate  # the sum of its parts' constants
    else:
        assert phi.lipschitz <= largest_slope(phi) + EXACT


@pytest.mark.parametrize(
    ("phi", "exact"),
    [
        (Gelu(), 0.5 * math.erfc(-1.0) + math.exp(-1.0) / math.sqrt(math.pi)),
        (Silu(), SILU),
        (Rectifier(0.3, -0.8), 0.8),
        (HardTanh(-2.0, 0.5), 2.0),
        (Elu(3.0), 3.0),
        (Polynomial((5.0, -2.0)), 2.0),
        (Polynomial((5.0, -2.0, 0.0)), 2.0),
        (Polynomial((5.0,)), 0.0),
        (HermiteSeries((1.0, 3.0), scale=2.0), 1.5),
        (Scaled(Silu(), -2.0), 2.0 * SILU),
    ],
    ids=str,
)
def test_known_constants(phi, exact):
    assert phi.lipschitz == pytest.approx(exact, rel=1e-15, abs=0.0)


def test_an_estimate_says_that_it_is_one():
    found = custom(torch.tanh)
    assert isinstance(found, Custom)
    assert found.lipschitz_is_estimate
    assert Scaled(found, 2.0).lipschitz_is_estimate
    assert not Silu().lipschitz_is_estimate


def test_slope_at_the_side_of_a_kink_is_seen():
    """SELU is steepest just left of 0, which is between two places of any grid."""
    steepest = 1.0507009873554805 * 1.6732632423543772
    assert custom(torch.nn.SELU()).lipschitz == pytest.approx(steepest, rel=1e-6)
