"""Claim: compiled, a trained DEQ keeps ≥ 99 % of its answers (R² within .003) at ≥ 5 times its speed, and scores no less than a
plain network of equal cost, up to the spread over the seeds; where that cannot be had, the verdict says so.

1. digits: the classes of 8 × 8 images.
2. table: a regression of ten columns, Friedman's function with noise.
3. monotone: digits by a monotone operator network of others' code, z = relu(W z + U x + b), trained in plain torch.
4. fashion: Fashion-MNIST from $NOTSODEEP_DATA, so many of its images; compiled in ≤ 3 minutes on two cores.
Every seed draws its own weights and split: a part to train on and compile with, one that judges the ways (`test=`), and one
that nobody has seen, on which this table is measured. The plain network is the better of two: the best of the frontier's that
costs no more, and a ReLU network of two layers of the compiled network's cost, trained like the DEQ.
Run: PYTHONPATH=src python benchmarks/compiled.py [digits table monotone fashion] [--seeds 5] [--budget 20] [--fashion 60000]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import notsodeep as nsd
from notsodeep.data import load, load_split
from notsodeep.models.training.objective import Batches, score
from notsodeep.models.training.readout import fit_readout, in_batches, scale_to_logits

KEEP, R2_MARGIN, FASTER, SECONDS = 0.99, 0.003, 5.0, 180.0


@dataclass(frozen=True)
class Split:
    """Samples to train on and compile with, samples that judge, and unseen ones."""

    train: tuple[Tensor, Tensor]
    judge: tuple[Tensor, Tensor]
    unseen: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, x: Tensor, y: Tensor, seed: int, judge: int, unseen: int) -> Split:
        """At random."""
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        parts = order.split([len(x) - judge - unseen, judge, unseen])
        return cls(*((x[rows], y[rows]) for rows in parts))

    @property
    def classes(self) -> bool:
        return not self.train[1].is_floating_point()

    @property
    def outputs(self) -> int:
        return int(self.train[1].max()) + 1 if self.classes else 1


@dataclass(frozen=True)
class Task:
    """Data, a DEQ trained on them, and how long and at which rate that and its plain rival train."""

    split: Callable[[int], Split]
    trained: Callable[[Split, int], nn.Module]
    epochs: int
    rate: float = 1e-2


def digits(seed: int) -> Split:
    data = load("digits")
    assert data.y is not None
    return Split.of(data.x.float(), data.y, seed, 300, 400)


def table(seed: int, n: int = 6000) -> Split:
    """y = 10 sin(π x₁x₂) + 20 (x₃ − ½)² + 10 x₄ + 5 x₅ + noise, five columns more that say nothing; all standardised."""
    draw = torch.Generator().manual_seed(1000 + seed)
    x = torch.rand(n, 10, generator=draw)
    y = 10.0 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20.0 * (x[:, 2] - 0.5) ** 2 + 10.0 * x[:, 3] + 5.0 * x[:, 4]
    y = y + torch.randn(n, generator=draw)
    return Split.of((x - 0.5) * math.sqrt(12.0 / 10.0), ((y - y.mean()) / y.std())[:, None], seed, 1000, 1000)


def fashion(seed: int, n: int) -> Split:
    """n training images; the test images judge, and are unseen, by halves."""
    data = load_split("fashion-mnist")
    (x, y), (test_x, test_y) = ((part.x, part.y) for part in (data.train, data.test))
    draw = torch.Generator().manual_seed(seed)
    rows, order = torch.randperm(len(x), generator=draw)[:n], torch.randperm(len(test_x), generator=draw)
    judge, unseen = order.chunk(2)
    return Split((x[rows], y[rows]), (test_x[judge], test_y[judge]), (test_x[unseen], test_y[unseen]))


def fitted(network: nn.Module, split: Split, epochs: int, rate: float, seed: int) -> nn.Module:
    """Trained as a whole, from a readout in closed form."""
    draw = torch.Generator().manual_seed(seed)
    batches = Batches(*split.train, 128, draw)
    fit_readout(network, batches)
    if split.classes:
        scale_to_logits(network, batches)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    nsd.fit(network, batches, epochs, optimiser=optimiser, progress=False)
    return network.eval()


def own_task(split: Callable[[int], Split], name: str, width: int, epochs: int, rate: float = 1e-2) -> Task:
    """A DEQ of this library."""

    def trained(split: Split, seed: int) -> nn.Module:
        options = {"bias": True, "readout_bias": True, "generator": torch.Generator().manual_seed(seed)}
        deq = nsd.DEQ(nsd.Implicit(name, 0.2), split.train[0].shape[1], width, split.outputs, **options)
        return fitted(deq, split, epochs, rate, seed)

    return Task(split, trained, epochs, rate)


class Monotone(nn.Module):
    """z = relu(W z + U x + b), W = (1 − m) I − AᵀA + B − Bᵀ, as its authors' code would have it: no word of this library."""

    def __init__(self, inputs: int, width: int, outputs: int, draw: torch.Generator, m: float = 0.2) -> None:
        super().__init__()

        def weight(rows: int, columns: int, scale: float) -> nn.Parameter:
            return nn.Parameter(scale / math.sqrt(columns) * torch.randn(rows, columns, generator=draw))

        self.a, self.b, self.into = weight(width, width, 0.5), weight(width, width, 0.7), weight(width, inputs, 1.0)
        self.bias, self.readout = nn.Parameter(torch.zeros(width)), nn.Linear(width, outputs)
        with torch.no_grad():
            self.readout.weight.copy_(weight(outputs, width, 1.0))
        self.m = m

    def weight(self) -> Tensor:
        return (1.0 - self.m) * torch.eye(len(self.a)) - self.a.mT @ self.a + self.b - self.b.mT

    def forward(self, x: Tensor, steps: int = 60, followed: int = 4) -> Tensor:
        """Forward-backward steps, the last few with a gradient."""
        weight, u = self.weight(), functional.linear(x, self.into, self.bias)
        with torch.no_grad():
            size = float(torch.linalg.matrix_norm(torch.eye(len(weight)) - weight, 2))
        alpha = min(1.0, self.m / size**2 * 4.0)
        z = torch.zeros_like(u)
        for k in range(steps + followed):
            with torch.set_grad_enabled(torch.is_grad_enabled() and k >= steps):
                z = torch.relu(z + alpha * (functional.linear(z, weight) + u - z))
        return self.readout(z)


