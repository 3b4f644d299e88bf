"""Claim: real implicit layers, forward ≥ 1.15× and forward + backward ≥ 1.2× of torchdeq's fastest solver, at equal true
residual, and with no more memory than torchdeq's Anderson.

The layers of tests/clients in realistic sizes, float32, from the same start. torchdeq with each of its solvers, at the
loosest tolerance at which the true residual of its state is within the client's, its exact implicit gradient as a function
and as a hook; ours with the client's solver and with the default one. The calls take turns in one run. Gradient errors are
relative to float64's at 1e-9. Memory is the highest sum
of live allocations in a forward solve, see live_memory.py. One thread.
Run, with torchdeq installed: PYTHONPATH=src python benchmarks/clients.py [rounds] [part of a client's name]
"""

import sys
from dataclasses import replace

import torch
from live_memory import peak_memory
from peer import peer_version
from timing import best_times
from torch.utils import _pytree as pytree
from torchdeq_layers import CLIENTS, all_tuned, draw

import notsodeep as nsd

MAX_STEPS = 250
FORWARD, BOTH = 1.15, 1.2


class Case:
    """One client: the same layer, start and cotangent for everybody."""

    def __init__(self, client):
        self.client, self.problem = client, client.large(torch.float32, 0)
        generator = torch.Generator().manual_seed(1)
        self.cotangents = [draw(tuple(t.shape), 1.0, generator) for t in pytree.tree_leaves(self.problem.z0)]
        found = all_tuned(client, self.problem, MAX_STEPS, loosest=3.5)
        self.peers = {f"torchdeq {solver}": t.setting for solver, t in found.items() if t is not None}
        late = f"not within tolerance in {MAX_STEPS} steps"
        self.failures = {f"torchdeq {solver}": late for solver, t in found.items() if t is None}
        self.evaluations = {f"torchdeq {solver}": t.evaluations for solver, t in found.items() if t is not None}
        self.ours = {}
        for label, one in {"ours": client, "ours, default solver": by_default(client)}.items():
            try:
                with torch.no_grad():
                    self.evaluations[label] = one.solve(self.problem).evaluations
            except nsd.NotConverged as error:
                self.failures[label] = f"{error.reason} after {error.steps} steps"
            else:
                self.ours[label] = one

    def solve(self, label, training):
        if label in self.ours:
            return self.ours[label].solve(self.problem).value
        return self.settings(training)[label].solve(self.client, self.problem, training)

    def settings(self, training):
        hooks = {f"{label}, hook": replace(setting, hook=True) for label, setting in self.peers.items()}
        return self.peers | (hooks if training else {})

    def forward(self, label):
        def call():
            with torch.no_grad():
                return self.solve(label, False)

        return call

    def both(self, label):
        def call():
            leaves = pytree.tree_leaves(self.solve(label, True))
            # The weights of a monotone layer are made from its parameters once, and used again in the next round.
            return torch.autograd.grad(leaves, self.problem.parameters, self.cotangents, retain_graph=True)

        return call

    def exact_gradient(self):
        problem = self.client.large(torch.float64, 0)
        leaves = pytree.tree_leaves(replace(self.client, max_steps=2000).solve(problem, 1e-9).value)
        return torch.autograd.grad(leaves, problem.parameters, [g.double() for g in self.cotangents])

    def report(self, rounds):
        shape = ", ".join(str(tuple(t.shape)) for t in pytree.tree_leaves(self.problem.z0))
        print(f"\n{self.client.name}: {shape}, tolerance {self.client.tol:.0e}, ours {self.client.solver}", flush=True)
        for label, why in self.failures.items():
            print(f"  {label}: {why}")
        exact = self.exact_gradient()
        labels, training = [*self.ours, *self.peers], [*self.ours, *self.settings(True)]
        for label in training:
            error = distance(self.both(label)(), exact)
            if label not in labels:
                print(f"  {label}: gradient's error {error:.1e}")
                continue
            residual = self.client.residual(self.problem, self.forward(label)())
            print(
                f"  {label}: {self.evaluations[label]} evaluations, true residual {residual:.1e}, gradient's error {error:.1e}"
            )
        forward = best_times({label: self.forward(label) for label in labels}, rounds)
        both = best_times({label: self.both(label) for label in training}, rounds)
        measured = [label for label in labels if label in {"ours", "torchdeq anderson"}]
        memory = {label: peak_memory(self.forward(label)) for label in measured}
        return (
            ratio("forward", forward, FORWARD),
            ratio("forward + backward", both, BOTH),
            ratio("memory", memory, 1.0, "MiB"),
        )


def by_default(client):
    return replace(client, solver=nsd.Anderson(), adjoint_solver=nsd.Anderson())


def distance(found, wanted):
    found, wanted = (torch.cat([g.double().flatten() for g in grads]) for grads in (found, wanted))
    return float((found - wanted).norm() / wanted.norm())


def ratio(what, values, wanted, unit="ms"):
    """Of the peer's best to our best; None where one of them is missing."""
    print("  " + what + ": " + "; ".join(f"{label} {value:.1f} {unit}" for label, value in values.items()))
    ours, peers = ([label for label in values if label.startswith(who)] for who in ("ours", "torchdeq"))
    if not (ours and peers):
        return None
    mine, best = (min(labels, key=values.__getitem__) for labels in (ours, peers))
    times = values[best] / values[mine]
    print(f"  -> {what}, {mine}: {times:.2f}x of {best}{'' if times >= wanted else f', less than {wanted}'}")
    return times


def main(rounds=3, part=""):
    torch.set_num_threads(1)  # with more, a busy machine times threads that wait for each other
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, torchdeq {peer_version()}")
    table = {}
    for client in CLIENTS:
        if part not in client.name:
            continue
        table[client.name] = Case(client).report(int(rounds))
    print(f"\ntorchdeq's best over ours: forward (≥ {FORWARD}), forward + backward (≥ {BOTH}), memory (≥ 1)")
    for name, ratios in table.items():
        print(f"  {name}: " + ", ".join("no peer" if r is None else f"{r:.2f}" for r in ratios))


if __name__ == "__main__":
    main(*sys.argv[1:])
