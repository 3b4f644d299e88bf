"""The same networks on a CUDA device, and what only such a device can do."""

import math

import pytest
import torch

import notsodeep as nsd
from notsodeep.fixed_points.plan import has_fast_bfloat16

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
P, M = 50, 1024


def data(n=512, dtype=torch.float32):
    return (torch.randn(n, P, generator=torch.Generator().manual_seed(0), dtype=dtype) / math.sqrt(P)).cuda()


def deq(name="relu", dtype=torch.float32, width=M, device="cuda", **options):
    draw = torch.Generator().manual_seed(1)
    return nsd.DEQ(nsd.Implicit(name, 0.2), P, width, 3, dtype=dtype, device=device, generator=draw, **options)


def true_residual(module, x):
    exact = nsd.DEQ(module.net, P, module.width, 3, dtype=torch.float64, device="cuda")
    exact.load_state_dict({key: value.double() for key, value in module.state_dict().items()})
    with torch.no_grad():
        s = module.solve(x).value.double() / module.form.output
        image = exact.step(s, *exact.terms(x.double()))
        return float(((image - s).norm(dim=1) / s.norm(dim=1)).max())


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_the_same_numbers_as_on_a_cpu(name):
    x = data(20, torch.float64)
    here, there = deq(name, torch.float64, 64), deq(name, torch.float64, 64, device="cpu")
    torch.testing.assert_close(here(x).cpu(), there(x.cpu()), rtol=1e-8, atol=1e-9)
    here(x).square().sum().backward()
    there(x.cpu()).square().sum().backward()
    torch.testing.assert_close(here.A.grad.cpu(), there.A.grad, rtol=1e-7, atol=1e-8)
    moved = deq(name, torch.float64, 64, device="cpu").to("cuda")
    torch.testing.assert_close(moved(x), here(x), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["tanh", "relu"])
@pytest.mark.parametrize("tol", [1e-3, 1e-4, 1e-5])
def test_mixed_precision_reaches_the_residual_of_full_precision(name, tol):
    assert has_fast_bfloat16(torch.device("cuda"))
    x, module = data(), deq(name, tol=tol, precision=nsd.fixed_points.MixedPrecision())
    found = module.solve(x)
    assert found.low_precision_steps > 2
    assert bool(found.converged.all())
    assert true_residual(module, x) <= 1.05 * tol


def test_mixed_precision_of_ones_own_map():
    torch.manual_seed(0)
    linear = torch.nn.Linear(M, M, device="cuda")
    x = torch.randn(256, M, device="cuda")
    f = lambda z: torch.tanh(0.5 * linear(z) + x)  # noqa: E731
    found = nsd.fixed_point(f, torch.zeros_like(x), precision=nsd.fixed_points.MixedPrecision(), tol=1e-5)
    assert found.low_precision_steps > 1
    z = found.value.detach()
    assert float(((f(z) - z).norm(dim=1) / z.norm(dim=1)).max()) <= 1.05e-5
    assert torch.backends.cuda.matmul.allow_tf32 is False
    found.value.sum().backward()
    exact = linear.weight.grad.clone()
    linear.zero_grad()
    nsd.fixed_point(f, torch.zeros_like(x), tol=1e-6).value.sum().backward()
    assert float((exact - linear.weight.grad).norm() / exact.norm()) < 1e-3


def test_gradients_in_mixed_precision():
    x = data()
    gradients = []
    for precision in (nsd.fixed_points.FullPrecision(), nsd.fixed_points.MixedPrecision()):
        module = deq("tanh", precision=precision)
        module(x).square().sum().backward()
        gradients.append(module.A.grad)
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 1e-4


def test_gradcheck():
    module, x = deq("tanh", torch.float64, 6, adjoint=nsd.ImplicitAdjoint(tol=1e-13), tol=1e-13), data(2, torch.float64)
    assert torch.autograd.gradcheck(module, (x.requires_grad_(),))
    assert torch.autograd.gradgradcheck(module, (x,))


def test_memory_of_a_backward_pass_does_not_grow_with_the_steps():
    x = data()

    def peak(tol):
        module = deq("relu", tol=tol, solver=nsd.Picard(), precision=nsd.fixed_points.FullPrecision(), max_steps=500)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        module(x).sum().backward()
        return torch.cuda.max_memory_allocated() - before, module.solve(x).evaluations

    peak(1e-2)
    (small, few), (large, many) = peak(1e-2), peak(3e-7)
    assert many >= few + 6
    assert large <= 1.1 * small


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    x, module = data(64), deq()
    wanted = module(x)
    with torch.autocast("cuda", dtype=dtype):
        out = module(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), wanted, rtol=0.02, atol=0.02)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(out.float().square().mean()).backward()
    assert bool(torch.isfinite(module.A.grad).all())


def test_compiled_around_and_exported():
    x = data(16)
    network = torch.nn.Sequential(torch.nn.Linear(P, P), deq(width=128)).cuda()
    torch.testing.assert_close(torch.compile(network)(x), network(x), rtol=1e-3, atol=1e-4)
    module = deq(width=128)
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), module(x), rtol=1e-3, atol=1e-4)


def test_per_sample_gradients_kernels_and_radius():
    module, x = deq("tanh", torch.float64, 64), data(8, torch.float64)
    here, there = nsd.empirical_kernels(module, x), nsd.empirical_kernels(module.cpu(), x.cpu())
    torch.testing.assert_close(here.tangent.cpu(), there.tangent, rtol=1e-7, atol=1e-8)
    radii = nsd.fixed_points.spectral_radius(module.cuda(), x).cpu(), nsd.fixed_points.spectral_radius(module.cpu(), x.cpu())
    torch.testing.assert_close(*radii, rtol=0.01, atol=0.0)


def test_compile_deq():
    x = torch.nn.functional.normalize(data())
    compiled = nsd.compile_deq(deq("relu"), x, torch.randint(0, 3, (len(x),)))
    assert compiled.network.weights[0].is_cuda
    assert compiled.certificate.measured_speedup > 1.0
    assert compiled.certificate.kernels.gap < 0.01
    assert nsd.models.to_deq(compiled.network)(x[:4]).shape == (4, 3)


def test_compile_deq_of_a_trained_one_and_of_a_module():
    x = torch.nn.functional.normalize(data(300))
    trained = deq("tanh")
    nsd.fit_readout(trained, [(x, x[:, :3])])
    compiled = nsd.compile_deq(trained, x, budget=3.0, progress=False)
    assert all(weight.is_cuda for weight in compiled.network.parameters())
    out = compiled.frontier["1 learnt step"].module(x)
    assert out.is_cuda
    assert compiled.frontier["1 learnt step"].kept > 0.9

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = trained

        def forward(self, x):
            weight, u = trained.terms(x)
            return nsd.fixed_point(nsd.fixed_points.Activated(torch.tanh, weight, u), torch.zeros_like(u)).value

    found = nsd.compile_deq(Own(), x, budget=3.0, progress=False)
    assert found.network(x[:5]).is_cuda
    assert found.certificate.network == found.frontier.faithful.name
