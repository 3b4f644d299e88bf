# %% [markdown]
# # When a DEQ wins
# The other examples replace a DEQ by something cheaper. Wu et al. (2024) have functions on which it earns its cost: with many
# pieces, or with one steep place. Both are built here, without training; then `advise` is asked about two tasks. With
# NOTSODEEP_QUICK=1 nothing is trained, otherwise it takes a minute or two.

# %%
import os

import torch
from sklearn.datasets import load_digits
from torch import nn

import notsodeep as nsd
from notsodeep import separation as sep
from notsodeep.models.training.flops import fnn_flops

QUICK = bool(os.environ.get("NOTSODEEP_QUICK"))
SEEN = 200 if QUICK else 2000  # samples of the steep function
draw = torch.Generator().manual_seed(0)

# %% Many pieces. m units of a DEQ make a sawtooth of 2^m teeth and flanks, exactly, from m² weights that are written down.
m = 10 if QUICK else 14
deq = sep.sawtooth_deq(m)
x = torch.rand(1000, 1, generator=draw, dtype=torch.float64)
with torch.no_grad():
    error = float((deq(x) - sep.Sawtooth(m)(x)).abs().max())
print(f"DEQ, {m} units: {sep.count_pieces(deq, 0.0, 1.0)} pieces, error {error}")

# %% Feed-forward networks of the same cost (m sweeps of m × m weights), and the most pieces that they can have.
cost = fnn_flops([1, m, 1]).forward + m * 2 * m * m
for hidden in (1, 2, 3):
    width = 1
    while fnn_flops([1, *[width + 1] * hidden, 1]).forward <= cost:
        width += 1
    most = sep.max_pieces_fnn(hidden + 1, width)
    print(f"{hidden} hidden layer(s) of {width} for {cost:.0f} FLOPs: at most {most} pieces")

# %% One layer cannot, however it is trained; more layers might, and m layers of two units do: v ↦ 2v − 4 relu(v − ½), m times.
fold, readout = torch.tensor([[2.0, -4.0]]), nn.Linear(2, 1, bias=False, dtype=torch.float64)
layers = [nn.Linear(1 if k == 0 else 2, 2, dtype=torch.float64) for k in range(m)]
with torch.no_grad():
    readout.weight.copy_(fold)
    for k, layer in enumerate(layers):
        layer.weight.copy_(torch.ones(2, 1) if k == 0 else fold.expand(2, 2))
        layer.bias.copy_(torch.tensor([0.0, -0.5]))
deep = nn.Sequential(*(module for layer in layers for module in (layer, nn.ReLU())), readout)
price = fnn_flops([1, *[2] * m, 1]).forward
print(f"{m} hidden layers of 2 for {price:.0f} FLOPs: {sep.count_pieces(deep, 0.0, 1.0)} pieces")
print("The DEQ beats shallow networks because it is deep; a network as deep, and made for this, is cheaper still.")


# %% One steep place, of width 2^(−d). A DEQ has it with weights of 1; a feed-forward network's must grow, as a bound says.
def largest(module):
    return max(float(weight.detach().abs().max()) for weight in module.parameters())


for d in (8, 12, 16, 20):
    built, rival = sep.SteepDEQ(d, 12).as_relu_deq(), sep.steep_fnn(d, widths=(50, 50), loss=1e-4)
    least = sep.min_weight_steep_fnn(d, widths=(50, 50), loss=1e-4)
    print(
        f"d = {d:<2}  largest weight: DEQ of 50 units {largest(built):.2f}, "
        f"two layers of 50 {largest(rival):.2f} (none below {least:.2f})"
    )

# %% These were built by hand; training is another matter. `advise` measures a task, and trains both at equal FLOPs if asked to.
target = sep.Steep(10)
x, x_test = (target.sample(n, draw) for n in (SEEN, SEEN))
steep = nsd.advise(x, target(x), train=not QUICK, test=None if QUICK else (x_test, target(x_test)))
print(f"steep function: {steep.verdict}", *steep.sentences, sep="\n  ")
if steep.race is not None:
    deq, explicit = steep.race.deq, steep.race.explicit
    print(f"  {deq.parameters} parameters against {explicit.parameters}, once trained", end=" ")
    print(f"{deq.flops.forward:.0f} FLOPs against {explicit.flops.forward:.0f}")

# %% Most tasks are not of this kind. On digits the kernels see most of what there is to see.
digits = load_digits()
x = digits.data[:400] - digits.data[:400].mean(0)
plain = nsd.advise(x / nsd.tau0(x), digits.target[:400])
print(f"digits: {plain.verdict}", *plain.sentences[:2], sep="\n  ")
