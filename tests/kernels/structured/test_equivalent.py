"""The theorems' equivalents against the exact kernels: known sizes of the gap, and its rate. Ref: THEORY section 3."""

from dataclasses import replace

import pytest
import torch

import notsodeep as nsd
from tests.kernels.mixtures import KERNELS, drawn, exact, slope, three_classes, two_classes

SIZES = [200, 400, 800, 1600]
MEASURED = {
    "tanh": [0.28, 0.19, 0.12, 0.082],
    "relu": [0.16, 0.11, 0.072, 0.047],
    "swish": [0.15, 0.10, 0.062, 0.040],
    "leaky_relu:0.1": [0.11, 0.073, 0.050, 0.033],
}
"""THEORY section 3, σ_a² = 0.2, σ_b² = 0.8; drawn with other seeds than here."""


def _gaps(net, x, stats) -> dict[str, float]:
    return {
        kernel: nsd.relative_gap(value, nsd.equivalent_kernel(net, x, stats, kernel))
        for kernel, value in exact(net, x, stats.tau0).items()
    }


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")  # swish is a little too steep for 1/(4L²)
@pytest.mark.parametrize("phi", MEASURED)
def test_conjugate_gap_has_the_measured_size(phi):
    net = nsd.Implicit(phi, 0.2, 0.8)
    for n, expected in zip(SIZES, MEASURED[phi], strict=True):
        x, _, stats = two_classes(n, seed=101)
        kernel = nsd.conjugate_kernel(net, x, tau0=stats.tau0)
        assert nsd.relative_gap(kernel, nsd.equivalent_kernel(net, x, stats)) == pytest.approx(expected, rel=0.2)


# ELU's tangent kernels are slow to reach their rate: between n = 200, 400, … 3200 their local exponents, over four draws,
# are −0.46, −0.44, −0.46, −0.52 (conjugate: −0.53, −0.50, −0.50, −0.55). The two slow tests hold them to −0.45.
STEEPEST_MISSED = {("elu", "tangent"): -0.38, ("elu", "preactivation"): -0.38}


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("phi", ["tanh", "relu", "leaky_relu:0.01", "elu", "swish"])
def test_gap_falls_at_the_rate_of_the_theorem(phi):
    net = nsd.Implicit(phi, 0.2, 0.8)
    gaps = [_gaps(net, x, stats) for x, _, stats in (two_classes(n, seed=102) for n in SIZES)]
    for kernel in KERNELS:
        rate = slope(SIZES, [gap[kernel] for gap in gaps])
        assert rate <= STEEPEST_MISSED.get((phi, kernel), -0.45), (kernel, rate, gaps)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("phi", ["tanh", "relu", "leaky_relu:0.01", "elu", "swish"])
def test_rate_at_larger_sizes(phi):
    net = nsd.Implicit(phi, 0.2, 0.8)
    sizes = [800, 1600, 3200]
    gaps = [_gaps(net, x, stats) for x, _, stats in (two_classes(n, seed) for seed in (103, 104) for n in sizes)]
    for kernel in KERNELS:
        rate = slope(sizes * 2, [gap[kernel] for gap in gaps])
        assert rate <= -0.45, (kernel, rate)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("phi", ["tanh", "relu", "leaky_relu:0.01", "elu", "swish"])
def test_rate_over_the_whole_range(phi):
    """CK and NTK, n = 200 … 3200, the mean of several draws: a single small draw moves the slope by 0.02."""
    net = nsd.Implicit(phi, 0.2, 0.8)
    draws = {200: 12, 400: 8, 800: 5, 1600: 3, 3200: 2}
    means = {"conjugate": [], "tangent": []}
    for n, count in draws.items():
        gaps = [_gaps(net, x, stats) for x, _, stats in (two_classes(n, 1000 * k + n) for k in range(count))]
        for kernel, values in means.items():
            values.append(sum(gap[kernel] for gap in gaps) / count)
    for kernel, values in means.items():
        assert slope(list(draws), values) <= -0.45, (kernel, values)


@pytest.mark.parametrize("layers", [["relu", "relu"], ["tanh", "tanh"]], ids="-".join)
def test_explicit_equivalents_converge_too(layers):
    gaps = []
    for n in SIZES[:3]:
        x, _, stats = two_classes(n, seed=105)
        gaps.append(_gaps(nsd.Explicit(layers).centred(stats.tau0), x, stats))
    for kernel in ("conjugate", "tangent"):
        rate = slope(SIZES[:3], [gap[kernel] for gap in gaps])
        assert rate <= -0.45, (kernel, gaps)
        assert gaps[-1][kernel] <= 0.2


