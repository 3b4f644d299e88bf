# %% [markdown]
# # A Gaussian process with a DEQ's kernel
# The infinitely wide DEQ is a Gaussian process. The marginal likelihood chooses σ_a² and σ_b², and the error bars are checked.

# %%
import gpytorch
import torch
from sklearn.datasets import make_friedman1

import notsodeep as nsd
from notsodeep.estimators.gp import DEQKernel

# %% Data: 160 noisy samples of Friedman's function of six inputs to learn from, 300 to judge by.
X, y = (torch.from_numpy(part) for part in make_friedman1(460, 6, noise=1.0, random_state=0))
x = X - X[:160].mean(0)
x, y = x / nsd.tau0(x[:160]), (y - y[:160].mean()) / y[:160].std()
train_x, train_y, test_x, test_y = x[:160], y[:160], x[160:], y[160:]


# %% GPyTorch as usual; only the kernel is ours.
class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(DEQKernel("relu", var_a=0.1))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
process = Process(train_x, train_y, likelihood).double()
marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)
optimiser = torch.optim.Adam(process.parameters(), lr=0.1)
for step in range(60):
    optimiser.zero_grad()
    loss = -marginal(process(train_x), train_y)
    loss.backward()
    optimiser.step()
    if step % 15 == 0:
        print(f"log marginal likelihood a sample {-loss.item():.3f}  {process.covar_module.base_kernel.implicit()}")

# %% Do the bars cover? 95 % of new samples should lie within 1.96 deviations.
process.eval(), likelihood.eval()
with torch.no_grad():
    told = likelihood(process(test_x))
inside = ((told.mean - test_y).abs() <= 1.96 * told.stddev).double().mean()
print(f"learnt: {process.covar_module.base_kernel.implicit()}, noise {likelihood.noise.item():.3f}")
print(f"R² {1 - (told.mean - test_y).square().mean() / test_y.var():.3f}, bars of 95 % cover {inside:.1%}")
