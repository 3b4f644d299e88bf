"""Gains: what they change (the tangent kernel, training) and what they leave (the function, the conjugate kernel)."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import BadInput
from notsodeep.models.universal import to_deq

LAYERS, GAINS = ["tanh", "relu"], (0.5, 2.0, 1.5)
PLAIN, GAINED = nsd.Explicit(LAYERS), nsd.Explicit(LAYERS, gains=GAINS)


def samples(n=40, p=7, seed=0):
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(x):
    """Θ = g_3² Σ² + g_2² Σ¹∘Q_2 + g_1² S∘Q_1∘Q_2, from kernels of networks with one gain each."""
    alone = [nsd.tangent_kernel(nsd.Explicit(LAYERS, gains=[float(k == j) for k in range(3)]), x) for j in range(3)]
    return sum(gain**2 * part for gain, part in zip(GAINS, alone, strict=True))


def test_the_tangent_kernel_is_linear_in_the_squared_gains_and_the_conjugate_one_has_none():
    x = samples()
    torch.testing.assert_close(nsd.tangent_kernel(GAINED, x), by_definition(x), rtol=1e-12, atol=1e-13)
    assert torch.equal(nsd.conjugate_kernel(GAINED, x), nsd.conjugate_kernel(PLAIN, x))
    assert torch.equal(nsd.tangent_kernel(nsd.Explicit(LAYERS, gains=(1, 1, 1)), x), nsd.tangent_kernel(PLAIN, x))


def test_a_readout_alone_has_the_conjugate_kernel_as_tangent_kernel():
    x = samples()
    alone = nsd.Explicit(LAYERS, gains=(0, 0, 1))
    torch.testing.assert_close(nsd.tangent_kernel(alone, x), nsd.conjugate_kernel(PLAIN, x), rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_and_plain_paths_agree(dtype):
    x = samples(800, 20).to(dtype)
    fused = nsd.exact_kernels(GAINED, x)
    plain = nsd.exact_kernels(GAINED, x[:60].double())
    rtol = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(fused.tangent[:60, :60].double(), plain.tangent, rtol=rtol, atol=rtol)
    torch.testing.assert_close(fused.conjugate[:60, :60].double(), plain.conjugate, rtol=rtol, atol=rtol)


def test_structured_kernels_know_gains():
    generator = torch.Generator().manual_seed(0)
    x, _ = nsd.GaussianMixture.two_classes(p=300).sample(300, generator)
    centred = GAINED.centred(nsd.tau0(x))
    exact = nsd.tangent_kernel(centred, x)
    assert nsd.relative_gap(exact, nsd.sharp_kernel(centred, x, kernel="tangent")) < 0.02
    scalars = nsd.scalars(centred, nsd.tau0(x))
    assert scalars.kappa**2 == pytest.approx(float(exact.diagonal().mean()), rel=0.01)


def test_a_wide_network_has_the_kernels_of_its_gains():
    x = samples(6, 5)
    network = nsd.ENN(GAINED, 5, 4000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = nsd.empirical_kernels(network, x)
    assert nsd.relative_gap(nsd.tangent_kernel(GAINED, x), found.tangent) < 0.08
    assert nsd.relative_gap(nsd.tangent_kernel(PLAIN, x), found.tangent) > 0.3


def pair(gains, **options):
    make = (
        nsd.ENN(net, 5, 16, 3, readout_bias=True, dtype=torch.float64, generator=torch.Generator().manual_seed(3), **options)
        for net in (PLAIN, nsd.Explicit(LAYERS, gains=gains))
    )
    return tuple(make)


@pytest.mark.parametrize("gains", [GAINS, (0.0, 1.0, 2.0), (1.0, 1.0, 0.0)])
def test_the_function_at_the_start_is_the_same(gains):
    x = samples(9, 5)
    plain, gained = pair(gains)
    torch.testing.assert_close(gained(x), plain(x), rtol=1e-12, atol=1e-13)


def test_gradients_carry_the_gains_and_zero_freezes():
    x = samples(9, 5)
    plain, gained = pair((0.5, 0.0, 3.0))
    for module in (plain, gained):
        module(x).square().sum().backward()
    torch.testing.assert_close(gained.weights[0].grad, 0.5 * plain.weights[0].grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gained.readout.weight.grad, 3.0 * plain.readout.weight.grad, rtol=1e-12, atol=1e-12)
    assert not gained.weights[1].requires_grad


def test_files_source_universal_form_and_readouts_know_them(tmp_path):
    x = samples(30, 5)
    _, gained = pair(GAINS)
    nsd.save(gained, tmp_path / "gained.safetensors")
    loaded = nsd.load(tmp_path / "gained.safetensors")
    assert loaded.net.gains == GAINS
    assert torch.equal(loaded(x), gained(x))
    space = {"__name__": "imported"}
    exec(gained.to_source(), space)
    torch.testing.assert_close(space["load"]()(x), gained(x), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(to_deq(gained)(x), gained(x), rtol=1e-9, atol=1e-9)
    nsd.fit_readout(gained, [(x, x[:, :3])], ridges=[1e-8])
    plain, _ = pair(GAINS)
    nsd.fit_readout(plain, [(x, x[:, :3])], ridges=[1e-8])
    torch.testing.assert_close(gained(x), plain(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gains", [(1.0,), (1.0, -1.0, 1.0), (0, 0, 0), "111", (1.0, float("nan"), 1.0), 1.0])
def test_gains_that_do_not_fit(gains):
    with pytest.raises(BadInput, match="gains"):
        nsd.Explicit(LAYERS, gains=gains)


def test_the_text_shows_gains_only_where_there_are_any():
    assert str(PLAIN) == "Explicit(tanh → relu)"
    assert str(GAINED) == "Explicit(tanh → relu; gains 0.5, 2, 1.5)"
