# %% [markdown]
# # A million samples
# Kernel ridge regression with a DEQ's kernel on a file that need not fit in memory: one pass, and no n × n matrix anywhere.
# Here with 20,000 samples, to be quick; the same lines do for `N = 10**6`, in minutes.

# %%
import tempfile
from pathlib import Path

import numpy as np

import notsodeep as nsd
from notsodeep.kernels.structured.equivalent import EquivalentSums
from notsodeep.kernels.structured.fit import equivalent_fit, streamed_fit, streamed_fits

N, P, CHUNK = 20_000, 64, 5_000

# %% A file of samples, written in chunks: three classes, told apart by how their features vary rather than by their mean.
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "x.npy"
random = np.random.default_rng(0)
deviations = 0.7 + 0.6 * random.random((3, P))
y = random.integers(3, size=N)
x = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(N, P))
for start in range(0, N, CHUNK):
    labels = y[start : start + CHUNK]
    x[start : start + CHUNK] = (deviations[labels] * random.standard_normal((len(labels), P)) + 0.2 * labels[:, None]) / P**0.5
x.flush()

# %% The file is mapped, not read; the fit goes through it once, block by block.
x = np.load(path, mmap_mode="r")
train, test = slice(0, N - 2_000), slice(N - 2_000, N)
net = nsd.Implicit("relu", var_a=0.2)
for form in ("equivalent", "sharp"):
    fit = streamed_fit(net, x[train], y[train], form=form, ridge=1e-2)
    accuracy = np.mean(fit.predict(x[test]).argmax(1) == y[test])
    print(f"{form:<11} accuracy {accuracy:.1%}, log marginal likelihoods {fit.log_marginal_likelihood.numpy().round(1)}")
    print(f"{'':<11} largest eigenvalues of the {fit.n} × {fit.n} kernel: {fit.spectrum(4).numpy().round(2)}")

# %% Several ridges in one pass; the likelihood chooses.
fits = streamed_fits(net, x[train], y[train], ridges=(1e-3, 1e-2, 1e-1, 1.0), form="equivalent")
best = max(fits, key=lambda fit: float(fit.log_marginal_likelihood.sum()))
print(f"ridge {best.ridge:g}; deviation of a prediction about {np.sqrt(best.variance(x[test][:100]).mean()):.3f}")

# %% The sums of that pass hold the equivalent kernel of every network: other activations and variances cost no reading.
sums = EquivalentSums.of(x[train], y[train])
for var_a in (0.05, 0.1, 0.2):
    likelihood = equivalent_fit(nsd.Implicit("tanh", var_a), sums, "conjugate", 1e-2).log_marginal_likelihood.sum()
    print(f"tanh, σ_a² = {var_a}: {float(likelihood):.1f}")
folder.cleanup()
