"""The GPyTorch kernel: its values, its derivatives, and a Gaussian process that learns its variances."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1

import notsodeep as nsd

gpytorch = pytest.importorskip("gpytorch")

from notsodeep.estimators.gp import DEQKernel  # noqa: E402


def inputs(n, p=6, seed=0):
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / p**0.5


@pytest.mark.parametrize("name", ["conjugate", "tangent"])
def test_the_values_are_those_of_the_package(name):
    x, x2 = inputs(12), inputs(7, seed=1)
    kernel = DEQKernel("relu", 0.15, 0.7, kernel=name).double()
    compute = nsd.conjugate_kernel if name == "conjugate" else nsd.tangent_kernel
    net = nsd.Implicit("relu", 0.15, 0.7)
    torch.testing.assert_close(kernel(x).to_dense(), compute(net, x, tau0=1.0), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(kernel(x, x2).to_dense(), compute(net, x, x2, tau0=1.0), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(kernel(x, diag=True), kernel(x).to_dense().diagonal())
    torch.testing.assert_close(kernel(x[:7], x2, diag=True), kernel(x[:7], x2).to_dense().diagonal())


def test_batches_of_inputs():
    x = torch.stack([inputs(5, seed=s) for s in range(3)])
    kernel = DEQKernel("tanh").double()
    both = kernel(x).to_dense()
    assert both.shape == (3, 5, 5)
    torch.testing.assert_close(both[1], kernel(x[1]).to_dense())


@pytest.mark.parametrize("name", ["conjugate", "tangent"])
def test_the_derivatives_against_a_closed_form(name):
    # Uncentred linear activation: Λ = σ_b² S/(1 − σ_a²), so G = Λ and Θ = Λ + Λ/(1 − σ_a²).
    x = inputs(6)
    kernel = DEQKernel(torch.nn.Identity(), 0.1, 0.8, kernel=name, largest_var_a=0.9).double()
    weight = inputs(6, seed=2)
    (kernel(x).to_dense() * (weight @ weight.T)).sum().backward()
    var_a, var_b = (v.detach().requires_grad_() for v in (kernel.var_a, kernel.var_b))
    found = var_b * (x @ x.T) / (1.0 - var_a)
    exact = found if name == "conjugate" else found + found / (1.0 - var_a)
    (exact * (weight @ weight.T)).sum().backward()
    chain = [torch.autograd.grad(v, raw)[0] for v, raw in ((kernel.var_a, kernel.raw_var_a), (kernel.var_b, kernel.raw_var_b))]
    assert kernel.raw_var_a.grad.item() == pytest.approx((var_a.grad * chain[0]).item(), rel=1e-6)
    assert kernel.raw_var_b.grad.item() == pytest.approx((var_b.grad * chain[1]).item(), rel=1e-6)


class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, name):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(DEQKernel(name, 0.1))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def learnt(x, y, steps, name="relu"):
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    process = Process(x, y, likelihood, name).double()
    optimiser = torch.optim.Adam(process.parameters(), lr=0.1)
    likelihoods = []
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)
    for _ in range(steps):
        optimiser.zero_grad()
        value = -marginal(process(x), y)
        value.backward()
        optimiser.step()
        likelihoods.append(-value.item())
        assert 0.0 < process.covar_module.base_kernel.var_a.item() < 0.25  # admissible, at every step
    return process.eval(), likelihood.eval(), likelihoods


def test_a_process_learns_its_variances_and_its_bars_cover():
    """Friedman's function with noise, four draws: 95 % bars hold between 90 % and 99 % of new samples."""
    inside, errors = [], []
    for seed in range(4):
        X, y = make_friedman1(460, 6, noise=1.0, random_state=seed)
        x, y = (torch.from_numpy(part) for part in (X, y))
        x = x - x[:160].mean(0)
        x = x / nsd.tau0(x[:160])
        y = (y - y[:160].mean()) / y[:160].std()
        process, likelihood, values = learnt(x[:160], y[:160], 40)
        kernel = process.covar_module.base_kernel
        assert values[-1] > values[0] + 0.2
        assert abs(kernel.var_a.item() - 0.1) > 0.01
        assert abs(kernel.var_b.item() - 0.9) > 0.05
        with torch.no_grad():
            told = likelihood(process(x[160:]))
        inside += ((told.mean - y[160:]).abs() <= 1.96 * told.stddev).tolist()
        errors.append(float((told.mean - y[160:]).square().mean() / y[160:].var()))
    assert 0.90 <= np.mean(inside) <= 0.99
    assert np.mean(errors) < 0.25


def test_variances_that_are_not_admissible():
    with pytest.raises(nsd.BadInput, match=r"var_a = 0.3 must lie between 0.0001 and 0.25"):
        DEQKernel("relu", 0.3)
    kernel = DEQKernel("relu", 0.2)
    with pytest.raises(nsd.BadInput, match="must lie between"):
        kernel.var_a = 0.3
    with pytest.raises(nsd.BadInput, match="var_b"):
        kernel.var_b = -1.0
    with pytest.raises(nsd.BadInput, match="largest_var_a = 5 is not admissible"):
        DEQKernel("relu", 0.3, largest_var_a=5.0)
    with pytest.raises(nsd.BadInput, match="give largest_var_a"):
        DEQKernel("sign")
    assert DEQKernel("relu", 0.3, largest_var_a=0.9).var_a.item() == pytest.approx(0.3, rel=1e-5)
    with pytest.raises(nsd.BadInput, match="no kernel 'ntk'"):
        DEQKernel("relu", kernel="ntk")
    with pytest.raises(nsd.BadInput, match="not in its inputs"):
        DEQKernel("relu").double()(inputs(3).requires_grad_()).to_dense()


def test_the_network_of_the_parameters():
    kernel = DEQKernel("tanh", 0.1)
    kernel.var_a = 0.2
    kernel.var_b = 0.5
    assert str(kernel.implicit()) == "Implicit(tanh, var_a=0.2, var_b=0.5)"
