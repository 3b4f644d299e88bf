"""Exact kernels at the edges: special samples, shapes, kinds of array, tiles."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import notsodeep as nsd
from notsodeep.kernels.exact import tiles

VAR_A, VAR_B = 0.15, 0.85  # below 1/(4L²) for every activation here
NETS = {
    "relu": nsd.Implicit("relu", VAR_A, VAR_B),
    "relu plain": nsd.Implicit("relu", VAR_A, VAR_B, centre=False),
    "tanh": nsd.Implicit("tanh", VAR_A, VAR_B),
    "elu": nsd.Implicit("elu", VAR_A, VAR_B),
    "gelu": nsd.Implicit("gelu", VAR_A, VAR_B),
    "two layers": nsd.Explicit(["relu", "tanh"]),
}
every_net = pytest.mark.parametrize("net", NETS.values(), ids=NETS)
pytestmark = pytest.mark.filterwarnings("error::notsodeep.NumericsWarning")


def _x(n: int, p: int, seed: int = 0) -> Tensor:
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / math.sqrt(p)


def _all_kernels(net, x, x2=None, tau0=None) -> dict[str, Tensor]:
    kernels = {"conjugate": nsd.conjugate_kernel(net, x, x2, tau0=tau0), "tangent": nsd.tangent_kernel(net, x, x2, tau0=tau0)}
    if isinstance(net, nsd.Implicit):
        kernels["preactivation"] = nsd.tangent_kernel(net, x, x2, tau0=tau0, readout="preactivation")
    return kernels


def _assert_equal(ours: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-12) -> None:
    assert ours.keys() == expected.keys()
    for name, kernel in expected.items():
        assert ours[name].shape == kernel.shape
        gap = float((ours[name] - kernel).abs().max() / kernel.abs().max())
        assert gap <= rtol, f"{name}: {gap:.1e}"


# Special samples


@pytest.mark.parametrize(
    "phi", ["relu", "leaky_relu:0.1", "abs", "tanh", "erf", "gelu", "elu", "hard_tanh:0.75,1.2", "gaussian", "sin"]
)
@pytest.mark.parametrize("centre", [True, False], ids=["centred", "plain"])
def test_duplicates_have_the_kernel_of_the_sample_itself(phi, centre):
    x = _x(12, 4)
    kernels = _all_kernels(nsd.Implicit(phi, VAR_A, VAR_B, centre), torch.cat([x, x]))
    for name, kernel in kernels.items():
        own = kernel[:12, :12]
        gap = (kernel[:12, 12:] - own).abs() / torch.outer(own.diagonal(), own.diagonal()).sqrt()
        assert float(gap.max()) <= 1e-9, f"{name}: {float(gap.max()):.1e}"


@every_net
def test_a_sample_given_again_as_x2_is_the_same_sample(net):
    x = _x(9, 5)
    _assert_equal(_all_kernels(net, x, x.clone()), _all_kernels(net, x), rtol=1e-9)


@pytest.mark.parametrize(("phi", "parity"), [("tanh", -1), ("erf", -1), ("sin", -1), ("abs", 1), ("gaussian", 1)])
def test_opposite_samples_follow_the_parity_of_the_features(phi, parity):
    """z(−x) has the law of ±z(x): jointly, G(x, −x) = ±G(x, x) for an odd φ; only in law for an even one, where S = −|x|²."""
    x = _x(6, 4)
    kernel = nsd.conjugate_kernel(nsd.Implicit(phi, VAR_A, VAR_B), torch.cat([x, -x]))
    assert torch.allclose(kernel[6:, 6:], kernel[:6, :6], rtol=1e-12, atol=0)
    if parity == -1:
        assert torch.allclose(kernel[:6, 6:], -kernel[:6, :6], rtol=0, atol=1e-12)
    else:
        assert float((kernel[:6, 6:].diagonal() - kernel[:6, :6].diagonal()).abs().min()) > 1e-6


def test_opposite_samples_of_an_even_explicit_layer_have_the_same_features():
    x = _x(6, 4)
    kernel = nsd.conjugate_kernel(nsd.Explicit("abs"), torch.cat([x, -x]))
    assert torch.allclose(kernel[:6, 6:], kernel[:6, :6], rtol=1e-13, atol=0)


def test_zero_rows_of_an_odd_activation_give_zero():
    x = _x(5, 4)
    x[2] = 0.0
    for kernel in _all_kernels(NETS["tanh"], x).values():
        assert float(kernel[2].abs().max()) <= 1e-100
        assert float(kernel[0, 0]) > 1e-3


def test_zero_rows_of_a_centred_relu_are_one_constant_sample():
    """At x = 0 the network still has its offset −c: a positive variance, the same for every zero row."""
    x = _x(5, 4)
    x[1] = x[3] = 0.0
    for kernel in _all_kernels(NETS["relu"], x).values():
        assert float(kernel[1, 1]) > 1e-3
        assert torch.allclose(kernel[1], kernel[3], rtol=1e-9, atol=0)


@every_net
def test_all_rows_zero_with_tau0(net):
    kernels = _all_kernels(net, torch.zeros(3, 4, dtype=torch.float64), tau0=1.0)
    for name, kernel in kernels.items():
        assert bool(torch.isfinite(kernel).all()), name
        assert torch.allclose(kernel, kernel[0, 0].expand(3, 3), rtol=1e-9, atol=1e-100), name


def test_all_rows_zero_of_a_network_that_needs_no_tau0():
    """Only a centred DEQ scales by τ0; the kernels of the others are defined for any data."""
    zeros = torch.zeros(3, 4, dtype=torch.float64)
    assert float(nsd.conjugate_kernel(nsd.Explicit("relu"), zeros).abs().max()) <= 1e-100
    assert float(nsd.conjugate_kernel(NETS["relu plain"], zeros).abs().max()) <= 1e-100


def test_all_rows_zero_without_tau0_is_refused_where_it_matters():
    with pytest.raises(nsd.BadInput, match="zero"):
        nsd.conjugate_kernel(NETS["relu"], torch.zeros(3, 4, dtype=torch.float64))


@pytest.mark.parametrize("net", [NETS["relu"], NETS["relu plain"], nsd.Explicit(["relu", "relu"])], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_homogeneous_networks_scale_with_the_data(net, scale):
    x = _x(7, 5)
    plain = {name: scale**2 * kernel for name, kernel in _all_kernels(net, x).items()}
    _assert_equal(_all_kernels(net, scale * x), plain)


@every_net
def test_norms_over_six_decades_give_a_positive_semidefinite_kernel(net):
    x = _x(12, 6)
    x = x / x.norm(dim=1, keepdim=True) * torch.logspace(-3, 3, 12, dtype=torch.float64)[:, None]
    for name, kernel in _all_kernels(net, x).items():
        assert bool(torch.isfinite(kernel).all())
        root = kernel.diagonal().sqrt()
        assert float(torch.linalg.eigvalsh(kernel / torch.outer(root, root)).min()) >= -1e-12, name


# Shapes


@every_net
@pytest.mark.parametrize(("n", "p"), [(1, 1), (1, 7), (6, 1), (60, 2), (3, 500)])
def test_any_shape_agrees_with_its_single_pairs(net, n, p):
    """A pair's entry depends on that pair (and τ0) only."""
    x = _x(n, p)
    radius = nsd.tau0(x)
    whole = _all_kernels(net, x)
    i, j = 0, n - 1
    pair = _all_kernels(net, x[[i, j]] if n > 1 else x, tau0=radius)
    for name, kernel in whole.items():
        assert kernel.shape == (n, n)
        picked = kernel[[i, j]][:, [i, j]] if n > 1 else kernel
        assert torch.allclose(picked, pair[name], rtol=1e-12, atol=1e-13), name


