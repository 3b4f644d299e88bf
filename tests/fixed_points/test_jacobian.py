"""The Jacobian of any f at any state, against autograd's."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import jacobian_penalty, spectral_radius

from .maps import contraction, tanh_map

N, D = 4, 6


def mixing():
    """A map whose rows depend on each other, its state and its Jacobian."""
    weight, x = contraction(N, D)
    other, _ = contraction(1, N, seed=1, radius=1.5)
    f = lambda z: torch.sin(other @ z @ weight + 0.3)  # noqa: E731
    return f, x, torch.autograd.functional.jacobian(f, x).reshape(N * D, N * D)


def radius(matrix):
    return torch.linalg.eigvals(matrix).abs().amax(-1)


@pytest.mark.parametrize("samples", [None, 1])
def test_the_spectral_radius_of_each_sample(samples):
    weight, x = contraction(N, D)
    j = torch.autograd.functional.jacobian(tanh_map(weight, x), x)
    wanted = torch.stack([radius(j[k, :, k]) for k in range(N)])
    torch.testing.assert_close(spectral_radius(tanh_map(weight, x), x, samples=samples), wanted, rtol=1e-6, atol=0.0)


def test_the_spectral_radius_of_coupled_rows():
    f, x, j = mixing()
    wanted = radius(j)[None]
    torch.testing.assert_close(spectral_radius(f, x, samples=0), wanted, rtol=0.01, atol=0.0)
    torch.testing.assert_close(nsd.fixed_points.spectral_radius(f, x, samples=0), wanted, rtol=0.01, atol=0.0)
    with pytest.warns(nsd.NumericsWarning, match="samples=0"):
        torch.testing.assert_close(spectral_radius(f, x), wanted, rtol=0.01, atol=0.0)


def test_the_spectral_radius_of_a_nested_and_of_a_complex_state():
    weight, x = contraction(N, D)

    def f(s):
        image = torch.tanh(torch.cat([s["a"], s["b"].flatten(1)], dim=1) @ weight.T + x)
        return {"a": image[:, :2], "b": image[:, 2:].reshape(N, 2, 2)}

    state = {"a": x[:, :2], "b": x[:, 2:].reshape(N, 2, 2)}
    torch.testing.assert_close(spectral_radius(f, state), spectral_radius(tanh_map(weight, x), x))
    turned = torch.complex(weight, weight.flip(0))
    found = spectral_radius(lambda z: z @ turned.T, torch.complex(x, x))
    torch.testing.assert_close(found, radius(turned).expand(N), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("f", [lambda _: torch.ones(N, D), lambda z: z.detach() + torch.ones(D, requires_grad=True)])
def test_a_map_that_does_not_depend_on_its_state(f):
    assert torch.equal(spectral_radius(f, torch.zeros(N, D)), torch.zeros(N))
    assert float(jacobian_penalty(f, torch.zeros(N, D))) == 0.0


def test_the_penalty_is_an_unbiased_estimate_of_the_frobenius_norm():
    f, x, j = mixing()
    wanted = float(j.square().sum()) / (N * D)
    found = [jacobian_penalty(f, x, probes=300, generator=torch.Generator().manual_seed(s)).item() for s in range(4)]
    assert sum(found) / 4 == pytest.approx(wanted, rel=0.05)
    assert len(set(found)) == 4


def test_the_penalty_of_a_complex_state_is_that_of_its_matrix():
    weight, x = contraction(N, D)
    turned = torch.complex(weight, weight.flip(0))
    draw = torch.Generator().manual_seed(0)
    found = jacobian_penalty(lambda z: z @ turned.T, torch.complex(x, x), probes=300, generator=draw)
    assert float(found) == pytest.approx(float(turned.abs().square().sum()) / D, rel=0.05)


def test_the_penalty_has_a_gradient_by_f_and_through_the_solution():
    weight, x = (t.requires_grad_() for t in contraction(2, 3))

    def penalty(weight, x):
        z = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), tol=1e-13).value
        return jacobian_penalty(tanh_map(weight, x), z, generator=torch.Generator().manual_seed(0))

    assert torch.autograd.gradcheck(penalty, (weight, x))


@pytest.mark.parametrize("probes", [0, 1.5, True])
def test_probes_are_counted(probes):
    with pytest.raises(nsd.BadInput, match="probes"):
        jacobian_penalty(torch.tanh, torch.zeros(2, 3), probes=probes)
