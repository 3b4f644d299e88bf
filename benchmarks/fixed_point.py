"""Claim: a DEQ layer, forward and with its exact implicit gradient, faster than torchdeq's at the same tolerance, on a CPU.

Width 1024, 784 inputs, batch 512, float32, relative residual 1e-4, σ_a² = 0.2, ratios in one run. Ours in full precision and
in mixed (the default, where the processor has bfloat16 products). torchdeq with each of its solvers, from zeros (as it is used)
and from φ(u) (as ours starts), its implicit gradient as a function and as a hook; the fastest counts. Beside it the bare loop
of as many products. Run, with torchdeq installed: python benchmarks/fixed_point.py [width] [batch]
"""

import math
import sys

import torch
from peer import SOLVERS, Peer, peer_version
from timing import best_times
from torch.nn import functional

import notsodeep as nsd

TOL, P = 1e-4, 784
OURS = {"ours, full precision": nsd.fixed_points.FullPrecision(), "ours": nsd.fixed_points.MixedPrecision()}


class Case:
    """One activation: the same weights and inputs for everybody."""

    def __init__(self, name, phi, width, batch):
        draw = torch.Generator().manual_seed(0)
        self.phi, self.x = phi, torch.randn(batch, P, generator=draw) / math.sqrt(P)
        net = nsd.Implicit(name, 0.2, centre=False)
        adjoint = nsd.ImplicitAdjoint(tol=TOL)
        seed = lambda: torch.Generator().manual_seed(1)  # noqa: E731
        self.deqs = {
            label: nsd.DEQ(net, P, width, tol=TOL, adjoint=adjoint, precision=precision, generator=seed())
            for label, precision in OURS.items()
        }
        self.deq = self.deqs["ours, full precision"]
        self.exact = nsd.DEQ(net, P, width, tol=1e-12, adjoint=nsd.ImplicitAdjoint(tol=1e-12)).double()
        self.exact.load_state_dict({key: value.double() for key, value in self.deq.state_dict().items()})
        self.evaluations = self.deq.solve(self.x).evaluations

    def run(self, solve, module, training):
        with torch.set_grad_enabled(training):
            z = solve()
            if training:
                module.zero_grad()
                z.sum().backward()
        return z

    def ours(self, label, training):
        return lambda: self.run(lambda: self.deqs[label](self.x), self.deqs[label], training)

    def theirs(self, peer, training):
        def solve():
            weight, u = self.deq.terms(self.x)
            return peer.solve(weight, u, training) * self.deq.form.output

        return lambda: self.run(solve, self.deq, training)

    @torch.no_grad()
    def bare(self):
        weight, u = self.deq.terms(self.x)
        z = self.phi(u)
        for _ in range(self.evaluations):
            z = self.phi(functional.linear(z, weight) + u)
        return z

    @torch.no_grad()
    def residual(self, z):
        weight, u = self.exact.terms(self.x.double())
        s = z.double() / self.deq.form.output
        return float(((self.phi(s @ weight.T + u) - s).norm(dim=1) / s.norm(dim=1)).max())

    def gradient_error(self, call, module):
        call()
        wanted = self.exact.A.grad
        return float((module.A.grad - wanted).norm() / wanted.norm())


def main(width=1024, batch=512):
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, torchdeq {peer_version()}")
    print(f"m = {width}, n = {batch}, p = {P}")
    starts = ("zeros", "phi(u)")
    for name, phi in (("tanh", torch.tanh), ("relu", torch.relu)):
        case = Case(name, phi, width, batch)
        case.exact(case.x.double()).sum().backward()
        peers = {f"torchdeq {s} from {start}": Peer(phi, s, start, TOL) for s in SOLVERS for start in starts}
        hooks = {
            f"torchdeq fixed_point_iter from {start}, hook": Peer(phi, SOLVERS[0], start, TOL, hook=True) for start in starts
        }
        forward = {label: case.ours(label, False) for label in OURS} | {
            label: case.theirs(p, False) for label, p in peers.items()
        }
        both = {label: case.ours(label, True) for label in OURS} | {
            label: case.theirs(p, True) for label, p in (peers | hooks).items()
        }
        print(f"\n{name}, {case.evaluations} evaluations: largest true residual; gradient's distance from the exact one")
        for label, call in both.items():
            error = case.gradient_error(call, case.deqs.get(label, case.deq))
            print(f"  {label}: {case.residual(forward.get(label, call)()):.1e}; {error:.1e}")
        report("forward", best_times({**forward, "bare loop": case.bare}, rounds=25))
        report("forward + backward", best_times(both, rounds=10))


def report(what, times):
    for label, value in times.items():
        print(f"  {what}, {label}: {value:.1f} ms")
    peer = min((label for label in times if label.startswith("torchdeq")), key=times.__getitem__)
    usual = min((label for label in times if "from zeros" in label), key=times.__getitem__)
    for label in OURS:
        print(
            f"  -> {what}, {label}: {times[usual] / times[label]:.2f}x of {usual}, {times[peer] / times[label]:.2f}x of {peer}"
        )
    if "bare loop" in times:
        print(f"  -> full precision / bare loop: {times['ours, full precision'] / times['bare loop']:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
