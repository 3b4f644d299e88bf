"""Claim: ridge classification with a DEQ's kernel, n = 10⁶, p = 784: fit and predict in under 5 minutes and 8 GB on 2 cores.

Writes a Gaussian mixture of ten classes (means and covariances of their own) as float32 to a temporary .npy file, maps it, fits
both forms, predicts 10,000 new samples, and deletes the file.
Run: python benchmarks/million.py [--n 1000000] [--activation relu] [--kernel conjugate] [--check] [--folder DIR]

--check measures, on the same data, what the statistics of a sample and products in float32 change: against the statistics of
a pass of their own, and against float64.
"""

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.kernels.structured.fit import streamed_fit, streamed_fits
from notsodeep.kernels.structured.sharp import SharpStatistics

CLASSES, CHUNK, TEST = 10, 20_000, 10_000


class Mixture:
    """x = (μ_a + s_a ∘ z)/√p: means of norm 2 to 3, deviations between 0.6 and 1.4 that differ from class to class."""

    def __init__(self, p):
        self.generator = torch.Generator().manual_seed(0)
        means = torch.randn(CLASSES, p, generator=self.generator)
        self.means = means / means.norm(dim=1, keepdim=True) * torch.linspace(2.0, 3.0, CLASSES)[:, None]
        ramp = 0.6 + 0.8 * torch.rand(CLASSES, p, generator=self.generator)
        self.deviations = ramp * torch.linspace(0.95, 1.05, CLASSES)[:, None]

    def draw(self, n):
        p = self.means.shape[1]
        y = torch.randint(CLASSES, (n,), generator=self.generator)
        z = torch.randn(n, p, generator=self.generator)
        return z.mul_(self.deviations[y]).add_(self.means[y]).div_(p**0.5).numpy(), y.numpy()


def write(folder, n, p):
    mixture, labels = Mixture(p), np.empty(n, dtype=np.int64)
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.float32, shape=(n, p))
    for start in range(0, n, CHUNK):
        part = slice(start, min(start + CHUNK, n))
        x[part], labels[part] = mixture.draw(part.stop - start)
    x.flush()
    return labels, mixture.draw(TEST)


def anonymous():
    """GiB of memory of our own, without the pages of mapped files."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 2**20


@contextmanager
def stage(name, into):
    started, cpu = time.perf_counter(), time.process_time()
    yield
    into[name] = time.perf_counter() - started
    used, load = time.process_time() - cpu, os.getloadavg()[0]
    print(f"  {name:<34}{into[name]:8.1f} s  (processor {used:6.1f} s, load {load:.1f}, own memory {anonymous():.2f} GiB)")
    sys.stdout.flush()


def report(fit, accuracy):
    print(f"  rank {len(fit.factor.core)}, λ {fit.noise:.3g}, accuracy on {TEST} new samples {accuracy:.2%}")
    print(f"  log marginal likelihood a sample and class {float(fit.log_marginal_likelihood.mean()) / fit.n:.5f}")


def run(net, x, y, new, options, form):
    times = {}
    print(f"{form}, {options.kernel} kernel of {net}")
    with stage("fit", times):
        stats = SharpStatistics.from_sample(x) if form == "sharp" and options.sample else None
        fit = streamed_fit(net, x, y, kernel=options.kernel, form=form, ridge=options.ridge, statistics=stats)
    with stage(f"predict {TEST}", times):
        accuracy = float((fit.predict(new[0]).argmax(1) == new[1]).mean())
    report(fit, accuracy)
    if form == "equivalent" or options.spectrum:
        with stage("10 largest eigenvalues", times):
            top = fit.spectrum(10)
        print("  " + " ".join(f"{value:.6g}" for value in top.tolist()))
    print(f"  fit and predict: {times['fit'] + times[f'predict {TEST}']:.1f} s")
    return fit


def changed(name, fit, other, new):
    found, wanted = fit.predict(new[0]), other.predict(new[0])
    gap = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    likelihood = float(((fit.log_marginal_likelihood - other.log_marginal_likelihood) / fit.n).abs().max())
    moved = float((found.argmax(1) != wanted.argmax(1)).mean())
    print(f"  {name:<34}predictions {gap:.1e}, classes moved {moved:.2%}, log likelihood a sample {likelihood:.1e}")


def check(net, x, y, new, options, fits):
    print("what is changed, relative, by")
    settings = {"kernel": options.kernel, "ridge": options.ridge}
    whole, some = SharpStatistics.from_pass(x), SharpStatistics.from_sample(x)
    base = streamed_fit(net, x, y, statistics=whole, **settings)
    norms = streamed_fit(net, x, y, statistics=SharpStatistics(some.norms2, whole.directions), **settings)
    changed("norms of a sample (sharp)", norms, base, new)
    changed("all statistics of a sample (sharp)", streamed_fit(net, x, y, statistics=some, **settings), base, new)
    for form, fit in fits.items():
        wide = streamed_fit(net, x, y, form=form, dtype=torch.float64, **settings)
        changed(f"float32 ({form})", base if form == "sharp" else fit, wide, new)
    times = {}
    with stage("ten ridges (equivalent)", times):
        streamed_fits(net, x, y, form="equivalent", kernel=options.kernel, ridges=[10.0**-k for k in range(10)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--p", type=int, default=784)
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--kernel", default="conjugate")
    parser.add_argument("--ridge", type=float, default=1e-2)
    parser.add_argument("--forms", nargs="+", default=["equivalent", "sharp"])
    parser.add_argument("--spectrum", action="store_true", help="of the sharp form too: some more passes")
    parser.add_argument("--sample", action="store_true", help="one pass for the sharp form too: statistics of a sample")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--folder", default=None, help="where the temporary file goes; it needs 4np bytes")
    options = parser.parse_args()
    warnings.simplefilter("ignore", nsd.NumericsWarning)
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        free, needed = shutil.disk_usage(folder).free, 4 * options.n * options.p
        if free < 1.2 * needed:
            sys.exit(f"{folder} has {free / 2**30:.1f} GiB free; {1.2 * needed / 2**30:.1f} are needed. Choose --folder.")
        threads, times = torch.get_num_threads(), {}
        print(f"n = {options.n}, p = {options.p}, float32, {threads} threads, {needed / 2**30:.2f} GiB on disk")
        with stage("writing the data", times):
            y, new = write(folder, options.n, options.p)
        x = np.load(folder / "x.npy", mmap_mode="r")
        net = nsd.Implicit(options.activation, 0.2)
        fits = {form: run(net, x, y, new, options, form) for form in options.forms}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"largest resident memory {peak:.2f} GiB, pages of the mapped file included")
        if options.check:
            check(net, x, y, new, options, fits)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