@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize("phi", ["tanh", "relu"])
def test_mixtures_of_unequal_spectra(phi, kind):
    """Three classes whose covariances differ in shape, so that T matters and not only t."""
    sizes = [100, 200, 400, 800]
    net = nsd.Implicit(phi, 0.2, 0.8)
    gaps = []
    for n in sizes:
        x, _, stats = drawn(three_classes(round(0.8 * n), kind), n, seed=106)
        gaps.append(_gaps(net, x, stats))
    for kernel in KERNELS:
        rate = slope(sizes, [gap[kernel] for gap in gaps])
        assert rate <= -0.45, (kernel, rate, gaps)


# Statistics from data instead of from the mixture


def _squared_distance_to_known_statistics(n: int, seed: int) -> float:
    x, y, stats = two_classes(n, seed)
    net = nsd.Implicit("relu", 0.2, 0.8)
    estimated = nsd.equivalent_kernel(net, x, nsd.MixtureStatistics.from_labels(x, y))
    return nsd.relative_gap(nsd.equivalent_kernel(net, x, stats), estimated) ** 2


def test_statistics_from_labels_approach_those_of_the_mixture():
    sizes = [100, 300, 900]
    gaps = [(sum(_squared_distance_to_known_statistics(n, seed) for seed in range(4)) / 4) ** 0.5 for n in sizes]
    assert slope(sizes, gaps) <= -0.35, gaps
    assert gaps[-1] <= 0.005


@pytest.mark.parametrize("take", ["from_labels", "from_data"])
@pytest.mark.parametrize("phi", ["tanh", "relu"])
def test_equivalent_with_estimated_statistics_converges(take, phi):
    net = nsd.Implicit(phi, 0.2, 0.8)
    sizes = SIZES[:3]
    gaps = []
    for n in sizes:
        x, y, _ = two_classes(n, seed=107)
        stats = nsd.MixtureStatistics.from_labels(x, y) if take == "from_labels" else nsd.MixtureStatistics.from_data(x)
        kernel = nsd.conjugate_kernel(net, x, tau0=stats.tau0)
        gaps.append(nsd.relative_gap(kernel, nsd.equivalent_kernel(net, x, stats)))
    assert slope(sizes, gaps) <= -0.4, gaps


# Form


@pytest.mark.parametrize("kernel", KERNELS)
def test_equivalent_is_the_formula_of_the_theorem(kernel):
    """c1 S + V [[c2 ttᵀ + c3 T, c2 t], [c2 tᵀ, c2]] Vᵀ + (d − τ0² c1) I, written out densely."""
    x, _, stats = two_classes(60, seed=108)
    n, p = x.shape
    net = nsd.Implicit("relu", 0.2, 0.7)
    row = getattr(nsd.scalars(net, stats.tau0), kernel)
    V = torch.cat([stats.J / p**0.5, stats.psi[:, None]], dim=1)
    middle = torch.zeros(3, 3, dtype=torch.float64)
    middle[:2, :2] = row.c2 * torch.outer(stats.t, stats.t) + row.c3 * stats.T
    middle[:2, 2] = middle[2, :2] = row.c2 * stats.t
    middle[2, 2] = row.c2
    dense = row.c1 * (x @ x.T) + V @ middle @ V.T + (row.d - stats.tau0**2 * row.c1) * torch.eye(n, dtype=torch.float64)
    operator = nsd.equivalent_kernel(net, x, stats, kernel)
    assert isinstance(operator, nsd.kernels.LowRankPlusDiagonal)
    assert operator.rank == p + 3
    assert torch.allclose(operator.to_dense(), dense, rtol=1e-12, atol=1e-14)


def test_float32_data_give_a_float32_operator():
    x, _, stats = two_classes(60, seed=108)
    net = nsd.Implicit("relu", 0.2)
    operator = nsd.equivalent_kernel(net, x.float(), stats)
    assert operator.factor.dtype == torch.float32
    assert nsd.relative_gap(nsd.equivalent_kernel(net, x, stats), operator) <= 1e-5


