"""Claim: with both kernels matched, a wide explicit network is at every step of training as near to a DEQ as another draw of
it; with the conjugate kernel alone it is ten times as far at first, and six times as far at the end where width adds no noise.

Networks of finite width on MNIST's 6 and 8, every weight trained by full-batch gradient descent on ½ Σ (f − f_0 − y)², y = ±1,
with one rate for all. Along training, the distance of the test outputs f − f_0 from those of a draw of the DEQ, relative to
their norm: of other draws of the DEQ (the noise of the width), of the twin with both kernels, of that with the conjugate kernel
alone, and of the DEQ's own activation in as many layers with its best gains. At infinite width the same from exact kernels:
f_t − f_0 = Θ' Θ⁻¹ (1 − (1 − ηΘ)^t) y. Run: python benchmarks/same_training.py [mnist.npz with x, y] [width] [activation]
"""

import sys
import time
import warnings

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.data import load
from notsodeep.matching.gains import gained

CLASSES, TRAIN, TEST, DESIGN, VAR_A = (6, 8), 200, 400, 1500, 0.2
TIMES = (1, 3, 10, 30, 100, 300, 1000)
DRAWS = 3


def mnist(path):
    if path is None:
        data = load("mnist")
        x, y = data.x.double(), data.y
    else:
        held = np.load(path)
        x, y = torch.from_numpy(held["x"]).double(), torch.from_numpy(held["y"])
    keep = (y == CLASSES[0]) | (y == CLASSES[1])
    x, y = x[keep], y[keep]
    x = x / nsd.tau0(x)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test, rest = order[:TRAIN], order[TRAIN : TRAIN + TEST], order[TRAIN + TEST : TRAIN + TEST + DESIGN]
    return x[train], torch.where(y[train] == CLASSES[0], 1.0, -1.0).double(), x[test], x[rest]


def trained(module, x, y, test, rate):
    """f − f_0 at the test samples after each of TIMES steps."""
    weights = [w for w in module.parameters() if w.requires_grad]
    with torch.no_grad():
        start, start_test = module(x)[:, 0], module(test)[:, 0]
    found = []
    for step in range(1, TIMES[-1] + 1):
        out = module(x)[:, 0] - start
        gradients = torch.autograd.grad(0.5 * (out - y).square().sum(), weights, allow_unused=True)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    weight -= rate * gradient
            if step in TIMES:
                found.append((module(test)[:, 0] - start_test).double().cpu())
    return found


def at_infinite_width(net, x, y, test, rate, tau0):
    """The same from the exact tangent kernel."""
    kernel = nsd.tangent_kernel(net, x, tau0=tau0)
    values, vectors = torch.linalg.eigh(kernel)
    across = nsd.tangent_kernel(net, test, x, tau0=tau0)
    along = vectors.T @ y
    return [across @ (vectors @ ((1.0 - (1.0 - rate * values).pow(t)) / values * along)) for t in TIMES]


def apart(one, other):
    return [float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b)) for a, b in zip(one, other, strict=True)]


def main(path=None, width=4096, activation="relu"):
    warnings.simplefilter("ignore")
    width, device = int(width), "cuda" if torch.cuda.is_available() else "cpu"
    x, y, test, rest = mnist(path)
    net, tau0 = nsd.Implicit(activation, VAR_A), nsd.tau0(rest)
    both = nsd.design(net, rest, tau0=tau0, match="both").explicit
    alone = nsd.design(net, rest, tau0=tau0).explicit
    plain = gained(nsd.Explicit([net.phi] * both.depth).centred(tau0), net, rest[:300], tau0)
    rate = 1.0 / float(torch.linalg.eigvalsh(nsd.tangent_kernel(net, x, tau0=tau0))[-1])
    networks = {"both kernels": both, "conjugate alone": alone, f"{activation} with gains": plain}
    exact = at_infinite_width(net, x, y, test, rate, tau0)
    print(f"{net}, width {width}, {TRAIN} samples, rate {rate:.3g} on {device}; steps {', '.join(map(str, TIMES))}")
    values, vectors = torch.linalg.eigh(nsd.tangent_kernel(net, x, tau0=tau0))
    left = torch.linalg.vector_norm((1.0 - rate * values).pow(TIMES[-1]) * (vectors.T @ y)) / torch.linalg.vector_norm(y)
    print(f"left of the training error after the last step, at infinite width: {float(left):.1e}")
    print(f"both kernels: {both}\nconjugate alone: {alone}")
    for name, explicit in networks.items():
        found = apart(at_infinite_width(explicit, x, y, test, rate, None), exact)
        print(f"  infinite width, {name:22}", "  ".join(f"{d:.4f}" for d in found))

    def deq(seed):
        draw = torch.Generator().manual_seed(seed)
        return nsd.DEQ(net, x.shape[1], width, 1, tau0=tau0, generator=draw).to(device)

    def enn(explicit, seed):
        return nsd.ENN(explicit, x.shape[1], width, 1, generator=torch.Generator().manual_seed(seed)).to(device)

    given = [t.float().to(device) for t in (x, y, test)]
    start = time.perf_counter()
    draws = [trained(deq(seed), *given, rate) for seed in range(DRAWS)]
    print("  DEQ against infinite width      ", "  ".join(f"{d:.4f}" for d in mean([apart(one, exact) for one in draws])))
    print(
        "  another draw of the DEQ         ", "  ".join(f"{d:.4f}" for d in mean([apart(one, draws[0]) for one in draws[1:]]))
    )
    for name, explicit in networks.items():
        found = [apart(trained(enn(explicit, 100 + seed), *given, rate), draws[seed]) for seed in range(DRAWS)]
        print(f"  {name:32}", "  ".join(f"{d:.4f}" for d in mean(found)), f"({time.perf_counter() - start:.0f} s)", flush=True)


def mean(rows):
    return np.array(rows).mean(0)


if __name__ == "__main__":
    main(*sys.argv[1:4])
