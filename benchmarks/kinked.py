"""Claim: kernels of kinked functions typed as an expression take at most half a second at n = 500.

Time of the exact CK against n on standardised digits, for ReLU by its own closed form, for expressions that are piecewise
polynomials by theirs, for a kinked one that is none by long series, and for the first expression by integration, without
them, on fewer samples. From n = 1000 on the fused solver takes most pairs. All in one run, each its best time.
Run: python benchmarks/kinked.py [rounds] [--out docs/kinked.png]
"""

import argparse
from unittest import mock

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from timing import best_times

import notsodeep as nsd
from notsodeep.activations import expression
from notsodeep.activations.formula import Formula

SIZES = (62, 125, 250, 500, 1000)
INTEGRATED = SIZES[:3]
TEXTS = ("max(x, 0) - 0.2*x", "0.4*max(x,0) - 0.3*abs(x-1) + 0.25*abs(x+0.7)", "x*abs(x)", "tanh(x)*abs(x)")
LOOKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "black")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("--out", default="kinked.png")
    options = parser.parse_args()
    x = torch.tensor(load_digits().data)
    x = x - x.mean(0)
    x = x / x.norm(dim=1).square().mean().sqrt()
    found = {}
    for n in SIZES:
        calls = {name: kernel(name, x[:n]) for name in ("relu", *TEXTS)}
        if n in INTEGRATED:
            calls["by integration"] = integrated(x[:n])
        for name, milliseconds in best_times(calls, options.rounds).items():
            found.setdefault(name, {})[n] = milliseconds
        print(f"n = {n}: " + "; ".join(f"{name} {times[n]:.0f} ms" for name, times in found.items() if n in times), flush=True)
    largest = INTEGRATED[-1]
    ratio = found["by integration"][largest] / found[TEXTS[0]][largest]
    print(f"{TEXTS[0]} at n = {largest}: {ratio:.1f} times faster than by integration")
    draw(found, options.out)


def kernel(name, x):
    net = nsd.Implicit(expression(name) if "x" in name else name, 0.02)
    return lambda: nsd.conjugate_kernel(net, x)


def integrated(x):
    """The first expression without its closed form, and without long series."""
    call = kernel(TEXTS[0], x)

    def none_known(*pairs):
        rho = pairs[3]
        return torch.zeros_like(rho), torch.zeros_like(rho), torch.zeros_like(rho, dtype=torch.bool)

    def alone():
        with mock.patch.object(Formula, "pieces", None), mock.patch("notsodeep.gaussian.dual.long_series", none_known):
            return call()

    return alone


def draw(found, path):
    figure, axes = plt.subplots(figsize=(7.2, 5.0), layout="constrained")
    for (name, times), colour in zip(found.items(), LOOKS, strict=True):
        label = f"{TEXTS[0]}, by integration" if name == "by integration" else name
        style = "--" if name == "by integration" else "-"
        axes.loglog(list(times), list(times.values()), style, marker="o", color=colour, label=label)
    axes.axhline(500.0, color="0.6", linewidth=1)
    axes.text(SIZES[0], 530.0, "half a second", color="0.4", fontsize=9)
    axes.set(xlabel="samples n", ylabel="milliseconds, CK of a DEQ", title="digits, float64, two cores")
    axes.set_xticks(SIZES, [str(n) for n in SIZES])
    axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
