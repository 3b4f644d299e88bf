"""Claim: tiles on a Dask cluster cost little more than in one process, and have the same bits.

Prints wall and processor seconds of the kernel in memory, on disc from this process, and on disc from the workers of a local
cluster; the processor seconds do not depend on who else uses the machine.
Run: python benchmarks/cluster.py [--n 4000] [--workers 2]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from distributed import Client, LocalCluster

import notsodeep as nsd
from notsodeep.kernels.stored.write import write_kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--p", type=int, default=784)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--activation", default="relu")
    options = parser.parse_args()
    x = torch.randn(options.n, options.p, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x /= options.p**0.5
    net = nsd.Implicit(options.activation, 0.2)

    def timed(name, work, spent=time.process_time):
        wall, processor = time.perf_counter(), spent()
        found = work()
        print(f"{name:28} {time.perf_counter() - wall:7.2f} s   {spent() - processor:7.2f} s of processor")
        return found

    cluster = LocalCluster(options.workers, processes=True, threads_per_worker=1, dashboard_address=":0")
    with tempfile.TemporaryDirectory() as folder, cluster, Client(cluster) as client:

        def everywhere():
            return time.process_time() + sum(client.run(time.process_time).values())

        print(f"{options.activation} DEQ, n = {options.n}, p = {options.p}, {torch.get_num_threads()} threads")
        timed("in memory", lambda: nsd.conjugate_kernel(net, x))
        here = timed("on disc, this process", lambda: write_kernels(net, x, Path(folder) / "here"))
        write_kernels(net, x[:10], Path(folder) / "warm", scheduler=client)  # workers that have imported the package
        name = f"on disc, {options.workers} workers"
        found = timed(name, lambda: write_kernels(net, x, Path(folder) / "there", scheduler=client), everywhere)
        print("same bits:", np.array_equal(found["conjugate"][:], here["conjugate"][:]))


if __name__ == "__main__":
    main()
