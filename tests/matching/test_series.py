"""The numbers of an activation that fits evaluate, and their kernels, against the exact dual map."""

import pytest
import torch

from notsodeep.activations import Activation, activation
from notsodeep.gaussian import dual_map
from notsodeep.gaussian.hermite import hermite_coefficients
from notsodeep.matching.layers import LINE
from notsodeep.matching.series import Line, Series, entries, slopes


@pytest.mark.parametrize("name", ["tanh", "gelu", "sin", "relu", "elu"])
def test_numbers_and_kernels_between_the_nodes(name):
    phi, low, high = activation(name), 0.2, 4.0
    series = Series(phi, low, high, 64 if phi.kinks else 32)
    tau = torch.tensor([0.2, 0.333, 0.71, 1.0, 1.93, 3.99], dtype=torch.float64)
    numbers = series(tau)
    expected = hermite_coefficients(phi, tau, series.terms)
    torch.testing.assert_close(numbers[:, :-2], expected, rtol=0.0, atol=1e-8)
    i, j = torch.combinations(torch.arange(len(tau)), 2).T
    for rho in (-0.7, 0.0, 0.5, 0.9):
        columns = numbers.T
        products = columns[:, i] * columns[:, j]
        given = entries(products, rho)
        exact, slope = dual_map(phi, tau[i], tau[j], rho * tau[i] * tau[j])
        missed = 2.0 * abs(rho) ** (series.terms - 1) * numbers[i, -2:] * numbers[j, -2:]  # sums lie within the tail's bound
        assert ((given - exact).abs() <= missed[:, 0] + 1e-8).all()
        steep = slopes(products, rho)
        assert ((steep - slope * tau[i] * tau[j]).abs() <= missed[:, 1] + 1e-7).all()
    powers, steepness = dual_map(phi, tau, tau, tau.square())  # exact at ρ = 1 by the last numbers
    torch.testing.assert_close(entries(numbers.T.square(), 1.0), powers, rtol=1e-8, atol=0.0)
    torch.testing.assert_close(slopes(numbers.T.square(), 1.0), steepness * tau.square(), rtol=1e-7, atol=0.0)


def test_the_line_has_one_number():
    tau = torch.tensor([0.5, 2.0], dtype=torch.float64)
    assert isinstance(LINE, Activation)
    assert torch.equal(Line(5)(tau), torch.tensor([[0, 0.5, 0, 0, 0, 0, 0], [0, 2.0, 0, 0, 0, 0, 0]], dtype=torch.float64))
