"""Fashion-MNIST on two cores: DEQ, matched and plain network with a closed-form readout; a DEQ trained as a whole, compiled.

Prints the figures of README and docs/practice.md. Needs the data set (see docs/practice.md); about ten minutes.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

import notsodeep as nsd
from notsodeep.data import load_split
from notsodeep.models.training.objective import Batches, score
from notsodeep.models.training.readout import fit_readout, in_batches, scale_to_logits

WIDTH, EPOCHS, SEEDS = 1024, 5, 3


def networks(name: str, x: Tensor, seed: int) -> dict[str, nn.Module]:
    net = nsd.Implicit(name, 0.2)
    matched = nsd.design(net, x=x[:1000], tau0=1.0).explicit
    plain = nsd.Explicit([net.phi] * matched.depth).centred(1.0)
    options = {"readout_bias": True, "generator": torch.Generator().manual_seed(seed)}
    return {
        "deq": nsd.DEQ(net, x.shape[1], WIDTH, 10, **options),
        "matched": nsd.ENN(matched, x.shape[1], WIDTH, 10, **options),
        "plain": nsd.ENN(plain, x.shape[1], WIDTH, 10, **options),
    }


def main() -> None:
    split = load_split("fashion-mnist")
    (x, y), (test_x, test_y) = ((part.x, part.y) for part in (split.train, split.test))
    print(f"readout in closed form, width {WIDTH}, test accuracy over {SEEDS} seeds")
    for name in ("relu", "tanh"):
        found: dict[str, list[float]] = {"deq": [], "matched": [], "plain": []}
        for seed in range(SEEDS):
            for kind, network in networks(name, x, seed).items():
                fit_readout(network, Batches(x, y, 1024))
                found[kind].append(score(in_batches(network, test_x), test_y))
        text = ", ".join(f"{kind} {sum(v) / len(v):.4f} ({min(v):.4f} … {max(v):.4f})" for kind, v in found.items())
        print(f"  {name}: {text}", flush=True)
    draw = torch.Generator().manual_seed(0)
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), x.shape[1], WIDTH, 10, readout_bias=True, generator=draw)
    began = time.perf_counter()
    fit_readout(deq, Batches(x, y, 1024))
    scale_to_logits(deq, Batches(x, y, 1024, draw))
    nsd.fit(deq, Batches(x, y, 128, draw), EPOCHS, optimiser=torch.optim.Adam(deq.parameters(), lr=1e-2))
    trained = time.perf_counter() - began
    print(f"all weights, {EPOCHS} epochs: test accuracy {score(in_batches(deq, test_x), test_y):.4f} in {trained:.0f} s")
    began = time.perf_counter()
    compiled = nsd.compile_deq(deq, x, y)
    print(f"compiled in {time.perf_counter() - began:.0f} s: {score(in_batches(compiled.network, test_x), test_y):.4f}")
    print(compiled.certificate.summary())


if __name__ == "__main__":
    main()
