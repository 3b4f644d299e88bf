"""Kernel ridge by conjugate gradients: how many products does each preconditioner save?

    python benchmarks/preconditioners.py [--n 4000] [--data gmm,digits,mnist] [--ridges 1e-1,1e-2,1e-3]

Iterations to a relative residual of 1e-8 on the centred one-hot labels, with no preconditioner, the sharp kernel, randomised
Nyström of the same rank, one whose set-up costs as many operations, and the sharp kernel with Nyström on what it leaves.
Seconds are of set-up and solution on tiles that are kept; where they do not fit, every product adds the seconds of a pass over
the kernel, and `total` adds them up. A Nyström approximation takes one such pass, the sharp kernel none. MNIST must be at hand.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.data import load
from notsodeep.kernels.exact.operator import TiledKernel
from notsodeep.kernels.exact.preconditioners import Nystrom, Plain, Preconditioning, Sharp, SharpNystrom
from notsodeep.linalg.conjugate_gradients import conjugate_gradients

MOST, TOLERANCE, RANK = 1000, 1e-8, 400


@dataclass(frozen=True)
class Row:
    name: str
    rank: int
    iterations: str
    set_up: float
    solve: float
    total: float


def samples(name: str, n: int) -> tuple[Tensor, Tensor]:
    found = load({"gmm": f"gmm:n={n},p=400", "digits": "digits", "mnist": f"mnist:n={n}"}[name])
    onehot = torch.nn.functional.one_hot(found.y.long() - int(found.y.min())).double()
    return found.x.double(), onehot - onehot.mean(0)


def same_cost(n: int, raw: int) -> int:
    """The rank r at which Nyström's 2n²r + 6nr² operations are the 4nR² + 10R³ of the sharp kernel's QR and small spectrum."""
    wanted = 4 * n * raw**2 + 10 * raw**3
    return next(r for r in range(1, n) if 2 * n**2 * r + 6 * n * r**2 >= wanted or r >= n // 2)


def measure(name: str, operator: TiledKernel, right: Tensor, choice: Preconditioning, passes: int, seconds: float) -> Row:
    started = time.perf_counter()
    by = choice.of(operator)
    made = time.perf_counter()
    found = conjugate_gradients(operator.matvec, right, by, tolerance=TOLERANCE, most=MOST)
    done = time.perf_counter()
    rank = sum(getattr(part, "rank", 0) for part in (by, getattr(by, "first", None), getattr(by, "second", None)))
    total = done - started + (found.iterations + 1 + passes) * seconds
    return Row(name, rank, f"{found.iterations}{'' if found.converged else '+'}", made - started, done - made, total)


def rows(operator: TiledKernel, right: Tensor, raw: int, seconds: float) -> list[Row]:
    n = operator.shape[0]
    sharp = measure("sharp", operator, right, Sharp(), 0, seconds)
    return [
        measure("none", operator, right, Plain(), 0, seconds),
        sharp,
        measure("Nyström, same rank", operator, right, Nystrom(max(1, sharp.rank)), 1, seconds),
        measure("Nyström, same cost", operator, right, Nystrom(same_cost(n, raw)), 1, seconds),
        measure("sharp, 30 directions", operator, right, Sharp(30), 0, seconds),
        measure(f"sharp + Nyström {RANK}", operator, right, SharpNystrom(RANK), 1, seconds),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--data", default="gmm,digits,mnist")
    parser.add_argument("--activations", default="relu,tanh")
    parser.add_argument("--ridges", default="1e-1,1e-2,1e-3")
    asked = parser.parse_args()
    print("| data | φ | kernel | ridge | preconditioner | rank | iterations | set-up s | solve s | total s, tiles not kept |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in asked.data.split(","):
        x, right = samples(name, asked.n)
        for phi in asked.activations.split(","):
            for kernel in ("conjugate", "tangent"):
                net = nsd.Implicit(phi, 0.2)
                plain = TiledKernel(net, x, kernel, keep=True)
                started = time.perf_counter()
                plain.matvec(right)
                seconds = time.perf_counter() - started
                raw = nsd.sharp_kernel(net, x, kernel).rank
                for ridge in map(float, asked.ridges.split(",")):
                    operator = plain.add_ridge(ridge * float(plain.trace()) / len(x))
                    for row in rows(operator, right, raw, seconds):
                        print(
                            f"| {name} | {phi} | {kernel} | {ridge:g} | {row.name} | {row.rank} | {row.iterations} "
                            f"| {row.set_up:.1f} | {row.solve:.1f} | {row.total:.0f} |",
                            flush=True,
                        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