@every_net
def test_cross_kernel_is_a_block_of_the_kernel_of_all_samples(net):
    x, x2 = _x(8, 5, seed=1), 1.5 * _x(6, 5, seed=2)
    whole = _all_kernels(net, torch.cat([x, x2]), tau0=nsd.tau0(x))
    _assert_equal(_all_kernels(net, x, x2), {name: kernel[:8, 8:] for name, kernel in whole.items()})


@every_net
def test_cross_kernel_transposes(net):
    x, x2 = _x(8, 5, seed=1), 1.5 * _x(6, 5, seed=2)
    swapped = {name: kernel.T for name, kernel in _all_kernels(net, x2, x, tau0=1.1).items()}
    _assert_equal(_all_kernels(net, x, x2, tau0=1.1), swapped)


@every_net
def test_square_kernel_is_symmetric_and_positive_semidefinite(net):
    for name, kernel in _all_kernels(net, _x(40, 12)).items():
        assert float((kernel - kernel.T).abs().max()) <= 1e-14 * float(kernel.abs().max()), name
        values = torch.linalg.eigvalsh(kernel)
        assert float(values[0]) >= -1e-13 * float(values[-1]), name


@every_net
def test_results_do_not_depend_on_the_tile(net, monkeypatch):
    x, x2 = _x(23, 6, seed=1), _x(16, 6, seed=2)
    square, cross = _all_kernels(net, x), _all_kernels(net, x, x2)
    monkeypatch.setattr(tiles, "_CPU_TILE", 7)
    assert len(tiles.blocks(23, tiles.tile_size(None, torch.device("cpu"))[0])) == 4
    _assert_equal(_all_kernels(net, x), square, rtol=1e-14)
    _assert_equal(_all_kernels(net, x, x2), cross, rtol=1e-14)


def test_sharp_entries_do_not_depend_on_the_tile(monkeypatch):
    x = _x(23, 6)
    whole = nsd.kernels.sharp_entries(NETS["relu"], x)
    monkeypatch.setattr(tiles, "_CPU_TILE", 7)
    assert torch.allclose(nsd.kernels.sharp_entries(NETS["relu"], x), whole, rtol=1e-13, atol=1e-15)


