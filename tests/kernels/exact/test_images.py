"""Exact kernels of convolutional networks: against an independent reference, against vectors, and fused against plain."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.kernels.exact.solver import prepare
from tests.kernels import image_reference as reference
from tests.kernels.reference import PHI, worst_gap

AGREE = 1e-9


def _images(n: int, *shape: int, seed: int = 5) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((n, *shape))
    x[1] += 0.8 * x[0]
    return x / np.sqrt(shape[0])


CASES = {
    "image, zero padding, flat": (_images(2, 2, 5, 5), 3, "zero", "flat"),
    "image, circular, flat": (_images(2, 1, 5, 5), 3, "circular", "flat"),
    "signal, patch of 5": (_images(3, 2, 7), 5, "zero", "flat"),
    "image, pooled": (_images(2, 2, 3, 2), 3, "zero", "pooled"),
    "signal, circular, pooled": (_images(2, 1, 5), 3, "circular", "pooled"),
}


def _case(name):
    x, patch, padding, readout = CASES[name]
    net = {"patch": patch, "padding": padding, "readout": readout}
    return x, net, reference.Images(x, patch, padding == "circular", readout == "pooled")


@pytest.mark.parametrize(
    ("name", "case"),
    [*(("relu", case) for case in CASES), ("tanh", "image, zero padding, flat"), ("tanh", "signal, circular, pooled")],
)
def test_deq_against_quadrature(case, name):
    x, options, images = _case(case)
    expected = reference.implicit_kernels(PHI[name], 0.2, 0.7, images)
    net = nsd.Convolutional(nsd.Implicit(name, 0.2, 0.7), **options)
    assert net.tau0(x) == pytest.approx(images.tau0(), rel=1e-13)
    ours = nsd.exact_kernels(net, x)
    assert worst_gap(ours.conjugate, expected.conjugate) <= AGREE
    assert worst_gap(ours.tangent, expected.tangent) <= AGREE


@pytest.mark.parametrize("case", CASES)
def test_layers_against_quadrature(case):
    x, options, images = _case(case)
    expected = reference.explicit_kernels([PHI["relu"], PHI["gelu"]], images)
    ours = nsd.exact_kernels(nsd.Convolutional(nsd.Explicit(["relu", "gelu"]), **options), x)
    assert worst_gap(ours.conjugate, expected.conjugate) <= AGREE
    assert worst_gap(ours.tangent, expected.tangent) <= AGREE


NETS = {
    "relu": nsd.Implicit("relu", 0.2),
    "tanh": nsd.Implicit("tanh", 0.4, 0.3),
    "elu, not centred": nsd.Implicit("elu", 0.2, centre=False),
    "layers with gains": nsd.Explicit(["relu", "elu"], [0.5, 1.0, 2.0]),
}


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("readout", ["flat", "pooled"])
@pytest.mark.parametrize("name", NETS)
def test_a_patch_of_one_position_on_one_position_is_a_vector(name, readout):
    x = torch.from_numpy(_images(6, 4, 1, 1))
    net = NETS[name]
    images, vectors = nsd.exact_kernels(nsd.Convolutional(net, 1, readout=readout), x), nsd.exact_kernels(net, x.flatten(1))
    assert torch.equal(images.conjugate, vectors.conjugate)
    assert torch.equal(images.tangent, vectors.tangent)


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("name", NETS)
def test_positions_without_neighbours_are_vectors(name):
    """With a patch of one position a flat kernel is the mean of the positions' kernels."""
    x = torch.from_numpy(_images(5, 3, 2, 3))
    net, tau0 = NETS[name], nsd.Convolutional(NETS[name], 1).tau0(x)
    ours = nsd.exact_kernels(nsd.Convolutional(net, 1), x)
    each = [nsd.exact_kernels(net, position, tau0=tau0) for position in x.flatten(2).unbind(2)]
    for kernel in ("conjugate", "tangent"):
        mean = torch.stack([getattr(one, kernel) for one in each]).mean(0)
        torch.testing.assert_close(getattr(ours, kernel), mean, rtol=1e-11, atol=1e-12)


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("readout", ["flat", "pooled"])
@pytest.mark.parametrize("name", NETS)
def test_cross_kernels_are_parts_of_square_ones(name, readout):
    x = torch.from_numpy(_images(5, 2, 3, 3))
    net = nsd.Convolutional(NETS[name], readout=readout)
    tau0 = net.tau0(x)
    square, cross = nsd.exact_kernels(net, x), nsd.exact_kernels(net, x[:2], x, tau0=tau0)
    assert torch.equal(square.conjugate, square.conjugate.T)
    torch.testing.assert_close(cross.conjugate, square.conjugate[:2], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(cross.tangent, square.tangent[:2], rtol=1e-10, atol=1e-13)
    assert float(torch.linalg.eigvalsh(square.tangent)[0]) > 0.0


@pytest.mark.parametrize("readout", ["flat", "pooled"])
def test_equal_images_have_the_kernel_of_the_diagonal(readout):
    x = torch.from_numpy(_images(4, 1, 4, 4))[[0, 1, 0, 2]]
    found = nsd.exact_kernels(nsd.Convolutional(nsd.Implicit("relu", 0.4, 0.5, centre=False), readout=readout), x)
    for kernel in (found.conjugate, found.tangent):
        torch.testing.assert_close(kernel[0, 2], kernel[0, 0], rtol=1e-12, atol=0.0)


FUSED = {
    "relu": nsd.Implicit("relu", 0.2),
    "relu, slow": nsd.Implicit("relu", 1.4, 0.2, centre=False),
    "tanh": nsd.Implicit("tanh", 0.2),
    "gelu": nsd.Implicit("gelu", 0.2),
    "three layers": nsd.Explicit(["relu", "gelu", "tanh"], [1.0, 0.5, 2.0, 0.0]),
}


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("padding", ["zero", "circular"])
@pytest.mark.parametrize("name", FUSED)
def test_compiled_loops_change_nothing(name, padding):
    pytest.importorskip("numba")
    x = torch.from_numpy(_images(91, 2, 6, 9, seed=8))
    x[:, :, :2] = 0.1  # a part where all images agree
    x[7] = x[3]
    net = nsd.Convolutional(FUSED[name], (3, 5), padding)
    for dtype, allowed in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        plain = nsd.exact_kernels(net, x[:20], x[:40])
        prepared = prepare(net, x.to(dtype), tau0=net.tau0(x[:20]))
        assert prepared.engine is not None
        fused = prepared.tile(slice(0, 20), slice(0, 40), ("conjugate", "tangent"))
        exact = plain.conjugate, plain.tangent
        for ours, theirs in zip(fused, exact, strict=True):
            assert float((ours - theirs).abs().max()) <= allowed * float(theirs.max())
        opened = prepared.engine.tile(slice(0, 20), slice(21, 40), ("conjugate",))[1]
        assert not bool(opened.any())


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize("apart", [1e-1, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("net", [*(FUSED[name] for name in ("relu", "relu, slow", "three layers")), nsd.Explicit(["relu"] * 3)])
def test_gradients_of_nearly_equal_images_keep_their_digits_in_float32(net, apart):
    """Next to ρ = 1 a rectifier's slope makes round-off 1e-7 in ρ a change of 3e-4."""
    pytest.importorskip("numba")
    x = _images(84, 2, 6, 7, seed=4)
    x[:20] = x[:1] + apart * x[:20]
    x = torch.from_numpy(x).float()
    prepared = prepare(nsd.Convolutional(net), x)
    assert prepared.engine is not None
    fused = prepared.tile(slice(0, 8), slice(0, 24), ("conjugate", "tangent"))
    plain = replace(prepare(nsd.Convolutional(net), x.double()), fused=False)
    for ours, theirs in zip(fused, plain.tile(slice(0, 8), slice(0, 24), ("conjugate", "tangent")), strict=True):
        assert float((ours - theirs).abs().max()) <= 2e-6 * float(theirs.max())


@pytest.mark.filterwarnings("ignore::notsodeep.NumericsWarning")
@pytest.mark.parametrize(
    "net", [nsd.Implicit("tanh", 0.99, 1e-6, centre=False), nsd.Implicit("abs", 0.98, 0.01, centre=False)], ids=["tanh", "abs"]
)
def test_gradients_that_hardly_contract_are_right(net):
    pytest.importorskip("numba")
    x = _images(84, 2, 6, 7, seed=4)
    x = torch.from_numpy(0.1 * (x[:1] + 0.1 * x))
    images = nsd.Convolutional(net, padding="circular")
    both = slice(0, 2), slice(2, 6)
    exact = replace(prepare(images, x), fused=False).tile(*both, ("tangent",))[0]
    for dtype, allowed in ((torch.float64, 1e-8), (torch.float32, 1e-5)):  # float32 rounds the images too
        prepared = prepare(images, x.to(dtype))
        assert prepared.engine is not None
        gap = (prepared.tile(*both, ("tangent",))[0] - exact).abs().max()
        assert float(gap) <= allowed * float(exact.max())


def test_equal_patches_have_the_slope_of_equal_ones():
    pytest.importorskip("numba")
    x = torch.from_numpy(_images(400, 1, 2, 4))
    x[..., :2] = 0.3
    net = nsd.Implicit("leaky_relu", 0.8, 0.3, centre=False)
    prepared = prepare(nsd.Convolutional(net, 1), x)
    assert prepared.engine is not None
    each = [nsd.tangent_kernel(net, position[:60]) for position in x.flatten(2).unbind(2)]
    equal = [bool((position == 0.3).all()) for position in x.flatten(2).unbind(2)]
    exact = torch.stack([one[0, 0].expand(60, 60) if same else one for one, same in zip(each, equal, strict=True)]).mean(0)
    both = slice(0, 20), slice(20, 60)
    for found in (prepared, replace(prepared, fused=False)):
        gap = (found.tile(*both, ("tangent",))[0] - exact[both]).abs().max()
        assert float(gap) <= 1e-10 * float(exact.max())


def test_tiles_and_operators_take_images():
    x = torch.from_numpy(_images(7, 2, 4, 4))
    net = nsd.Convolutional(nsd.Implicit("relu", 0.2))
    whole = nsd.exact_kernels(net, x)
    found = torch.zeros_like(whole.tangent)
    for tile in nsd.kernels.kernel_tiles(net, x, tile=3, kernel="tangent"):
        found[tile.rows, tile.columns] = tile.tangent
    torch.testing.assert_close(found, whole.tangent, rtol=1e-12, atol=1e-14)
    operator = nsd.kernels.TiledKernel(net, x, "conjugate", tile=3)
    torch.testing.assert_close(operator.to_dense(), whole.conjugate, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(operator.diagonal(), whole.conjugate.diagonal(), rtol=1e-12, atol=1e-14)


def test_systems_of_images_are_solved():
    x, v = torch.from_numpy(_images(12, 1, 4, 4)), torch.ones(12, 1, dtype=torch.float64)
    operator = nsd.kernels.TiledKernel(nsd.Convolutional(nsd.Implicit("relu", 0.2)), x, "tangent", tile=5).add_ridge(0.1)
    torch.testing.assert_close(operator.to_dense() @ operator.solve(v), v, rtol=1e-6, atol=1e-6)
    with pytest.raises(nsd.BadInput, match="Images have no sharp kernel"):
        operator.solve(v, nsd.kernels.Sharp())


def test_blank_images_and_blank_parts():
    x = torch.zeros(3, 1, 6, 6, dtype=torch.float64)
    x[1:, :, 4:] = torch.randn(2, 1, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for net in (nsd.Implicit("tanh", 0.2), nsd.Implicit("relu", 0.2)):
        found = nsd.exact_kernels(nsd.Convolutional(net), x)
        assert bool(torch.isfinite(found.conjugate).all() & torch.isfinite(found.tangent).all())
        assert float(torch.linalg.eigvalsh(found.tangent)[0]) > -1e-12


@pytest.mark.parametrize(
    ("net", "x", "words"),
    [
        (dict(patch=2), _images(2, 1, 4, 4), "must be odd"),
        (dict(patch=(3, 3, 3)), _images(2, 1, 4, 4), "must be odd"),
        (dict(patch=True), _images(2, 1, 4, 4), "whole number"),
        (dict(patch=(3,)), _images(2, 1, 4, 4), "axes"),
        (dict(patch=5, padding="circular"), _images(2, 1, 4, 4), "more than once around"),
        (dict(padding="reflect"), _images(2, 1, 4, 4), "padding"),
        (dict(readout="max"), _images(2, 1, 4, 4), "readout"),
        ({}, _images(2, 1, 4, 4).reshape(2, 16), "images"),
        ({}, np.full((2, 1, 4, 4), np.nan), "NaN"),
        ({}, np.zeros((2, 1, 4, 4)), "zero"),
    ],
)
def test_bad_input_is_one_clear_error(net, x, words):
    with pytest.raises(nsd.BadInput, match=words):
        nsd.conjugate_kernel(nsd.Convolutional(nsd.Implicit("relu", 0.2), **net), x)


def test_what_has_no_kernel_is_refused_with_a_remedy_that_works():
    x = _images(3, 1, 5, 5)
    with pytest.raises(nsd.NotContractive, match="no equilibrium") as refused:
        nsd.conjugate_kernel(nsd.Convolutional(nsd.Implicit("relu", 4.0, 0.5)), x)
    works = refused.value.data["largest_var_a"]
    nsd.conjugate_kernel(nsd.Convolutional(nsd.Implicit("relu", works, 0.5)), x)
    with pytest.raises(nsd.BadInput, match="jumps"):
        nsd.tangent_kernel(nsd.Convolutional(nsd.Implicit("sign", 0.2)), x)
    assert np.isfinite(nsd.conjugate_kernel(nsd.Convolutional(nsd.Implicit("sign", 0.2)), x)).all()


def test_a_pair_that_does_not_fit_is_refused_beforehand(monkeypatch):
    monkeypatch.setattr("notsodeep.kernels.exact.images.prepared.available_bytes", lambda _: 1 << 20)
    with pytest.raises(nsd.BadInput, match='readout="flat"'):
        nsd.conjugate_kernel(nsd.Convolutional(nsd.Implicit("relu", 0.2), readout="pooled"), _images(2, 1, 16, 16))


def test_fused_is_for_speed_alone():
    x = torch.from_numpy(_images(6, 1, 4, 4))
    prepared = prepare(nsd.Convolutional(nsd.Implicit("relu", 0.2)), x)
    assert prepared.engine is None  # so few are not worth compiling for
    assert replace(prepared, fused=False).engine is None
