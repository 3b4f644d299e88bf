"""The same numbers on a CUDA device as on the CPU."""

import pytest
import torch

import notsodeep as nsd
from tests.kernels.mixtures import KERNELS, two_classes

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
AGREE = 1e-9
IMPLICIT = [nsd.Implicit(phi, 0.2) for phi in ("relu", "tanh", "elu")]
NETS = [*IMPLICIT, nsd.Explicit(["relu", "tanh"])]


def _assert_same(on_device: torch.Tensor, on_cpu: torch.Tensor) -> None:
    assert on_device.device.type == "cuda"
    assert on_device.dtype == on_cpu.dtype
    assert float((on_device.cpu() - on_cpu).abs().max()) <= AGREE * float(on_cpu.abs().max())


def _data() -> tuple[torch.Tensor, torch.Tensor, nsd.MixtureStatistics]:
    return two_classes(200, seed=301)


@pytest.mark.parametrize("net", NETS, ids=str)
def test_exact_kernels(net):
    x, _, _ = _data()
    both, there = nsd.exact_kernels(net, x), nsd.exact_kernels(net, x.cuda())
    _assert_same(there.conjugate, both.conjugate)
    _assert_same(there.tangent, both.tangent)
    _assert_same(nsd.conjugate_kernel(net, x[:50].cuda(), x[50:].cuda()), nsd.conjugate_kernel(net, x[:50], x[50:]))


@pytest.mark.parametrize("net", IMPLICIT, ids=str)
def test_preactivation_kernel(net):
    x, _, _ = _data()
    _assert_same(
        nsd.tangent_kernel(net, x.cuda(), readout="preactivation"), nsd.tangent_kernel(net, x, readout="preactivation")
    )


@pytest.mark.parametrize("net", IMPLICIT, ids=str)
def test_parallel_and_zero_samples(net):
    """The pairs that leave the series for the integral."""
    x, _, _ = _data()
    x = torch.cat([x[:5], x[:2], -x[:2], torch.zeros_like(x[:1])])
    both, there = nsd.exact_kernels(net, x), nsd.exact_kernels(net, x.cuda())
    _assert_same(there.conjugate, both.conjugate)
    _assert_same(there.tangent, both.tangent)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("net", IMPLICIT, ids=str)
def test_equivalents(net, kernel):
    x, y, stats = _data()
    mixture = nsd.GaussianMixture.two_classes(x.shape[1])
    for here, there in (
        (stats, nsd.MixtureStatistics.from_mixture(mixture, x.cuda(), y.cuda())),
        (nsd.MixtureStatistics.from_labels(x, y), nsd.MixtureStatistics.from_labels(x.cuda(), y.cuda())),
        (nsd.MixtureStatistics.from_data(x), nsd.MixtureStatistics.from_data(x.cuda())),
    ):
        on_cpu = nsd.equivalent_kernel(net, x, here, kernel)
        on_device = nsd.equivalent_kernel(net, x.cuda(), there, kernel)
        _assert_same(on_device.to_dense(), on_cpu.to_dense())
    v = torch.linspace(-1.0, 1.0, len(x), dtype=torch.float64)
    _assert_same(on_device.solve(v.cuda()), on_cpu.solve(v))
    assert on_device.spectral_norm() == pytest.approx(on_cpu.spectral_norm(), rel=AGREE)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("net", IMPLICIT, ids=str)
def test_sharp_kernels(net, kernel):
    x, _, _ = _data()
    _assert_same(nsd.sharp_kernel(net, x.cuda(), kernel).to_dense(), nsd.sharp_kernel(net, x, kernel).to_dense())
    _assert_same(nsd.kernels.sharp_entries(net, x.cuda(), kernel), nsd.kernels.sharp_entries(net, x, kernel))


@pytest.mark.parametrize("net", IMPLICIT, ids=str)
def test_design_and_its_measured_gap(net):
    x, _, _ = _data()
    here, there = nsd.design(net, x), nsd.design(net, x.cuda())
    assert str(there.explicit) == str(here.explicit)
    assert there.measured.gap == pytest.approx(here.measured.gap, rel=1e-6)
    assert there.measured.plain_gap == pytest.approx(here.measured.plain_gap, rel=1e-6)


def test_gap_of_kernels_on_two_devices():
    x, _, _ = _data()
    kernel = nsd.conjugate_kernel(IMPLICIT[0], x)
    assert nsd.relative_gap(kernel, kernel.cuda()) == 0.0
    assert nsd.relative_gap(kernel.cuda(), kernel) == 0.0


def test_mixed_devices_follow_x():
    x, _, _ = _data()
    kernel = nsd.conjugate_kernel(IMPLICIT[0], x[:20].cuda(), x[20:40])
    _assert_same(kernel, nsd.conjugate_kernel(IMPLICIT[0], x[:20], x[20:40]))
