"""The numbers of an activation that fits evaluate, and their kernels, against the exact dual map."""

import pytest
import torch

from notsodeep.activations import Activation, activation
from notsodeep.gaussian import dual_map
from notsodeep.gaussian.hermite import hermite_coefficients
from notsodeep.matching.layers import LINE
from notsodeep.matching.series import Line, Series, paired


@pytest.mark.parametrize("name", ["tanh", "gelu", "sin", "relu", "elu"])
def test_numbers_and_kernels_between_the_nodes(name):
    phi, low, high = activation(name), 0.2, 4.0
    series = Series(phi, low, high, 64 if phi.kinks else 32)
    tau = torch.tensor([0.2, 0.333, 0.71, 1.0, 1.93, 3.99], dtype=torch.float64)
    numbers = series(tau)
    expected = hermite_coefficients(phi, tau, series.terms)
    torch.testing.assert_close(numbers[:, :-1], expected, rtol=0.0, atol=1e-8)
    i, j = torch.combinations(torch.arange(len(tau)), 2).T
    for rho in (-0.7, 0.0, 0.5, 0.9):
        columns = numbers.T
        given = paired(columns[:, i], columns[:, j], torch.full(i.shape, rho, dtype=torch.float64))
        exact, _ = dual_map(phi, tau[i], tau[j], rho * tau[i] * tau[j])
        missed = 2.0 * abs(rho) ** series.terms * numbers[i, -1] * numbers[j, -1]  # both sums lie within the tail's bound
        assert ((given - exact).abs() <= missed + 1e-8).all()
    powers, _ = dual_map(phi, tau, tau, tau.square())  # exact at ρ = 1 by the last number
    torch.testing.assert_close(numbers.square().sum(1), powers, rtol=1e-8, atol=0.0)


def test_the_line_has_one_number():
    tau = torch.tensor([0.5, 2.0], dtype=torch.float64)
    assert isinstance(LINE, Activation)
    assert torch.equal(Line(5)(tau), torch.tensor([[0, 0.5, 0, 0, 0, 0], [0, 2.0, 0, 0, 0, 0]], dtype=torch.float64))