def monotone_of_others(width: int, epochs: int) -> Callable[[Split, int], nn.Module]:
    def trained(split: Split, seed: int) -> nn.Module:
        draw, (x, y) = torch.Generator().manual_seed(seed), split.train
        network = Monotone(x.shape[1], width, split.outputs, draw)
        optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
        x = 8.0 * x  # numbers of about unit size, as such code takes them
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=draw).split(64):
                optimiser.zero_grad()
                functional.cross_entropy(network(x[rows]), y[rows]).backward()
                optimiser.step()
        with torch.no_grad():
            W, U, b, R, c = network.weight(), 8.0 * network.into, network.bias, network.readout.weight, network.readout.bias
        return nsd.DEQ.from_weights(W, U, b, R, c, "relu", x=split.train[0])

    return trained


def plain_of_cost(flops: float, features: int, outputs: int, seed: int) -> nn.Module:
    """A ReLU network of two layers with at most so many FLOPs per sample: 2 (p h + h² + h K)."""
    row = features + outputs
    width = max(1, int((math.sqrt(row**2 + 2.0 * flops) - row) / 2.0))
    draw = torch.Generator().manual_seed(100 + seed)
    options = {"bias": True, "readout_bias": True, "generator": draw}
    return nsd.ENN(nsd.Explicit(["relu", "relu"]), features, width, outputs, **options)


@dataclass(frozen=True)
class Row:
    """One seed: scores and what is kept on unseen samples, and what the frontier measured on those that judged."""

    deq: float
    network: float
    plain: float
    judged: float
    kept: float
    faster: float
    flops: float
    seconds: float
    way: str
    verdict: str


