"""How the cost of exact kernels grows: time against n and against p, on log-log axes, with fitted exponents.

Run: python benchmarks/growth.py [--device cuda] [--activation relu] [--dtype float32] [--out docs/growth-cpu.png]
"""

import argparse
import json
import math
from functools import partial

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from timing import best_times

import notsodeep as nsd

CPU = {"n": (1000, 1400, 2000, 2800, 4000, 5600, 8000), "p": (50, 100, 200, 400, 800, 1600, 3200)}
CUDA = {"n": (5000, 7000, 10_000, 14_000, 20_000, 28_000, 40_000, 56_000), "p": (100, 200, 400, 800, 1600, 3200)}
FIXED = {"cpu": {"n": 4000, "p": 784}, "cuda": {"n": 40_000, "p": 784}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--activations", default="relu,tanh")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="growth.png")
    options = parser.parse_args()
    sizes = CUDA if options.device == "cuda" else CPU
    found = {}
    for axis, values in sizes.items():
        for value in values:
            shape = FIXED[options.device] | {axis: value}
            for name, seconds in measured(options, **shape).items():
                found.setdefault(axis, {}).setdefault(name, {})[value] = seconds
    for axis, curves in found.items():
        for name, times in curves.items():
            print(f"{name:8} against {axis}: exponent {exponent(times):.2f}   {json.dumps(times)}")
    draw(found, options)


def measured(options, n, p):
    """Milliseconds of the kernels of each activation, and of the product."""
    x = torch.randn(n, p, generator=torch.Generator().manual_seed(0)) / p**0.5
    x = x.to(options.device, getattr(torch, options.dtype))
    calls = {name: partial(nsd.exact_kernels, nsd.Implicit(name, 0.2), x) for name in options.activations.split(",")}
    return best_times({**calls, "x @ x.T": lambda: x @ x.T}, options.rounds)


def exponent(times):
    """The slope of log time against log size over the upper half of the sizes, where fixed costs no longer count."""
    points = [(math.log(size), math.log(time)) for size, time in times.items()][len(times) // 2 :]
    mean = [sum(column) / len(points) for column in zip(*points, strict=True)]
    above = sum((a - mean[0]) * (b - mean[1]) for a, b in points)
    return above / sum((a - mean[0]) ** 2 for a, _ in points)


def draw(found, options):
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
    looks = {"x @ x.T": ("black", ":", "s")} | {
        name: look
        for name, look in zip(options.activations.split(","), (("#0072b2", "-", "o"), ("#d55e00", "--", "D")), strict=False)
    }
    for panel, (axis, curves) in zip(axes, found.items(), strict=True):
        for name, times in curves.items():
            colour, line, marker = looks[name]
            label = f"{name}{'' if '@' in name else ' DEQ, CK and NTK'}: {axis}^{exponent(times):.2f}"
            panel.loglog(list(times), list(times.values()), line, marker=marker, color=colour, label=label)
        other = "p" if axis == "n" else "n"
        panel.set(xlabel=f"{'samples' if axis == 'n' else 'features'} {axis}", ylabel="milliseconds" if axis == "n" else "")
        panel.set_title(f"{other} = {FIXED[options.device][other]}, {options.dtype}, {options.device}")
        ticks = list(found[axis]["x @ x.T"])[::2]
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.minorticks_off()
        panel.legend(frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.out, dpi=150)


if __name__ == "__main__":
    main()
