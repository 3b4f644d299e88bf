"""Claim: on an H200, a DEQ in mixed precision at least 3 times faster than torchdeq's fastest at the same final residual.

Width and batch 4096, 784 inputs, relative residual 1e-4. The final residual is measured in float64, and torchdeq's tolerance
is also relaxed as far as its final residual still stays within 1e-4. With TF32 on for all, torchdeq does not reach 1e-4.
Run on a machine with CUDA and torchdeq: python benchmarks/mixed_precision.py
"""

import math

import torch
from peer import Peer, peer_version
from timing import best_times

import notsodeep as nsd

P, M, N = 784, 4096, 4096


def main():
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, torchdeq {peer_version()}; m = n = {M}, p = {P}")
    x = torch.randn(N, P, generator=torch.Generator().manual_seed(0)).cuda() / math.sqrt(P)
    for name, phi in (("tanh", torch.tanh), ("relu", torch.relu)):
        full, mixed = build(name, nsd.fixed_points.FullPrecision()), build(name, nsd.fixed_points.MixedPrecision())
        calls = {"ours, mixed": lambda deq=mixed: deq(x), "ours, full": lambda deq=full: deq(x)}
        for solver in ("fixed_point_iter", "anderson"):
            for tol in (1e-4, 3e-4):
                calls[f"torchdeq {solver}, tol {tol:g}"] = theirs(full, x, Peer(phi, solver, "zeros", tol), tf32=False)
            calls[f"torchdeq {solver}, TF32"] = theirs(full, x, Peer(phi, solver, "zeros", 1e-4), tf32=True)
        with torch.no_grad():
            residuals = {label: residual(full, phi, x, call()) for label, call in calls.items()}
            times = best_times(calls)
        print(f"\n{name}: time, true residual")
        for label, value in times.items():
            print(f"  {label}: {value:.2f} ms, {residuals[label]:.1e}")
        within = [label for label in calls if label.startswith("torchdeq") and residuals[label] <= 1e-4]
        best = min(within, key=times.__getitem__)
        print(f"  -> {times[best] / times['ours, mixed']:.2f}x faster than torchdeq's fastest within 1e-4 ({best})")


def build(name, precision):
    net, draw = nsd.Implicit(name, 0.2, centre=False), torch.Generator().manual_seed(1)
    return nsd.DEQ(net, P, M, tol=1e-4, precision=precision, generator=draw, device="cuda")


def theirs(deq, x, peer, tf32):
    def call():
        torch.backends.cuda.matmul.allow_tf32 = tf32
        z = peer.solve(*deq.terms(x), training=False) * deq.form.output
        torch.backends.cuda.matmul.allow_tf32 = False
        return z

    return call


def residual(deq, phi, x, z):
    weight, u = (deq.A.double() * deq.form.recurrent, x.double() @ deq.B.double().T * deq.form.input)
    s = z.double() / deq.form.output
    return float(((phi(s @ weight.T + u) - s).norm(dim=1) / s.norm(dim=1)).max())


if __name__ == "__main__":
    main()