def measured(task: Task, seed: int, budget: float) -> Row:
    split = task.split(seed)
    deq = task.trained(split, seed)
    (x, y), (unseen, truth) = split.train, split.unseen
    began = time.perf_counter()
    compiled = nsd.compile_deq(deq, x, y, keep=KEEP, budget=budget, test=split.judge, progress=False)
    seconds = time.perf_counter() - began
    frontier = compiled.frontier
    assert frontier is not None
    first, way = frontier.ways[0], frontier.faithful
    wanted, out = in_batches(deq, unseen), in_batches(way.module, unseen)
    if split.classes:
        kept = float((out.argmax(1) == wanted.argmax(1)).double().mean())
    else:
        kept = 1.0 - float((out - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean())
    rivals = [each.module for each in frontier.ways if each.plain and each.mflop <= 1.001 * way.mflop]
    rivals.append(fitted(plain_of_cost(1e6 * way.mflop, x.shape[1], split.outputs, seed), split, task.epochs, task.rate, seed))
    scores = [score(in_batches(network, unseen), truth) for network in (deq, way.module, *rivals)]
    costs = (first.milliseconds / way.milliseconds, first.mflop / way.mflop)
    return Row(*scores[:2], max(scores[2:]), way.kept, kept, *costs, seconds, way.name, frontier.verdict)


def claim(what: str, held: bool, numbers: str) -> None:
    print(f"  {'held' if held else 'NOT HELD'}: {what}: {numbers}")


def report(name: str, task: Task, seeds: int, budget: float) -> None:
    print(f"\n{name}\n  seed     DEQ  compiled   plain  judged    kept  faster  FLOPs÷  compile  deployed", flush=True)
    rows = []
    for seed in range(seeds):
        row = measured(task, seed, budget)
        rows.append(row)
        scores = f"{row.deq:.4f}    {row.network:.4f}  {row.plain:.4f}  {row.judged:6.1%}  {row.kept:6.1%}"
        costs = f"{row.faster:5.1f}×  {row.flops:5.1f}×  {row.seconds:5.0f} s"
        print(f"  {seed:4d}  {scores}  {costs}  {row.way}", flush=True)
    deq, own, plain, judged, kept, faster, seconds = (
        torch.tensor([getattr(row, field) for row in rows], dtype=torch.float64)
        for field in ("deq", "network", "plain", "judged", "kept", "faster", "seconds")
    )
    print(f"  last verdict: {rows[-1].verdict}")
    if task.split(0).classes:
        numbers = f"mean {kept.mean():.2%}, least {kept.min():.2%}"
        claim(f"keeps ≥ {KEEP:.0%} of the answers that judged it", bool((judged >= KEEP).all()), f"least {judged.min():.2%}")
        claim(f"keeps ≥ {KEEP:.0%} of the unseen answers, on average", float(kept.mean()) >= KEEP, numbers)
    else:
        gap = deq - own
        numbers = f"mean loss {gap.mean():+.4f}, largest {gap.max():+.4f}"
        claim(f"R² within {R2_MARGIN}", bool((gap <= R2_MARGIN).all()), numbers)
    numbers = f"least {faster.min():.1f}, median {faster.median():.1f}"
    claim(f"≥ {FASTER:g} times faster", bool((faster >= FASTER).all()), numbers)
    spread = float((own - plain).std()) if len(rows) > 1 else 0.0
    numbers = f"{own.mean():.4f} against {plain.mean():.4f}, difference {(own - plain).mean():+.4f}, its spread {spread:.4f}"
    claim("no less than plain networks of its cost", float((own - plain).mean()) >= -spread, numbers)
    claim(f"compiled in ≤ {SECONDS:g} s", bool((seconds <= SECONDS).all()), f"at most {seconds.max():.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("digits", "table", "monotone", "fashion")
    parser.add_argument("tasks", nargs="*", default=list(names), help=", ".join(names))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of trainings in a compilation")
    parser.add_argument("--fashion", type=int, default=10_000, help="training images of Fashion-MNIST, up to 60,000")
    parser.add_argument("--width", type=int, default=512, help="units of its DEQ")
    given = parser.parse_args()
    tasks = {
        "digits": own_task(digits, "relu", 128, 30),
        "table": own_task(table, "tanh", 128, 30, 5e-2),
        "monotone": Task(digits, monotone_of_others(80, 12), 30),
        "fashion": own_task(lambda seed: fashion(seed, given.fashion), "relu", given.width, 5),
    }
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, budget {given.budget:g} s")
    for name in given.tasks:
        report(name, tasks[name], given.seeds, given.budget)


if __name__ == "__main__":
    main()
