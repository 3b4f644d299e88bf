# %% [markdown]
# # Design in ten lines
# A ReLU DEQ on handwritten digits, and the explicit network that has its kernel.

# %%
from sklearn.datasets import load_digits

import notsodeep as nsd

# %% Data: one row a sample, centred and scaled so that τ0 = 1.
x = load_digits().data[:600]
x = x - x.mean(0)
x = x / nsd.tau0(x)

# %% The DEQ is three numbers and an activation; the design is two layers of leaky ReLU.
deq = nsd.Implicit("relu", var_a=0.2)
found = nsd.design(deq, x=x)
print(found.summary())

# %% The same thing seen through the kernels themselves.
gap = nsd.relative_gap(nsd.tangent_kernel(deq, x), nsd.tangent_kernel(found.explicit, x))
print(f"The conjugate kernels differ by {found.measured.gap:.1e}; their tangent kernels, not designed for, by {gap:.1e}.")
