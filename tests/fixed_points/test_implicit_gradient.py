"""implicit_gradient: the gradient of a solution that was found elsewhere."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points import Activated, PeacemanRachford, implicit_gradient

from .maps import contraction, tanh_map

TIGHT = nsd.ImplicitAdjoint(tol=1e-13)


def solution(weight, x, steps=400):
    z = torch.zeros_like(x)
    with torch.no_grad():
        for _ in range(steps):
            z = tanh_map(weight, x)(z)
    return z


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_gradient_of_the_fixed_point(dtype):
    weight, x = contraction(3, 4)
    z = solution(weight, x)
    d = 1.0 - z**2
    g = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4)
    jacobians = d[:, :, None] * weight
    wanted = d * torch.linalg.solve(torch.eye(4) - jacobians.mT, g[:, :, None])[..., 0]
    weight, x = (t.to(dtype).requires_grad_() for t in (weight, x))
    value = implicit_gradient(tanh_map(weight, x), z.to(dtype))
    assert torch.equal(value, z.to(dtype))
    gradients = torch.autograd.grad((value * g.to(dtype)).sum(), (weight, x))
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-9}
    torch.testing.assert_close(gradients[1].double(), wanted, **close)
    torch.testing.assert_close(gradients[0].double(), wanted.T @ z, **close)


def test_second_derivatives():
    weight, x = (t.requires_grad_() for t in contraction(2, 2))

    def first(run):
        return torch.autograd.grad(run(), (weight, x), create_graph=True)

    z = solution(weight, x)
    pairs = [
        first(lambda: implicit_gradient(tanh_map(weight, x), z, TIGHT).pow(3).sum()),
        first(lambda: nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(z), adjoint=TIGHT, tol=1e-13).value.pow(3).sum()),
    ]
    second = [torch.autograd.grad(sum(g.square().sum() for g in grads), (weight, x)) for grads in pairs]
    for a, b in zip((*pairs[0], *second[0]), (*pairs[1], *second[1]), strict=True):
        torch.testing.assert_close(a, b)


def test_nested_states_one_step_and_a_splitting():
    weight, x = contraction(3, 4)
    z = solution(weight, x)
    x.requires_grad_()
    state = implicit_gradient(lambda s: {"z": tanh_map(weight, x)(s["z"])}, {"z": z})
    gradients = [torch.autograd.grad(state["z"].sum(), x)[0]]
    split = implicit_gradient(Activated(torch.tanh, weight, x), z, nsd.ImplicitAdjoint(PeacemanRachford()))
    gradients.append(torch.autograd.grad(split.sum(), x)[0])
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)
    one = implicit_gradient(tanh_map(weight, x), z, nsd.fixed_points.OneStepAdjoint())
    torch.testing.assert_close(torch.autograd.grad(one.sum(), x)[0], 1.0 - z**2)


def test_what_is_no_solution_is_refused():
    weight, x = contraction(3, 4)
    z = solution(weight, x)
    off = z + 1e-3
    f = tanh_map(weight.requires_grad_(), x)
    with pytest.raises(nsd.NotConverged, match=r"z_star does not solve.* tolerance 1.0e-10.*tol.*throw=False") as error:
        implicit_gradient(f, off)
    assert "max_steps" not in str(error.value)
    size = ((f(off) - off).norm(dim=1) / f(off).norm(dim=1)).detach()
    torch.testing.assert_close(error.value.residual, size)
    assert f"{float(size.max()):.2e}" in str(error.value)
    for options in ({"tol": 1e-2}, {"atol": 1e-2}, {"throw": False}):
        value = implicit_gradient(f, off, **options)
        assert torch.equal(value, off)
        assert value.requires_grad
