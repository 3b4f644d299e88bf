"""Does the advice, given without training, agree with training both networks at equal FLOPs?

    python benchmarks/advise.py [--tasks steep6,noise] [--json FILE]

The eleven tasks of the claim, and others that the rule was not made with. With --json every task adds a line to FILE when it is
done, and those that FILE holds are not run again. About a minute a task on one core; MNIST and Fashion-MNIST must be at hand.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep import separation as sep
from notsodeep.advice.race import race
from notsodeep.data.sources import load_split
from notsodeep.separation.targets import Chirps

Part = tuple[Tensor, Tensor]
Draw = Callable[[int, torch.Generator], Part]
TRAINED, TESTED, SEED = 2000, 2000, 0


def of_mixture(mixture: nsd.GaussianMixture) -> Draw:
    return lambda n, generator: mixture.sample(n, generator)


def of_target(target: Any) -> Draw:
    def draw(n: int, generator: torch.Generator) -> Part:
        x = target.sample(n, generator)
        return x, target(x)

    return draw


def of_gaussian(p: int, label: Callable[[Tensor, torch.Generator], Tensor]) -> Draw:
    def draw(n: int, generator: torch.Generator) -> Part:
        x = torch.randn(n, p, generator=generator, dtype=torch.float64)
        return x, label(x, generator)

    return draw


def parity(n: int, generator: torch.Generator) -> Part:
    x = 2.0 * torch.randint(2, (n, 10), generator=generator).double() - 1.0
    return x, x[:, :3].prod(1)


def friedman(n: int, generator: torch.Generator) -> Part:
    x = torch.rand(n, 10, generator=generator, dtype=torch.float64)
    y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, y + torch.randn(n, generator=generator, dtype=torch.float64)


def drawn(draw: Draw, trained: int = TRAINED) -> Callable[[], tuple[Part, Part]]:
    def both() -> tuple[Part, Part]:
        generator = torch.Generator().manual_seed(SEED)
        return draw(trained, generator), draw(TESTED, generator)

    return both


def images(spec: str) -> Callable[[], tuple[Part, Part]]:
    """Of an image set: so many to train on as `spec` says, and as many of the test set as there are, at most."""

    def both() -> tuple[Part, Part]:
        split = load_split(spec, standardise=False)
        rows = torch.randperm(len(split.test.x), generator=torch.Generator().manual_seed(SEED))[:TESTED]
        return (split.train.x, split.train.y), (split.test.x[rows], split.test.y[rows])

    return both


def table(name: str, noise: bool = False) -> Callable[[], tuple[Part, Part]]:
    """One of scikit-learn's, 30 % of it to test on; with labels at random where `noise`."""

    def both() -> tuple[Part, Part]:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")()
        generator = torch.Generator().manual_seed(SEED)
        x, y = torch.from_numpy(bunch.data), torch.from_numpy(bunch.target)
        order = torch.randperm(len(x), generator=generator)
        x, y = x[order], y[torch.randperm(len(y), generator=generator)] if noise else y[order]
        held = round(0.3 * len(x))
        return (x[held:], y[held:]), (x[:held], y[:held])

    return both


def three_classes() -> nsd.GaussianMixture:
    means = torch.zeros(3, 100, dtype=torch.float64)
    means[0, 0] = means[1, 1] = means[2, 2] = 4.0
    return nsd.GaussianMixture(means, torch.ones(3, dtype=torch.float64))


CLAIMED: dict[str, Callable[[], tuple[Part, Part]]] = {
    "mixture": drawn(of_mixture(nsd.GaussianMixture.two_classes(250))),
    "mixture3": drawn(of_mixture(three_classes())),
    "digits": table("digits"),
    "mnist68": images("mnist:n=2000,classes=6/8"),
    "fashion": images("fashion-mnist:n=2000"),
    "steep6": drawn(of_target(sep.Steep(6))),
    "steep10": drawn(of_target(sep.Steep(10))),
    "steep20": drawn(of_target(sep.Steep(20))),
    "sawtooth3": drawn(of_target(sep.Sawtooth(3))),
    "boolean": drawn(of_target(sep.BOOLEAN_TARGETS["f1"])),
    "noise": drawn(of_gaussian(20, lambda x, g: torch.randn(len(x), generator=g, dtype=torch.float64))),
}
FURTHER: dict[str, Callable[[], tuple[Part, Part]]] = {
    "sawtooth1": drawn(of_target(sep.Sawtooth(1))),
    "sawtooth5": drawn(of_target(sep.Sawtooth(5))),
    "steep4": drawn(of_target(sep.Steep(4))),
    "steep14": drawn(of_target(sep.Steep(14))),
    "chirps": drawn(of_target(Chirps())),
    "parity": drawn(parity),
    "threshold": drawn(of_gaussian(20, lambda x, _: (x[:, 0] > 0.0).long())),
    "friedman1": drawn(friedman),
    "diabetes": table("diabetes"),
    "wine": table("wine"),
    "cancer": table("breast_cancer"),
    "digits-noise": table("digits", noise=True),
}


def run(name: str, make: Callable[[], tuple[Part, Part]]) -> dict[str, Any]:
    (x, y), test = make()
    began = time.perf_counter()
    advice = nsd.advise(x, y, seed=SEED)
    advised = time.perf_counter() - began
    found = race(x, y, test=test, generator=torch.Generator().manual_seed(SEED))
    took = {"advice_seconds": advised, "race_seconds": time.perf_counter() - began - advised}
    return {"task": name, "n": len(x), "p": x.shape[1], **took, **advice.with_race(found).to_dict()}


def line(record: dict[str, Any]) -> str:
    rule, raced = record["rule"], record["race"]
    deq, explicit = (f"{raced[k]['mean']:.4f} ± {raced[k]['half_width']:.4f}" for k in ("deq", "explicit"))
    agree = "yes" if rule == raced["outcome"] else "NO"
    title = f"{record['task']} ({record['n']} × {record['p']})"
    return f"{title:24} {rule:9} {raced['outcome']:9} {deq:>18} {explicit:>18}  {agree}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="", help=f"of {', '.join(CLAIMED | FURTHER)}; all by default")
    parser.add_argument("--json", type=Path, help="the file that keeps what is done")
    asked = parser.parse_args()
    names = asked.tasks.split(",") if asked.tasks else list(CLAIMED | FURTHER)
    unknown = [name for name in names if name not in CLAIMED | FURTHER]
    if unknown:
        parser.error(f"there is no task {unknown[0]!r}; there are {', '.join(CLAIMED | FURTHER)}")
    kept = asked.json.read_text().splitlines() if asked.json is not None and asked.json.exists() else []
    done = {record["task"]: record for record in map(json.loads, kept)}
    print(f"{'task':24} {'advice':9} {'training':9} {'DEQ':>18} {'explicit':>18}  agree?")
    for name in names:
        if name not in done:
            done[name] = run(name, (CLAIMED | FURTHER)[name])
            if asked.json is not None:
                with asked.json.open("a") as file:
                    file.write(json.dumps(done[name]) + "\n")
        print(line(done[name]), flush=True)
    for title, group in (("claimed", CLAIMED), ("further", FURTHER)):
        found = [done[name] for name in names if name in group]
        agree = sum(record["rule"] == record["race"]["outcome"] for record in found)
        if found:
            print(f"{title}: {agree} of {len(found)} agree")


if __name__ == "__main__":
    main()
