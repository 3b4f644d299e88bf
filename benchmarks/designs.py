"""Claim: the network that `design` chooses is nearer to a DEQ's kernel than the DEQ's own activation times a factor.

For every data set, activation and σ_a²: designed on samples of which half are fitted and half chosen on, then judged on samples
that had no part in either, by exact kernels in operator norm. Beside the chosen twin stand the best network with matched
scalars, the DEQ's own activation in one layer (and in as many as the twin has) times the factor that is best on the judged
samples, and the bound below which no network of one layer and the default dictionary comes in Frobenius norm on the fitted
pairs. `both` judges one network for both kernels. Prints a line per cell and tables for the docs.
Run: python benchmarks/designs.py [folder with mnist.npy, … instead of the data sets] [processes]
"""

import multiprocessing
import sys
import time
import warnings
from pathlib import Path
from statistics import median

import torch

import notsodeep as nsd
from notsodeep.data import load
from notsodeep.kernels.compare import best_scaled_gap

SETS = ("mixture", "digits", "mnist", "fashion-mnist", "cifar10-vgg19")
ACTIVATIONS = (
    "tanh", "erf", "arctan", "sigmoid", "softplus", "gelu", "silu", "elu", "relu", "leaky_relu:0.1", "x*tanh(x)", "sin",
)  # fmt: skip
VARIANCES = (0.1, 0.2, 0.5)
BOTH = ("relu", "leaky_relu:0.1", "tanh", "gelu")
FITTED = 1500


def samples(name, folder):
    """(samples to design on, samples to judge by), centred and scaled to τ0 = 1 together."""
    if name == "mixture":
        draw = torch.Generator().manual_seed(0)
        x = nsd.GaussianMixture.two_classes(1280).sample(3200, draw)[0][torch.randperm(3200, generator=draw)]  # by class before
        return x[:1600], x[1600:]
    path = None if folder is None else Path(folder) / f"{name}.npy"
    x = load(str(path) if path is not None and path.exists() else name).x.double()
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(2))[: 3 * FITTED]]
    part = 2 * len(x) // 3
    return x[:part], x[part:]


def plain_gap(net, exact, judged, tau0, depth):
    plain = nsd.conjugate_kernel(nsd.Explicit([net.phi] * depth).centred(tau0), judged)
    return best_scaled_gap(exact, plain)[0]


def cell(job):
    name, activation, var_a, folder = job
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    given, judged = samples(name, folder)
    net = nsd.Implicit(activation, var_a)
    start = time.perf_counter()
    try:
        found = nsd.design(net, given)
    except nsd.NotSoDeepError as error:
        return job, None, f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - start
    exact = nsd.conjugate_kernel(net, judged, tau0=found.tau0)

    def gap(explicit):
        return nsd.relative_gap(exact, nsd.conjugate_kernel(explicit, judged))

    matched = [gap(one.explicit) for one in found.candidates if one.matched]
    one_layer = [one for one in found.candidates if one.optimum is not None]
    depths = {1, found.explicit.depth}
    return (
        job,
        {
            "family": found.family,
            "gap": gap(found.explicit),
            "one": min((gap(one.explicit) for one in found.candidates if one.explicit.depth == 1), default=float("nan")),
            "matched": min(matched, default=float("nan")),
            "plain": min(plain_gap(net, exact, judged, found.tau0, depth) for depth in depths),
            "bound": one_layer[0].optimum.bound if one_layer else float("nan"),
            "seconds": seconds,
        },
        "",
    )


def both(job):
    name, activation, folder = job
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    given, judged = samples(name, folder)
    net = nsd.Implicit(activation, 0.2)
    found = nsd.design(net, given, match="both")
    exact, twin = nsd.exact_kernels(net, judged, tau0=found.tau0), nsd.exact_kernels(found.explicit, judged)
    plain = nsd.tangent_kernel(found.explicit.with_gains(None), judged)
    return job, tuple(
        nsd.relative_gap(a, b)
        for a, b in ((exact.conjugate, twin.conjugate), (exact.tangent, twin.tangent), (exact.tangent, plain))
    )


def main(folder=None, processes=2):
    jobs = [(name, phi, var_a, folder) for name in SETS for phi in ACTIVATIONS for var_a in VARIANCES]
    cells = {}
    with multiprocessing.get_context("spawn").Pool(int(processes)) as pool:
        for job, found, why in pool.imap_unordered(cell, jobs):
            cells[job[:3]] = found
            told = why or "  ".join(f"{k} {v:.2e}" if isinstance(v, float) else str(v) for k, v in found.items())
            print(f"{job[0]:14} {job[1]:14} {job[2]:.1f}  {told}", flush=True)
        for job, gaps in pool.imap_unordered(both, [(n, phi, folder) for n in ("digits", "mnist") for phi in BOTH]):
            print("both kernels", *job[:2], "CK {:.1e}, NTK {:.1e}, without gains {:.1e}".format(*gaps), flush=True)
    known = {key: value for key, value in cells.items() if value is not None}
    for var_a in VARIANCES:
        print(f"\nσ_a² = {var_a}: chosen twin / plain times a factor\n\n| φ | " + " | ".join(SETS) + " |")
        print("|---" * (1 + len(SETS)) + "|")
        for phi in ACTIVATIONS:
            row = [known.get((name, phi, var_a)) for name in SETS]
            print(f"| {phi} | " + " | ".join("–" if c is None else f"{c['gap']:.1e} / {c['plain']:.1e}" for c in row) + " |")
    ratios = [c["plain"] / c["gap"] for c in known.values()]
    beaten = [key for key, c in known.items() if c["gap"] > c["plain"]]
    low = {key: c["gap"] for key, c in known.items() if key[2] <= 0.2}
    worst = max(low, key=lambda key: low[key])
    print(f"\n{len(known)} cells, {len(jobs) - len(known)} without a DEQ; nearer than plain in all but {beaten}")
    print(f"median advantage {median(ratios):.1f}; worst gap with σ_a² ≤ .2: {low[worst]:.1e} at {worst}")
    print(f"seconds per design on one thread: median {median(c['seconds'] for c in known.values()):.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
