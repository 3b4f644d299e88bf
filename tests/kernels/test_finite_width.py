"""Exact kernels against networks of growing width: the gap falls like width^(−1/2)."""

import math

import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from tests.kernels.finite_width import (
    FiniteDeq,
    FiniteExplicit,
    Function,
    conjugate,
    log_log_slope,
    root_mean_square_gap,
    tangent,
)

VAR_A, VAR_B = 0.2, 0.8
N, P = 5, 6


def _x() -> Tensor:
    x = torch.randn(N, P, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) / math.sqrt(P)
    x[1] += 0.5 * x[0]
    return x


X = _x()


def _centred_relu(u: Tensor) -> Tensor:
    """relu(u) − E[relu(τ*ξ)], by hand: Var[relu(τξ)] = τ²(½ − 1/2π) and E[relu(τξ)] = τ/√2π."""
    tau2 = VAR_B * float(X.square().sum(1).mean()) / (1.0 - VAR_A * (0.5 - 0.5 / math.pi))
    return torch.relu(u) - math.sqrt(tau2 / (2.0 * math.pi))


def _halves(one: Function, other: Function) -> Function:
    """Every second unit of another kind."""
    return lambda u: torch.cat([one(u[:, ::2]), other(u[:, 1::2])], dim=1)


NETWORKS = {
    "tanh": (nsd.Implicit("tanh", VAR_A, VAR_B), lambda m, seed: FiniteDeq(torch.tanh, VAR_A, VAR_B, P, m, seed)),
    "relu": (nsd.Implicit("relu", VAR_A, VAR_B), lambda m, seed: FiniteDeq(_centred_relu, VAR_A, VAR_B, P, m, seed)),
    "explicit": (nsd.Explicit(["relu", "tanh"]), lambda m, seed: FiniteExplicit([torch.relu, torch.tanh], P, m, seed)),
    "several kinds": (
        nsd.Explicit([nsd.activations.Mixed(["relu", "sin"]), nsd.activations.Mixed(["tanh", "x"])]),
        lambda m, seed: FiniteExplicit([_halves(torch.relu, torch.sin), _halves(torch.tanh, lambda u: u)], P, m, seed),
    ),
}


def _conjugate_gaps(name: str, widths: list[int], draws: int) -> list[float]:
    net, build = NETWORKS[name]
    exact = nsd.conjugate_kernel(net, X)
    return [root_mean_square_gap([conjugate(build(m, s), X) for s in range(draws)], exact) for m in widths]


def _measured_tangents(name: str, width: int, draws: int) -> list[Tensor]:
    return [tangent(NETWORKS[name][1](width, seed), X) for seed in range(draws)]


@pytest.mark.filterwarnings("error::notsodeep.NumericsWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_conjugate_kernel_is_the_limit_of_finite_widths(name):
    widths = [128, 256, 512, 1024]
    gaps = _conjugate_gaps(name, widths, draws=24)
    assert -0.7 <= log_log_slope(widths, gaps) <= -0.35, gaps
    assert gaps[-1] <= 0.12, gaps


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_conjugate_kernel_at_larger_widths(name):
    widths = [128, 256, 512, 1024, 2048]
    gaps = _conjugate_gaps(name, widths, draws=40)
    assert -0.6 <= log_log_slope(widths, gaps) <= -0.4, gaps


@pytest.mark.parametrize("name", NETWORKS)
def test_tangent_kernel_is_the_limit_of_finite_widths(name):
    widths = [64, 128, 256, 512]
    net = NETWORKS[name][0]
    exact = nsd.tangent_kernel(net, X)
    measured = [_measured_tangents(name, m, draws=16) for m in widths]
    gaps = [root_mean_square_gap(kernels, exact) for kernels in measured]
    assert log_log_slope(widths, gaps) <= -0.4, gaps
    # The mean over draws is near enough to tell kernels apart: Θ is that of f = aᵀz, K (THEORY section 2) is not.
    mean = torch.stack(measured[-1]).mean(0)
    assert nsd.relative_gap(exact, mean) <= 0.05
    if isinstance(net, nsd.Implicit):
        other = nsd.tangent_kernel(net, X, readout="preactivation")
        assert nsd.relative_gap(other, mean) >= 3.0 * nsd.relative_gap(exact, mean)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_tangent_kernel_at_larger_widths(name):
    widths = [64, 128, 256, 512, 1024]
    exact = nsd.tangent_kernel(NETWORKS[name][0], X)
    gaps = [root_mean_square_gap(_measured_tangents(name, m, draws=24), exact) for m in widths]
    assert -0.65 <= log_log_slope(widths, gaps) <= -0.4, gaps
