# %% [markdown]
# # Your own activation
# Any element-wise torch function makes a DEQ. Here are three: one that a known family matches, one that none does, and one
# that is typed as a formula.

# %%
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd


# %% A function of one's own: nothing happens until |u| passes ½. Where it bends is found by looking.
def shrink(u):
    return torch.relu(u - 0.5) - torch.relu(-u - 0.5)


net = nsd.Implicit(shrink, var_a=0.2)
print(f"{net}: kinks at {net.phi.kinks}, steepest slope {net.phi.lipschitz:g}")

# %% What the kernels of a wide DEQ know of it is four numbers: τ* and how φ looks to a Gaussian of that width.
numbers = nsd.scalars(net, tau0=1.0)
print(f"τ* = {numbers.tau:.4f}, γ = {numbers.gamma:.4f}", end=", ")
print(f"α1 = {numbers.alpha1:.4f}, α2 = {numbers.alpha2:.4f}, α3 = {numbers.alpha3:.4f}")

# %% An odd function has α2 = α3 = 0, and one layer of hard tanh has the rest: it clips where shrink waits, and yet they agree.
found = nsd.design(net)
print(f"{found.explicit}, every scalar within {found.residual:.0e}")


# %% A second one clips, but higher above than below. Asked for a leaky ReLU, the answer is no, with the nearest miss.
def lopsided(u):
    return torch.clamp(u, -1.0, 2.0)


net = nsd.Implicit(lopsided, var_a=0.2)
try:
    nsd.design(net, family="leaky_relu")
except nsd.NoMatch as error:
    print(f"leaky_relu misses by {error.residual:.1e}; suggested instead: {error.suggestion}")

# %% A Hermite series always can, and is exact on inputs of one norm up to its length; a function with kinks wants many terms.
for terms in (4, 8, 16, 40):
    print(f"hermite:{terms:<3} misses by {nsd.design(net, family=f'hermite:{terms}').residual:.1e}")

# %% Scalars are one thing, kernels another: the exact ones, on digits scaled to norm 1 and on digits as they are.
x = load_digits().data[:50]
x = x - x.mean(0)
x = x / nsd.tau0(x)
sphere = x / (x**2).sum(1, keepdims=True) ** 0.5
for name, data in (("norm 1", sphere), ("as they are", x)):
    measured = nsd.design(net, x=data, family="hermite")
    print(
        f"digits, {name}: designed ({measured.family}) {measured.measured.gap:.1e} off, "
        f"undesigned {measured.measured.plain_gap:.1e}"
    )

# %% A formula is an activation too, here and on the command line. It is read, not run, and so can be saved with a network.
net = nsd.Implicit("x*tanh(x)", var_a=0.15)
print(f"{net}: L ≈ {net.phi.lipschitz:.3f}, so that wide networks surely contract below σ_a² = 1/(4L²) = ", end="")
print(f"{1 / (4 * net.phi.lipschitz**2):.3f}")
found = nsd.design(net, x=sphere)
print(f"{found.family}: exact kernels {found.measured.gap:.1e} apart, smooth as it is")
