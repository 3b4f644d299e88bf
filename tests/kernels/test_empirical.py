"""Kernels of finite networks, against the infinite ones and against Jacobians spelt out."""

import math

import pytest
import torch

import notsodeep as nsd

NET = {"tanh": nsd.Implicit("tanh", 0.2), "relu": nsd.Implicit("relu", 0.2)}


def data(n=8, p=16):
    x = torch.randn(n, p, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x / math.sqrt(p)


def deq(name, width, out_features=1, seed=0, **options):
    return nsd.DEQ(
        NET[name], 16, width, out_features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed), **options
    )


def dense_tangent(module, x):
    parameters = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for sample in x:
        out = module(sample[None])[0]
        rows.append([torch.cat([g.flatten() for g in torch.autograd.grad(o, parameters, retain_graph=True)]) for o in out])
    jacobian = torch.stack([torch.stack(row) for row in rows])  # (n, K, P)
    return torch.einsum("ikp,jkp->ij", jacobian, jacobian) / jacobian.shape[1]


@pytest.mark.parametrize("outputs", [1, 3])
def test_they_are_the_kernels_of_the_networks_jacobian(outputs):
    x = data()
    for module in (
        deq("relu", 24, outputs),
        deq("tanh", 24, outputs, bias=True, readout_bias=True, frozen=("B",)),
        nsd.ENN(nsd.Explicit(["relu", "tanh"]), 16, 20, outputs, dtype=torch.float64),
    ):
        found = nsd.empirical_kernels(module, x)
        torch.testing.assert_close(found.tangent, dense_tangent(module, x).detach(), rtol=1e-7, atol=1e-9)
        z = module.features(x).detach()
        torch.testing.assert_close(found.conjugate, z @ z.T)


def test_blocks_say_the_same_as_one_piece():
    module, x = deq("relu", 24), data()
    whole = nsd.empirical_kernels(module, x).tangent
    gradients = 24 * 24 + 24 * 16 + 24
    for rows in (1, 3):
        torch.testing.assert_close(
            nsd.empirical_kernels(module, x, block_bytes=2 * rows * gradients * 8).tangent, whole, rtol=1e-7, atol=1e-9
        )


@pytest.mark.parametrize("name", NET)
def test_they_approach_the_infinite_kernels_as_the_root_of_the_width(name):
    x = data()
    exact = nsd.conjugate_kernel(NET[name], x, tau0=1.0), nsd.tangent_kernel(NET[name], x, tau0=1.0)
    widths, gaps = (32, 512), []
    for width in widths:
        seeds = []
        for seed in range(6):
            found = nsd.empirical_kernels(deq(name, width, 1, seed), x)
            seeds.append([nsd.relative_gap(e, f) for e, f in zip(exact, (found.conjugate, found.tangent), strict=True)])
        gaps.append(torch.tensor(seeds).mean(0))
    slopes = (gaps[1] / gaps[0]).log() / math.log(widths[1] / widths[0])
    assert bool((slopes < -0.35).all())
    assert bool((gaps[1] < 0.2).all())


def test_without_a_readout_it_is_the_mean_over_readouts():
    x, module = data(4), deq("tanh", 12, None)
    found = nsd.empirical_kernels(module, x)
    parameters = list(module.parameters())
    total = torch.zeros(4, 4, dtype=torch.float64)
    jacobian = torch.stack(
        [
            torch.stack(
                [
                    torch.cat([g.flatten() for g in torch.autograd.grad(o, parameters, retain_graph=True)])
                    for o in module(s[None])[0]
                ]
            )
            for s in x
        ]
    )
    total = torch.einsum("ikp,jkp->ij", jacobian, jacobian)
    torch.testing.assert_close(found.tangent, total + found.conjugate, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("adjoint", [nsd.fixed_points.OneStepAdjoint(), nsd.fixed_points.UnrolledAdjoint()])
def test_gradients_are_exact_whatever_the_adjoint(adjoint):
    module = deq("relu", 12, adjoint=adjoint)
    exact = nsd.empirical_kernels(deq("relu", 12), data(3)).tangent
    torch.testing.assert_close(nsd.empirical_kernels(module, data(3)).tangent, exact)
    assert module.adjoint is adjoint


@pytest.mark.parametrize("well_posed", ["spectral", "monotone"])
def test_parametrized_networks(well_posed):
    module = deq("tanh", 8, well_posed=well_posed)
    wanted = dense_tangent(module, data(3)).detach()
    torch.testing.assert_close(nsd.empirical_kernels(module, data(3)).tangent, wanted, rtol=1e-6, atol=1e-8)


def test_numpy_in_numpy_out_and_refusals():
    module = deq("relu", 10)
    found = nsd.empirical_kernels(module, data().numpy())
    assert type(found.tangent).__name__ == "ndarray"
    with pytest.raises(nsd.BadInput, match="frozen"):
        nsd.empirical_kernels(module.requires_grad_(False), data())
    with pytest.raises(nsd.BadInput, match="Linear"):
        nsd.empirical_kernels(torch.nn.Linear(3, 4), data())