# Kinds of array


@every_net
def test_numpy_in_numpy_out(net):
    x, x2 = _x(6, 4), _x(3, 4, seed=5)
    for ours, tensor in (
        (nsd.conjugate_kernel(net, x.numpy()), nsd.conjugate_kernel(net, x)),
        (nsd.tangent_kernel(net, x.numpy(), x2.numpy()), nsd.tangent_kernel(net, x, x2)),
        (nsd.kernels.sharp_entries(net, x.numpy()), nsd.kernels.sharp_entries(net, x)),
    ):
        assert isinstance(ours, np.ndarray)
        assert isinstance(tensor, Tensor)
        assert ours.dtype == np.float64
        np.testing.assert_array_equal(ours, tensor.numpy())


@every_net
def test_float32_in_float32_out(net):
    x = _x(9, 4).float()
    for name, kernel in _all_kernels(net, x).items():
        exact = _all_kernels(net, x.double())[name]
        assert kernel.dtype == torch.float32
        assert torch.allclose(kernel.double(), exact, rtol=1e-6, atol=1e-8), name


def test_views_and_other_layouts_are_the_same_data():
    x = _x(8, 6)
    expected = nsd.conjugate_kernel(NETS["tanh"], x)
    strided = torch.stack([x, x], dim=2)[:, :, 0]
    assert not strided.is_contiguous()
    assert torch.allclose(nsd.conjugate_kernel(NETS["tanh"], strided), expected, rtol=1e-14, atol=0)
    fortran = np.asfortranarray(x.numpy())
    np.testing.assert_allclose(nsd.conjugate_kernel(NETS["tanh"], fortran), expected.numpy(), rtol=1e-14)


def test_inputs_are_left_alone_and_gradients_are_not_tracked():
    x = _x(5, 4).requires_grad_()
    before = x.detach().clone()
    kernel = nsd.tangent_kernel(NETS["relu"], x)
    assert not kernel.requires_grad
    assert torch.equal(x.detach(), before)


# Identities


@every_net
def test_exact_kernels_are_the_two_separate_calls(net):
    x, x2 = _x(10, 4), _x(7, 4, seed=9)
    for other in (None, x2):
        both = nsd.exact_kernels(net, x, other)
        assert torch.equal(both.conjugate, nsd.conjugate_kernel(net, x, other))
        assert torch.equal(both.tangent, nsd.tangent_kernel(net, x, other))


@pytest.mark.parametrize("name", ["relu", "relu plain", "tanh", "elu", "gelu"])
def test_preactivation_readout_is_an_affine_change_of_the_features_readout(name):
    """K = σ_a² Θ + σ_b² S."""
    x, net = _x(11, 4), NETS[name]
    expected = net.var_a * nsd.tangent_kernel(net, x) + net.var_b * (x @ x.T)
    assert torch.allclose(nsd.tangent_kernel(net, x, readout="preactivation"), expected, rtol=1e-12, atol=1e-13)


def test_tau0_defaults_to_the_root_mean_square_norm_of_x_alone():
    x, x2 = _x(8, 5), 3.0 * _x(4, 5, seed=3)
    radius = math.sqrt(float(x.square().sum(1).mean()))
    net = NETS["relu"]
    assert torch.equal(nsd.conjugate_kernel(net, x), nsd.conjugate_kernel(net, x, tau0=radius))
    assert torch.equal(nsd.conjugate_kernel(net, x, x2), nsd.conjugate_kernel(net, x, x2, tau0=radius))
    assert not torch.allclose(nsd.conjugate_kernel(net, x), nsd.conjugate_kernel(net, x, tau0=2 * radius), rtol=1e-3)


def test_tau0_does_not_matter_without_centring():
    x = _x(8, 5)
    for name in ("relu plain", "two layers"):
        assert torch.equal(nsd.conjugate_kernel(NETS[name], x), nsd.conjugate_kernel(NETS[name], x, tau0=7.0))


def test_centring_is_writing_the_offset_into_the_activation():
    x = _x(8, 5)
    radius = nsd.tau0(x)
    written = NETS["elu"].centred(radius)
    assert not written.centre
    assert torch.allclose(nsd.conjugate_kernel(NETS["elu"], x), nsd.conjugate_kernel(written, x), rtol=1e-13, atol=1e-15)


@every_net
@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(9)), seed=st.integers(0, 10_000))
def test_permuting_the_samples_permutes_the_kernel(net, order, seed):
    x = _x(9, 4, seed)
    permuted = {name: kernel[order][:, order] for name, kernel in _all_kernels(net, x).items()}
    _assert_equal(_all_kernels(net, x[list(order)]), permuted)


@every_net
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_rotating_the_features_changes_nothing(net, seed):
    x = _x(7, 5, seed)
    rotation = torch.linalg.qr(_x(5, 5, seed + 1)).Q
    _assert_equal(_all_kernels(net, x @ rotation), _all_kernels(net, x), rtol=1e-11)
