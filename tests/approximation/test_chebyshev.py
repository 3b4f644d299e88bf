"""Chebyshev series of functions of one number: to round-off, or not at all."""

import torch

from notsodeep.approximation.tables import ChebyshevSeries


def _both(s):
    return torch.stack([s.sqrt(), torch.exp(-s)], 1)


def test_smooth_functions_to_round_off():
    series = ChebyshevSeries.of(_both, 0.1, 30.0)
    s = torch.linspace(0.1, 30.0, 1001, dtype=torch.float64)
    assert series is not None
    assert bool(series.covers(s).all())
    assert float((series(s) - _both(s)).abs().max()) <= 1e-12


def test_round_off_in_the_function_is_no_reason_to_go_on():
    generator = torch.Generator().manual_seed(0)

    def noisy(s):
        return s[:, None] + 1e-11 * torch.randn(len(s), 1, dtype=torch.float64, generator=generator)

    series = ChebyshevSeries.of(noisy, 1.0, 2.0)
    assert series is not None
    assert len(series.coefficients) <= 128


def test_a_kink_has_no_series():
    assert ChebyshevSeries.of(lambda s: (s[:, None] - 1.3).abs(), 1.0, 2.0) is None
