"""Claim: the matched explicit network answers many times faster than the DEQ of the same width, at the same accuracy.

1. Inference time of both, batch 512, 64 (digits) or 784 inputs, float32, the DEQ at its default tolerance (1e-5); tanh has one
   layer, relu two. The DEQ in full precision, as the explicit network, and in mixed, its default where there is bfloat16.
2. Accuracy on digits with a trained (ridge) readout, 10 seeds of both networks on one split, widths 256 … 1024.
Run: python benchmarks/matched_network.py
"""

import math

import torch
from timing import best_times

import notsodeep as nsd
from notsodeep.data.sources import load
from notsodeep.data.targets import Targets
from notsodeep.models.training.objective import score
from notsodeep.models.training.readout import best_readout, in_batches

SEEDS = 10


def speed(width, p, batch=512):
    x = torch.randn(batch, p, generator=torch.Generator().manual_seed(0)) / math.sqrt(p)
    for name in ("tanh", "relu"):
        net = nsd.Implicit(name, 0.2)
        explicit = nsd.design(net).explicit
        modules = {
            "full": nsd.DEQ(net, p, width, precision=nsd.fixed_points.FullPrecision()),
            "mixed": nsd.DEQ(net, p, width),
            "explicit": nsd.ENN(explicit, p, width),
        }
        with torch.no_grad():
            evaluations = modules["full"].solve(x).evaluations
            times = best_times({label: (lambda m=m: m(x)) for label, m in modules.items()}, rounds=12)
        flops = modules["full"].flops(evaluations) / modules["explicit"].flops()
        ratio = {label: times[label] / times["explicit"] for label in ("full", "mixed")}
        print(
            f"{name}, p = {p}, m = {width}, {explicit.depth} layer(s): explicit {times['explicit']:.2f} ms; DEQ, {evaluations} "
            f"steps, {times['full']:.1f} ms ({ratio['full']:.1f}x, {flops:.1f}x the FLOP), in mixed precision "
            f"{times['mixed']:.1f} ms ({ratio['mixed']:.1f}x)"
        )


def accuracy(width):
    data = load("digits")
    x, labels = data.x.float(), Targets.numbered(data.y, len(data.x))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, train = order[:450], order[450:]
    targets = labels.read().float()
    for name in ("tanh", "relu"):
        net = nsd.Implicit(name, 0.2)
        explicit = nsd.design(net, tau0=1.0).explicit
        scores = []
        for seed in range(SEEDS):
            draw = torch.Generator().manual_seed(seed)
            pair = nsd.DEQ(net, 64, width, generator=draw), nsd.ENN(explicit, 64, width, generator=draw)
            readouts = [best_readout(m.features, x[train], targets[train]) for m in pair]
            scores.append(
                [score(r(in_batches(m.features, x[test])), labels.y[test]) for m, r in zip(pair, readouts, strict=True)]
            )
        deq, matched = torch.tensor(scores, dtype=torch.float64).T
        print(
            f"{name}, m = {width}: DEQ {deq.mean():.4f} ± {deq.std():.4f}, matched {matched.mean():.4f} ± {matched.std():.4f}, "
            f"difference of the means {100 * float(matched.mean() - deq.mean()):+.2f} points"
        )


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for m, p in ((1024, 64), (1024, 784), (4096, 784)):
        speed(m, p)
    for m in (256, 512, 1024):
        accuracy(m)
