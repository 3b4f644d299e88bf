"""Stochastic Lanczos quadrature against the full spectrum."""

import math

import pytest
import torch

from notsodeep.errors import BadInput
from notsodeep.linalg.density import spectral_density
from tests.linalg.test_lanczos import rotated

N = 400
VALUES = torch.linspace(0.5, 2.0, N).double()
MATRIX = rotated(VALUES)


def density(matrix=MATRIX, **options):
    return spectral_density(lambda v: matrix @ v, matrix, **options)


def test_polynomials_are_exact_for_each_probe():
    """v·p(A)v/n of degree < 2·steps, whatever the probe."""
    found = density(steps=4, probes=3)
    signs = torch.randint(0, 2, (N, 3), generator=torch.Generator().manual_seed(0)).double() * 2.0 - 1.0
    expected = (signs * (torch.linalg.matrix_power(MATRIX, 7) @ signs)).sum(0) / N
    torch.testing.assert_close((found.weights * found.nodes**7).sum(1), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("function", [torch.log, torch.reciprocal, torch.sqrt, lambda v: v / (v + 0.1)])
def test_traces_lie_within_their_errors(function):
    found = density(probes=30).trace_of(function)
    assert abs(found.value - float(function(VALUES).sum())) <= 4 * found.error
    assert found.error < 0.02 * abs(float(function(VALUES).sum())) + 1.0


def test_the_error_falls_as_the_root_of_the_probes():
    """Of many runs: the deviation from the truth, and the standard error that each run reports."""
    matrix = rotated(VALUES[::4])
    exact = float(VALUES[::4].log().sum())
    spread, told = {}, {}
    for probes in (4, 16, 64):
        runs = [
            density(matrix, probes=probes, steps=10, generator=torch.Generator().manual_seed(seed)).trace_of(torch.log)
            for seed in range(30)
        ]
        spread[probes] = math.sqrt(sum((run.value - exact) ** 2 for run in runs) / len(runs))
        told[probes] = sum(run.error for run in runs) / len(runs)
    assert spread[4] / spread[64] == pytest.approx(4.0, rel=0.4)
    assert told[4] / told[64] == pytest.approx(4.0, rel=0.25)
    assert told[64] == pytest.approx(spread[64], rel=0.4)


def test_quantiles_and_the_smoothed_density():
    found = density(probes=20)
    for share in (0.1, 0.5, 0.9):
        assert found.quantile(share) == pytest.approx(0.5 + 1.5 * share, abs=0.05)
    assert found.quantile(0.0) == pytest.approx(0.5, abs=1e-3)
    assert found.quantile(1.0) == pytest.approx(2.0, abs=1e-3)
    assert float(torch.trapezoid(found.values, found.grid)) == pytest.approx(1.0, abs=0.02)
    inside = (found.grid > 0.8) & (found.grid < 1.7)
    torch.testing.assert_close(found.values[inside], torch.full((int(inside.sum()),), 1 / 1.5).double(), rtol=0.15, atol=0)


def test_a_grid_of_the_bulk_leaves_spikes_out():
    matrix = rotated(torch.cat([VALUES[:-2], torch.tensor([300.0, 1000.0]).double()]))
    found = density(matrix)
    assert float(found.grid[-1]) < 5.0
    assert found.quantile(1.0) == pytest.approx(1000.0, rel=1e-6)
    assert float(found.at(torch.tensor([1000.0]), width=1.0)) == pytest.approx(1 / N / math.sqrt(2 * math.pi), rel=0.9)


@pytest.mark.parametrize("values", [torch.ones(N), torch.tensor([1.0] * (N - 2) + [7.0, 9.0])])
def test_few_distinct_eigenvalues_end_the_recursion(values):
    """Beyond an invariant subspace nothing is added: neither weights nor zeros under a logarithm."""
    found = density(rotated(values.double()), probes=10)
    estimate = found.trace_of(torch.log)
    assert math.isfinite(estimate.value)
    assert abs(estimate.value - float(values.log().sum())) <= 4 * estimate.error + 1e-8


def test_float32_and_numbers_in_words():
    found = spectral_density(lambda v: MATRIX.float() @ v, MATRIX.float())
    assert found.trace_of(torch.log).value == pytest.approx(density().trace_of(torch.log).value, rel=1e-4)
    assert "±" in str(found.trace_of(torch.log))


def test_errors():
    with pytest.raises(BadInput, match="whole number ≥ 1"):
        density(probes=0)
    with pytest.raises(BadInput, match="0 to 1"):
        density().quantile(1.5)
    with pytest.raises(BadInput, match="ridge"):
        density(rotated(VALUES - 1.0)).trace_of(torch.log)
    with pytest.raises(BadInput, match="NaN"):
        spectral_density(lambda v: v * float("nan"), MATRIX)
