"""Claim: CK and NTK of the ReLU DEQ, n = 4000, p = 784, float64, in under 3 s on 2 cores.

Prints the best of five runs, and beside it the time of the one matrix product that no method can do without.
Run: python benchmarks/exact_kernels.py [--n 4000] [--activation relu]
"""

import argparse
import time

import torch

import notsodeep as nsd


def best_of(runs, work):
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--p", type=int, default=784)
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.n, options.p, dtype=torch.float64, generator=generator) / options.p**0.5
    x = x.to(options.device)
    net = nsd.Implicit(options.activation, 0.2)

    def finished(work):
        def run():
            work()
            if x.is_cuda:
                torch.cuda.synchronize()

        return run

    product = best_of(5, finished(lambda: x @ x.T))
    kernels = best_of(5, finished(lambda: nsd.exact_kernels(net, x)))
    threads = torch.get_num_threads()
    print(f"{options.activation} DEQ, n = {options.n}, p = {options.p}, float64, {options.device}, {threads} threads")
    print(f"CK and NTK together  {kernels:.3f} s")
    print(f"x @ x.T alone        {product:.3f} s   (ratio {kernels / product:.1f})")


if __name__ == "__main__":
    main()
