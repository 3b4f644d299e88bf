"""Claim: kernel ridge on all 60,000 MNIST samples with the exact kernel of a DEQ beats 98 %, on a GPU in seconds.

Prints, for each kernel, the test accuracy, the seconds of each stage and the peak memory.
Run: NOTSODEEP_DATA=… python benchmarks/mnist_ridge.py [--device cuda] [--n 60000] [--activation relu] [--var-a 0.2]
On a CPU the two kernels of 60,000 samples take 29 GB in float32; give a smaller --n there.
"""

import argparse
import time

import torch

import notsodeep as nsd
from notsodeep.data.sources import load


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--n", type=int, default=60_000)
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--var-a", type=float, default=0.2)
    parser.add_argument("--ridges", default="1e-4,1e-3,1e-2", help="shares of the mean diagonal")
    options = parser.parse_args()
    device = torch.device(options.device)
    x, y, x_test, y_test = (part.to(device) for part in samples(options.n))
    net = nsd.Implicit(options.activation, options.var_a)
    for name, kernel in (("CK", nsd.conjugate_kernel), ("NTK", nsd.tangent_kernel)):
        kernel(net, x[:2048]), kernel(net, x[:2048], x_test[:2048])  # compiled before the clock starts
        wait(device)
        started = time.perf_counter()
        gram = kernel(net, x)
        cross = kernel(net, x, x_test)
        wait(device)
        made = time.perf_counter()
        print(f"{options.activation} {name}, n = {len(x)}: kernels (train, and train against test) {made - started:.2f} s")
        targets = torch.nn.functional.one_hot(y, 10).to(gram) - 0.1
        scale, diagonal = float(gram.diagonal().mean()), gram.diagonal().clone()
        for ridge in map(float, options.ridges.split(",")):
            wait(device)
            began = time.perf_counter()
            gram.diagonal().copy_(diagonal + ridge * scale)
            weights = torch.cholesky_solve(targets, torch.linalg.cholesky(gram))
            found = (cross.T @ weights).argmax(1)
            wait(device)
            accuracy = 100.0 * float((found == y_test).double().mean())
            print(f"  ridge {ridge:g}: test accuracy {accuracy:.2f} %, solved in {time.perf_counter() - began:.2f} s")
        del gram, cross
        if device.type == "cuda":
            print(f"  peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
            torch.cuda.reset_peak_memory_stats()


def samples(n):
    """Pixels scaled to a root mean square norm of 1 over the training samples."""
    train, test = load("mnist:split=train", standardise=False), load("mnist:split=test", standardise=False)
    x, x_test = train.x[:n].float(), test.x.float()
    scale = nsd.tau0(x)
    return x / scale, train.y[:n], x_test / scale, test.y


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
