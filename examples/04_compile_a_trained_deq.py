# %% [markdown]
# # Compile a trained DEQ
# Train a small DEQ on handwritten digits, then replace it by the cheapest network that keeps its answers.

# %%
import os

import torch
from sklearn.datasets import load_digits
from torch.nn import functional

import notsodeep as nsd

# %% Data: centred and scaled so that τ0 = 1.
digits = load_digits()
x = torch.tensor(digits.data - digits.data.mean(0), dtype=torch.float32)
x, y = x / nsd.tau0(x), torch.tensor(digits.target)
draw = torch.Generator().manual_seed(0)
order = torch.randperm(len(x), generator=draw)
test, judge, train = order[:360], order[360:660], order[660:]

# %% A DEQ is an ordinary module: any optimiser trains it, with exact gradients through the equilibrium.
deq = nsd.DEQ(nsd.Implicit("tanh", var_a=0.2), in_features=64, width=256, out_features=10, generator=draw)
optimiser = torch.optim.Adam(deq.parameters(), lr=1e-2)
for _ in range(8):
    for rows in train[torch.randperm(len(train), generator=draw)].split(128):
        loss = functional.cross_entropy(deq(x[rows]), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
found = deq.solve(x[test])
worst = float(nsd.fixed_points.spectral_radius(deq, x[test][:20]).max())
print(f"{found.evaluations} evaluations, contraction {worst:.2f} at worst")

# %% One call measures every way to pay less, on samples that were not trained on, and certifies the cheapest that keeps 99 %.
budget = 2.0 if os.environ.get("NOTSODEEP_QUICK") else 20.0  # seconds for trainings
compiled = nsd.compile_deq(deq, x[train], y[train], test=(x[judge], y[judge]), budget=budget)
print(compiled.summary())
print(compiled.frontier.table())


# %% The network on samples that did not choose it either, beside the DEQ, and another way: the DEQ cut after two steps.
def accuracy(network):
    return float((network(x[test]).argmax(1) == y[test]).double().mean())


with torch.no_grad():
    cut = nsd.models.Unrolled(deq, 2)
    print(f"test accuracy: DEQ {accuracy(deq):.3f}, {compiled} {accuracy(compiled.network):.3f}, cut {accuracy(cut):.3f}")
    same = (compiled.network(x[test]).argmax(1) == deq(x[test]).argmax(1)).double().mean()
    print(f"same answer on {same:.1%} of {len(test)} test samples")