def test_a_kernel_read_out_at_a_preactivation_is_for_deqs_only():
    x, _, stats = two_classes(60, seed=108)
    with pytest.raises(nsd.BadInput, match="Only a DEQ"):
        nsd.equivalent_kernel(nsd.Explicit("tanh"), x, stats, "preactivation")


# Errata of the sources


def _with_row(net, x, stats, **change: float) -> nsd.kernels.LowRankPlusDiagonal:
    """The equivalent with some of c1, c2, c3, d replaced."""
    row = replace(nsd.scalars(net, stats.tau0).conjugate, **change)
    n, p = x.shape
    V = torch.cat([x, stats.J / p**0.5, stats.psi[:, None]], dim=1)
    t = torch.cat([stats.t, torch.ones(1, dtype=torch.float64)])
    corner = row.c2 * torch.outer(t, t)
    corner[:-1, :-1] += row.c3 * stats.T
    core = torch.block_diag(row.c1 * torch.eye(p, dtype=torch.float64), corner)
    return nsd.kernels.LowRankPlusDiagonal(V, core, torch.full((n,), row.d - stats.tau0**2 * row.c1, dtype=torch.float64))


def test_alpha4_enters_squared():
    """The slides print α2 ∝ α4. THEORY: .79 against .037 at n = 1600 where σ_b² = 0.3 and the spread is 25."""
    x, _, stats = two_classes(400, seed=109, spread=25.0)
    net = nsd.Implicit("relu", 0.2, 0.3)
    kernel = nsd.conjugate_kernel(net, x, tau0=stats.tau0)
    found = nsd.scalars(net, stats.tau0)
    right = nsd.relative_gap(kernel, _with_row(net, x, stats))
    printed = nsd.relative_gap(kernel, _with_row(net, x, stats, c2=found.alpha2 / found.alpha4))
    assert right <= 0.1
    assert printed >= 0.5


def test_no_fourth_power_of_tau0_on_the_diagonal():
    """The preprint subtracts τ0⁴ α3 from the identity's factor; where it matters (n small), the gap grows by it."""
    x, _, stats = two_classes(100, seed=110)
    net = nsd.Implicit("relu", 0.2, 0.8)
    kernel = nsd.conjugate_kernel(net, x, tau0=stats.tau0)
    found = nsd.scalars(net, stats.tau0)
    printed = _with_row(net, x, stats, d=found.gamma**2 - stats.tau0**4 * found.alpha3)
    exact_mean = float(kernel.diagonal().mean())
    right = abs(float(_with_row(net, x, stats).diagonal().mean()) - exact_mean)
    assert abs(float(printed.diagonal().mean()) - exact_mean) >= 1.5 * right


# Refused, or warned about


def test_preactivation_of_an_explicit_network_is_refused():
    x, _, stats = two_classes(60, seed=108)
    with pytest.raises(nsd.BadInput, match="pre-activation"):
        nsd.equivalent_kernel(nsd.Explicit("tanh"), x, stats, "preactivation")
    with pytest.raises(nsd.BadInput, match="preactivation"):
        nsd.sharp_kernel(nsd.Explicit("tanh"), x, "preactivation")


def test_an_unknown_kernel_is_refused():
    x, _, stats = two_classes(60, seed=108)
    with pytest.raises(nsd.BadInput, match="neural"):
        nsd.equivalent_kernel(nsd.Implicit("tanh", 0.2), x, stats, "neural")


def test_statistics_of_other_samples_are_refused():
    x, _, stats = two_classes(60, seed=108)
    with pytest.raises(nsd.BadInput, match=r"50 samples .* 60"):
        nsd.equivalent_kernel(nsd.Implicit("tanh", 0.2), x[:50], stats)


@pytest.mark.parametrize("net", [nsd.Implicit("relu", 0.2, centre=False), nsd.Explicit(["tanh", "relu"])], ids=str)
def test_a_network_that_is_not_centred_is_warned_about(net):
    x, _, stats = two_classes(60, seed=108)
    with pytest.warns(nsd.NumericsWarning, match="not centred"):
        nsd.equivalent_kernel(net, x, stats)


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
def test_an_equivalent_without_a_tangent_kernel_is_refused():
    x, _, stats = two_classes(60, seed=108)
    with pytest.raises(nsd.NotSoDeepError):
        nsd.equivalent_kernel(nsd.Implicit("sign", 0.2), x, stats, "tangent")
