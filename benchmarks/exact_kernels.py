"""Claim: CK and NTK of a network in the time of one matrix product: n = 4000 on 2 cores, n = 50,000 on a GPU, p = 784.

Prints, for every network (a DEQ by its activation, an explicit one by its layers, joined by +) and dtype, the best time of
`exact_kernels` and of `x @ x.T`, taking turns, and the error against the plain float64 path on the first samples.
Run: python benchmarks/exact_kernels.py [--n 4000] [--device cuda] [--dtypes float32,float64] [--activations relu,tanh,gelu,elu]
     [--explicit hard_tanh,relu+leaky_relu:0.1,tanh+tanh+tanh]
"""

import argparse
import warnings

import torch
from timing import best_times

import notsodeep as nsd
from notsodeep.kernels.exact.solver import prepare

CHECKED = 1000  # samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--p", type=int, default=784)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--activations", default="relu,tanh,gelu,elu")
    parser.add_argument("--explicit", default="hard_tanh,relu+leaky_relu:0.1,tanh+tanh+tanh")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    warnings.simplefilter("ignore", nsd.NumericsWarning)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"CK and NTK, n = {options.n}, p = {options.p}, {where}, torch {torch.__version__}")
    for dtype in options.dtypes.split(","):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(options.n, options.p, dtype=torch.float64, generator=generator) / options.p**0.5
        x = x.to(options.device, getattr(torch, dtype))
        for activation in filter(None, options.activations.split(",")):
            row(x, f"DEQ {activation}", nsd.Implicit(activation, 0.2), dtype, options.rounds)
        for layers in filter(None, options.explicit.split(",")):
            row(x, layers, nsd.Explicit(layers.split("+")), dtype, options.rounds)


def row(x, label, net, dtype, rounds):
    times = best_times({"kernels": lambda: nsd.exact_kernels(net, x), "product": lambda: x @ x.T}, rounds)
    found = nsd.exact_kernels(net, x)
    some = x[:CHECKED].double()
    exact = prepare(net, some, tau0=nsd.tau0(x), fused=False)
    errors = []
    for name in ("conjugate", "tangent"):
        wanted = torch.empty(len(some), len(some), dtype=torch.float64, device=x.device)
        exact.fill((wanted,), (name,))
        gap = getattr(found, name)[: len(some), : len(some)].double() - wanted
        errors.append((float(gap.abs().max() / wanted.abs().max()), float(gap.norm() / wanted.norm())))
    ratio = times["kernels"] / times["product"]
    spelt = ", ".join(f"{largest:.0e} / {whole:.0e}" for largest, whole in errors)
    print(
        f"{label:22} {dtype}  {times['kernels']:8.1f} ms   x @ x.T {times['product']:8.1f} ms   ratio {ratio:4.2f}   "
        f"error of CK, NTK (largest / norm): {spelt}",
        flush=True,
    )


if __name__ == "__main__":
    main()
