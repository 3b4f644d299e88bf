"""Claim: the network that `design` chooses is nearer to a DEQ's kernel than the DEQ's own activation times a factor.

For every data set, activation and σ_a²: designed on samples of which half are fitted and half chosen on, then judged on others
that had no part in either, by exact kernels in operator norm. Beside the chosen twin stand the DEQ cut after two steps, the
best network with matched scalars, the best of one layer, the DEQ's own activation in one layer (and in as many as the twin has)
times the factor that is best on the judged samples, and the bound below which no network of one layer and the default
dictionary comes in Frobenius norm on the fitted pairs. Then one network is judged for both kernels.

Prints a line per cell and writes the tables as a page.
Run: python benchmarks/designs.py [folder with mnist.npy, … instead of the data sets] [processes] [the page to write]
"""

import multiprocessing
import sys
import time
import warnings
from math import isnan
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
    part = max(2 * len(x) // 3, min(FITTED, 5 * len(x) // 6))  # of digits there are 1797
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

    def least(wanted):
        return min((gap(one.explicit) for one in found.candidates if wanted(one)), default=float("nan"))

    proofs = [one.optimum.bound for one in found.candidates if one.optimum is not None]
    depths = {1, found.explicit.depth}
    return (
        job,
        {
            "family": found.family,
            "gap": gap(found.explicit),
            "cut": least(lambda one: one.family == "unrolled"),
            "matched": least(lambda one: one.matched),
            "one": least(lambda one: one.explicit.depth == 1),
            "plain": min(plain_gap(net, exact, judged, found.tau0, depth) for depth in depths),
            "bound": proofs[0] if proofs else float("nan"),
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


def table(known, name):
    """The rows of one data set."""
    rows = [
        "| φ, σ_a² | chosen | cut after 2 steps | matched scalars | one layer | plain φ | bound, one layer |",
        "|---" * 7 + "|",
    ]
    for phi in ACTIVATIONS:
        for var_a in VARIANCES:
            one = known.get((name, phi, var_a))
            if one is None:
                rows.append(f"| {phi}, {var_a} | no equilibrium |" + " |" * 5)
                continue
            gaps = ("–" if isnan(one[k]) else f"{one[k]:.1e}" for k in ("cut", "matched", "one", "plain", "bound"))
            rows.append(f"| {phi}, {var_a} | {one['gap']:.1e}, {one['family']} | {' | '.join(gaps)} |")
    return "\n".join(rows)


def verdict(known):
    """What the table says in sentences."""
    low = {key: one["gap"] for key, one in known.items() if key[2] <= 0.2}
    worst = max(low, key=lambda key: low[key])
    lines = [f"{len(known)} cells. The worst gap with σ_a² ≤ 0.2 is {low[worst]:.1e} ({', '.join(map(str, worst))})."]
    for rival, words in (("plain", "plain φ times its best factor"), ("cut", "the DEQ cut after two steps")):
        ratios = [one[rival] / one["gap"] for one in known.values()]
        lost = [key for key, one in known.items() if one["gap"] > one[rival]]
        where = (
            "; farther nowhere" if not lost else f"; farther in {len(lost)}: " + "; ".join(f"{a}, {b}, {c}" for a, b, c in lost)
        )
        lines.append(f"Against {words} the chosen twin is nearer by a median factor of {median(ratios):.1f}{where}.")
    lines.append(f"A design took {median(one['seconds'] for one in known.values()):.1f} s on one thread (median).")
    return "\n".join(lines)


def main(folder=None, processes=2, page=None):
    jobs = [(name, phi, var_a, folder) for name in SETS for phi in ACTIVATIONS for var_a in VARIANCES]
    known, pairs = {}, []
    with multiprocessing.get_context("spawn").Pool(int(processes)) as pool:
        for job, found, why in pool.imap_unordered(cell, jobs):
            if found is not None:
                known[job[:3]] = found
            told = why or "  ".join(f"{k} {v:.2e}" if isinstance(v, float) else str(v) for k, v in found.items())
            print(f"{job[0]:14} {job[1]:14} {job[2]:.1f}  {told}", flush=True)
        for job, gaps in pool.imap(both, [(n, phi, folder) for n in ("digits", "mnist") for phi in BOTH]):
            pairs.append("| {}, {} | {:.1e} | {:.1e} | {:.1e} |".format(*job[:2], *gaps))
            print(pairs[-1], flush=True)
    sections = [verdict(known)] + [f"## {name}\n\n{table(known, name)}" for name in SETS]
    sections.append("## Both kernels\n\n| data, φ | CK | NTK | NTK without gains |\n|---|---|---|---|\n" + "\n".join(pairs))
    print("\n\n".join(sections))
    if page is not None:
        intro = "# How near twins come\n\nMade by benchmarks/designs.py.\n\n" + __doc__.split("\n\n")[1] + "\n"
        Path(page).write_text("\n\n".join([intro, *sections]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:4])
