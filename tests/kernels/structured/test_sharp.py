"""The sharp equivalents: sizes of the gap on a mixture, rates on data of growing dimension. Ref: THEORY section 4."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from tests.kernels.mixtures import exact, slope, two_classes

LOW_RANK = {"conjugate": 3e-3, "tangent": 5e-3, "preactivation": 5e-4}
ENTRIES = {"conjugate": 5e-5, "tangent": 1e-4, "preactivation": 1e-5}


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("phi", ["tanh", "relu", "swish"])
def test_sharp_conjugate_kernels_on_a_mixture(phi):
    x, _, stats = two_classes(1600, seed=201)
    net = nsd.Implicit(phi, 0.2, 0.8)
    kernel = nsd.conjugate_kernel(net, x, tau0=stats.tau0)
    assert nsd.relative_gap(kernel, nsd.sharp_kernel(net, x, tau0=stats.tau0)) <= LOW_RANK["conjugate"]
    assert nsd.relative_gap(kernel, nsd.kernels.sharp_entries(net, x, tau0=stats.tau0)) <= ENTRIES["conjugate"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("phi", ["tanh", "relu", "swish", "leaky_relu:0.01", "elu", "gelu"])
def test_every_sharp_kernel_on_a_mixture(phi):
    x, _, stats = two_classes(1600, seed=201)
    net = nsd.Implicit(phi, 0.2, 0.8)
    for kernel, value in exact(net, x, stats.tau0).items():
        low_rank = nsd.relative_gap(value, nsd.sharp_kernel(net, x, kernel, tau0=stats.tau0))
        entries = nsd.relative_gap(value, nsd.kernels.sharp_entries(net, x, kernel, tau0=stats.tau0))
        assert low_rank <= LOW_RANK[kernel], kernel
        assert entries <= ENTRIES[kernel], kernel


@pytest.mark.parametrize("layers", [["relu", "relu"], ["tanh", "tanh"], ["relu", "tanh", "elu"]], ids="-".join)
def test_sharp_kernels_of_explicit_networks(layers):
    x, _, stats = two_classes(600, seed=202)
    net = nsd.Explicit(layers).centred(stats.tau0)
    for kernel, value in exact(net, x, stats.tau0).items():
        theorem = nsd.relative_gap(value, nsd.equivalent_kernel(net, x, stats, kernel))
        low_rank = nsd.relative_gap(value, nsd.sharp_kernel(net, x, kernel))
        entries = nsd.relative_gap(value, nsd.kernels.sharp_entries(net, x, kernel))
        assert low_rank <= 0.1 * theorem, (kernel, low_rank, theorem)
        assert entries <= 0.1 * low_rank, (kernel, entries, low_rank)


def _isotropic(n: int, p: int) -> Tensor:
    x = torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(p))
    return x / math.sqrt(p) * torch.linspace(0.7, 1.3, n, dtype=torch.float64)[:, None]


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize(
    "net", [nsd.Implicit("relu", 0.2), nsd.Implicit("gelu", 0.2), nsd.Explicit(["elu", "relu"]).centred(1.0)], ids=str
)
@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
def test_entries_miss_the_fourth_power_of_a_correlation(net, kernel):
    """Off the diagonal ρ ~ p^(−1/2), and the series stops after ρ³: the root mean square of what is missing is ~ p^(−2)."""
    sizes = [50, 200, 800]
    gaps = []
    for p in sizes:
        x = _isotropic(60, p)
        missing = nsd.kernels.sharp_entries(net, x, kernel) - exact(net, x, nsd.tau0(x))[kernel]
        assert float(missing.diagonal().abs().max()) <= 1e-12
        gaps.append(float(missing.square().mean().sqrt()))
    assert -2.4 <= slope(sizes, gaps) <= -1.7, gaps


def test_entries_of_an_odd_activation_miss_the_fifth_power():
    sizes = [50, 200, 800]
    gaps = []
    for p in sizes:
        x = _isotropic(60, p)
        net = nsd.Implicit("tanh", 0.2)
        missing = nsd.kernels.sharp_entries(net, x) - nsd.conjugate_kernel(net, x)
        gaps.append(float(missing.square().mean().sqrt()))
    assert -3.0 <= slope(sizes, gaps) <= -2.2, gaps


def test_with_every_direction_the_low_rank_form_misses_the_third_power_only():
    sizes = [12, 24, 48]
    net = nsd.Implicit("relu", 0.2)
    gaps = []
    for p in sizes:
        x = _isotropic(60, p)
        missing = nsd.sharp_kernel(net, x, directions=p).to_dense() - nsd.conjugate_kernel(net, x)
        assert float(missing.diagonal().abs().max()) <= 1e-10
        gaps.append(float(missing.square().mean().sqrt()))
    assert slope(sizes, gaps) <= -1.2, gaps


def test_more_directions_are_never_worse():
    x, _, stats = two_classes(200, seed=203)
    net = nsd.Implicit("relu", 0.2)
    kernel = nsd.conjugate_kernel(net, x, tau0=stats.tau0)
    gaps = [nsd.relative_gap(kernel, nsd.sharp_kernel(net, x, tau0=stats.tau0, directions=k)) for k in (1, 3, 10, 30)]
    assert all(later <= 1.05 * earlier for earlier, later in itertools.pairwise(gaps)), gaps
    assert gaps[-1] <= 0.5 * gaps[0]


@pytest.mark.parametrize("kernel", ["conjugate", "tangent", "preactivation"])
def test_diagonal_is_exact(kernel):
    x, _, stats = two_classes(60, seed=204)
    net = nsd.Implicit("elu", 0.2)
    value = exact(net, x, stats.tau0)[kernel].diagonal()
    for sharp in (
        nsd.sharp_kernel(net, x, kernel, tau0=stats.tau0).diagonal(),
        nsd.kernels.sharp_entries(net, x, kernel, tau0=stats.tau0).diagonal(),
    ):
        assert torch.allclose(sharp, value, rtol=1e-10, atol=0)


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
def test_a_kernel_that_does_not_exist_is_refused():
    x = _isotropic(20, 10)
    for sharp in (nsd.sharp_kernel, nsd.kernels.sharp_entries):
        with pytest.raises(nsd.NotSoDeepError):
            sharp(nsd.Implicit("sign", 0.2), x, "tangent")
        with pytest.raises(nsd.BadInput, match="neural"):
            sharp(nsd.Implicit("tanh", 0.2), x, "neural")
