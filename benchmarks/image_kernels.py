"""CK and NTK of convolutional DEQs on digits: time, digits of accuracy, neural-tangents, and whether patches are worth it.

The first table is of all 1,797 digits (8 × 8, 3 × 3 patches, flat) in float32, whole calls, best of several, beside the kernels
of rows by the same library; the error is that against float64 on 200 of them. The second is ridge regression on the classes,
the ridge by leave-one-out, trained on 1,200 and judged on the others: convolutional and fully connected kernels, and the same
activation in one layer without any fixed point. With --peer-python the DEQ (ReLU, not centred) is also computed by
neural-tangents, as so many layers that take the input in again as reach 1e-5 off the diagonal.

Run: python benchmarks/image_kernels.py [--peer-python NT/bin/python]
with NT the environment whose making benchmarks/neural_tangents_peer.py describes.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.data.sources import load

NETS = {
    "ReLU DEQ": nsd.Implicit("relu", 0.2),
    "ReLU DEQ, σ_a² = 1.4": nsd.Implicit("relu", 1.4, 0.2, centre=False),
    "tanh DEQ": nsd.Implicit("tanh", 0.2),
    "GELU DEQ": nsd.Implicit("gelu", 0.2),
    "two layers of ReLU": nsd.Explicit(["relu", "relu"]),
}
RIDGES = [10.0**k for k in range(-6, 2)]
PEER = """
import sys, time, numpy as np, jax
from neural_tangents import stax
path, layers = sys.argv[1], int(sys.argv[2])
x = np.load(path).astype(np.float32).transpose(0, 2, 3, 1)
conv = lambda v: stax.Conv(1, (3, 3), padding="SAME", W_std=float(np.sqrt(v)), b_std=None, parameterization="ntk")
net = stax.serial(conv(0.8), stax.Relu())
for _ in range(layers - 1):
    both = stax.parallel(stax.serial(net, conv(0.2)), conv(0.8))
    net = stax.serial(stax.FanOut(2), both, stax.FanInSum(), stax.Relu())
kernel = stax.serial(net, stax.Flatten(), stax.Dense(1, b_std=None, parameterization="ntk"))[2]
call = jax.jit(lambda x: kernel(x, None, ("nngp", "ntk")))
took = []
for _ in range(4):
    start = time.perf_counter(); found = call(x); found.ntk.block_until_ready(); took.append(time.perf_counter() - start)
np.save(path + ".ntk.npy", np.asarray(found.ntk))
print(min(took))
"""


def best(call, times: int) -> float:
    """The least seconds of a call, after one that compiles."""
    call()
    took = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return min(took)


def error(net: nsd.Convolutional, x: torch.Tensor) -> float:
    """Of float32 against float64, over the largest entry, of both kernels."""
    exact, ours = nsd.exact_kernels(net, x), nsd.exact_kernels(net, x.float())
    pairs = (exact.conjugate, ours.conjugate), (exact.tangent, ours.tangent)
    return max(float((one - other).abs().max() / one.max()) for one, other in pairs)


def accuracy(kernel: torch.Tensor, y: torch.Tensor, train: int) -> float:
    """Of ridge regression on one-hot classes, its ridge relative to the mean diagonal and chosen by leave-one-out."""
    targets = torch.nn.functional.one_hot(y[:train]).double() - 0.1
    values, vectors = torch.linalg.eigh(kernel[:train, :train])
    choices = []
    for ridge in RIDGES:
        inverse = (vectors / (values + ridge * kernel.diagonal().mean())) @ vectors.T
        weights = inverse @ targets
        left_out = targets - weights / inverse.diagonal()[:, None]
        choices.append((float((left_out.argmax(1) == y[:train]).double().mean()), weights))
    weights = max(choices, key=lambda choice: choice[0])[1]
    return float(((kernel[train:, :train] @ weights).argmax(1) == y[train:]).double().mean())


def against_peer(python: str, x: torch.Tensor, layers: int) -> None:
    net = nsd.Convolutional(nsd.Implicit("relu", 0.2, 0.8, centre=False))
    ours = best(lambda: nsd.exact_kernels(net, x.float()), 5)
    tangent = nsd.exact_kernels(net, x).tangent
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "x.npy")
        np.save(path, x.numpy())
        command = [python, "-c", PEER, path, str(layers)]
        theirs = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
        gap = np.abs(np.load(path + ".ntk.npy") - tangent.numpy()) * (1.0 - np.eye(len(x)))
    print(
        f"n = {len(x)}: ours {ours:.2f} s, neural-tangents {theirs:.2f} s with {layers} layers, {theirs / ours:.0f} times; "
        f"they are {gap.max() / float(tangent.max()):.1e} off"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="of an environment with neural-tangents")
    parser.add_argument("--peer-samples", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=7)
    given = parser.parse_args()
    warnings.simplefilter("ignore", nsd.NumericsWarning)
    data = load("digits")
    x = data.x.double().reshape(-1, 1, 8, 8)
    x = x / x.square().mean().sqrt()
    print(f"{len(x)} digits, float32, two kernels\n{'':24s}  images      rows     error")
    for name, net in NETS.items():
        images = nsd.Convolutional(net)
        seconds = best(lambda images=images: nsd.exact_kernels(images, x.float()), 3)
        rows = best(lambda net=net: nsd.exact_kernels(net, x.float().flatten(1) / 8.0), 3)
        print(f"{name:24s} {seconds:6.2f} s  {rows:6.2f} s   {error(images, x[:200]):.0e}")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], data.y[order]
    print("\naccuracy of ridge regression, 1,200 to train on: CK, NTK")
    for name, net in {**NETS, "one layer of ReLU": nsd.Explicit(["relu"])}.items():
        kinds = {"images": (nsd.Convolutional(net), x.float()), "rows": (net, x.float().flatten(1) / 8.0)}
        found = {kind: nsd.exact_kernels(*call) for kind, call in kinds.items()}
        pairs = {kind: (k.conjugate.double(), k.tangent.double()) for kind, k in found.items()}
        shown = (f"{kind} {' '.join(f'{accuracy(k, y, 1200):.4f}' for k in pair)}" for kind, pair in pairs.items())
        print(f"{name:24s} {'   '.join(shown)}")
    if given.peer_python:
        against_peer(given.peer_python, x[: given.peer_samples], given.layers)


if __name__ == "__main__":
    main()
