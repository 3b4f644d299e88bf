"""L7: all weights trained, step by step: a DEQ beside its closest twins. Ours; Ref: docs/theory.md, section 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from notsodeep.data.sources import load
from notsodeep.errors import BadInput
from notsodeep.kernels.exact.kernels import tangent_kernel
from notsodeep.matching.design import design
from notsodeep.matching.gains import gained
from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values, from_config
from notsodeep.papers.records import Record, of_one_run, where
from notsodeep.papers.statistics import Interval, format_number, mean
from notsodeep.theory.architecture import Explicit, Implicit
from notsodeep.theory.statistics import tau0

TITLES = {
    "both": "the twin with both kernels",
    "conjugate": "the twin with the conjugate kernel alone",
    "plain": "the plain network with its best gains",
}
_CLASSES = "6/8"
_MARKS = (1, 3)  # of each decade: the steps after which outputs are compared
_SAMPLES_FOR_GAINS = 300
_SMALL = 0.01  # of the outputs' norm: "the same training", at infinite width
_AS_NEAR = 1.1  # times the distance of two draws: "as near as another draw"


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings that a config and its units share: `steps` of full-batch gradient descent on `train` samples; the designs see
    `design` others."""

    data: str = "mnist"
    var_a: float = 0.2
    train: int = 200
    test: int = 400
    design: int = 1500
    steps: int = 1000


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    activations: tuple[str, ...] = ("tanh", "relu")
    width: int = 4096
    seeds: int = 3


@dataclass(frozen=True, kw_only=True)
class InfiniteUnit(Training):
    """The limit of infinite width, by exact tangent kernels."""

    activation: str
    kind: str = "infinite"
    seed: int = 0

    @property
    def cost(self) -> float:
        return 2.0 + 15.0 * self.design / 1500


@dataclass(frozen=True, kw_only=True)
class FiniteUnit(Training):
    """Networks of `width` units, one draw of each but two of the DEQ."""

    activation: str
    width: int
    seed: int
    kind: str = "width"

    @property
    def cost(self) -> float:
        return float(self.train / 200 * self.steps / 1000 * (25.0 + 50.0 * (self.width / 512) ** 1.9))


Unit = InfiniteUnit | FiniteUnit


def units(config: Config) -> list[Unit]:
    """Infinite width first."""
    return [
        *(from_config(InfiniteUnit, config, activation=activation) for activation in config.activations),
        *(
            from_config(FiniteUnit, config, activation=activation, seed=seed)
            for activation in config.activations
            for seed in range(config.seeds)
        ),
    ]


@dataclass(frozen=True, eq=False)
class Task:
    """Samples of two classes in float64, y = ±1, the networks that train on them, and the rate η for all."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    radius: float
    deq: Implicit
    rivals: Mapping[str, Explicit]
    rate: float


@cache
def _task(data: str, activation: str, var_a: float, train: int, test: int, design_on: int) -> Task:
    """The networks are designed on samples that have no part in the training; η = 1/λ_max of the DEQ's tangent kernel."""
    found = load(f"{data}:n={train + test + design_on},classes={_CLASSES},seed=0")
    if found.y is None or len(found.x) < train + test + design_on:
        raise BadInput(f"{data!r} has not {train + test + design_on} samples of the classes {_CLASSES}.")
    x, test_x, rest = found.x.double().split([train, test, design_on])
    y = torch.where(found.y[:train] == found.y.min(), 1.0, -1.0).double()
    net, radius = Implicit(activation, var_a), tau0(rest)
    both = design(net, rest, tau0=radius, match="both").explicit
    plain = Explicit([net.phi] * both.depth).centred(radius)
    rivals = {
        "both": both,
        "conjugate": design(net, rest, tau0=radius).explicit,
        "plain": gained(plain, net, rest[:_SAMPLES_FOR_GAINS], radius),
    }
    largest = torch.linalg.eigvalsh(tangent_kernel(net, x, tau0=radius))[-1]
    return Task(x, y, test_x, radius, net, rivals, 1.0 / float(largest))


def task_of(unit: Unit) -> Task:
    return _task(unit.data, unit.activation, unit.var_a, unit.train, unit.test, unit.design)


def marks(steps: int) -> list[int]:
    """The steps after which outputs are compared: 1, 3, 10, 30 … and the last."""
    some = (mark * 10**decade for decade in range(len(str(steps))) for mark in _MARKS)
    return [*(step for step in some if step < steps), steps]


def run(unit: Unit, device: torch.device) -> Values:
    """Relative distances ‖g_t − f_t‖/‖f_t‖ of a network's test outputs g_t from the DEQ's f_t, both without those at the start.

    At infinite width of each rival; at a finite one of each rival and of the limit, on average from two draws of the DEQ, and
    of these two from each other.
    """
    task, after = task_of(unit), marks(unit.steps)
    limit, left = in_the_limit(task, task.deq, after)
    shared = {"steps": after, "rate": task.rate, "left": left, "networks": {n: str(net) for n, net in task.rivals.items()}}
    if isinstance(unit, InfiniteUnit):
        return shared | {"apart": {n: _apart(in_the_limit(task, net, after)[0], limit) for n, net in task.rivals.items()}}
    drawn = {name: trained(module.to(device), task, after) for name, module in _modules(unit, task).items()}
    one, other = drawn.pop("deq"), drawn.pop("deq_again")
    apart = {name: _averaged(_apart(found, one), _apart(found, other)) for name, found in (drawn | {"limit": limit}).items()}
    return shared | {"apart": {"deq_again": _averaged(_apart(other, one), _apart(one, other))} | apart}


def in_the_limit(task: Task, net: Implicit | Explicit, after: Sequence[int]) -> tuple[list[Tensor], float]:
    """f_t − f_0 = Θ' Θ⁻¹ (1 − (1 − ηΘ)^t) y at the test samples, and ‖(1 − ηΘ)^t y‖/‖y‖ after the last step.

    Θ is the tangent kernel of the training samples, Θ' that of the test samples with them.
    """
    radius = task.radius if isinstance(net, Implicit) else None
    values, vectors = torch.linalg.eigh(tangent_kernel(net, task.x, tau0=radius))
    across, along = tangent_kernel(net, task.test_x, task.x, tau0=radius) @ vectors, vectors.T @ task.y
    shrunk = [(1.0 - task.rate * values).pow(t) for t in after]
    left = torch.linalg.vector_norm(shrunk[-1] * along) / torch.linalg.vector_norm(along)
    return [across @ ((1.0 - part) / values * along) for part in shrunk], float(left)


def trained(module: nn.Module, task: Task, after: Sequence[int]) -> list[Tensor]:
    """f_t − f_0 at the test samples, every weight trained on ½ Σ (f_t − f_0 − y)² by full-batch gradient descent of rate η."""
    like = next(module.parameters())
    x, y, test_x = (part.to(like) for part in (task.x, task.y, task.test_x))
    descent = torch.optim.SGD(module.parameters(), lr=task.rate)
    found = []
    with torch.no_grad():
        start, test_start = module(x)[:, 0], module(test_x)[:, 0]
    for step in range(1, after[-1] + 1):
        descent.zero_grad()
        (0.5 * (module(x)[:, 0] - start - y).square().sum()).backward()
        descent.step()
        if step in after:
            with torch.no_grad():
                found.append((module(test_x)[:, 0] - test_start).cpu().double())
    return found


def _modules(unit: FiniteUnit, task: Task) -> dict[str, DEQ | ENN]:
    """Two draws of the DEQ and one of each rival, with weights drawn from the seed and the name."""
    names = ("deq", "deq_again", *task.rivals)
    found: dict[str, DEQ | ENN] = {}
    for place, name in enumerate(names):
        draw, inputs = torch.Generator().manual_seed(len(names) * unit.seed + place), task.x.shape[1]
        if name in task.rivals:
            found[name] = ENN(task.rivals[name], inputs, unit.width, 1, generator=draw)
        else:
            found[name] = DEQ(task.deq, inputs, unit.width, 1, tau0=task.radius, generator=draw)
    return found


def _apart(one: Sequence[Tensor], other: Sequence[Tensor]) -> list[float]:
    return [float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b)) for a, b in zip(one, other, strict=True)]


def _averaged(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [(a + b) / 2.0 for a, b in zip(one, other, strict=True)]


def comparable(records: Sequence[Record]) -> list[Record]:
    """The records of one training for each kind and activation."""
    return of_one_run(records, ("kind", "activation"), ("data", "var_a", "train", "test", "design", "steps", "width"))


def distances(records: Sequence[Record], name: str) -> dict[int, Interval]:
    """The distance of a network from the DEQ by step, over the seeds."""
    return {
        step: mean([record.values["apart"][name][place] for record in records])
        for place, step in enumerate(records[0].values["steps"])
    }


def claims(every: Records) -> list[Claim]:
    records = comparable(every["L7"])
    found = []
    for activation in dict.fromkeys(record.config["activation"] for record in records):
        infinite, finite = (where(records, activation=activation, kind=kind) for kind in ("infinite", "width"))
        found += [*_in_the_limit(activation, infinite), *_among_draws(activation, finite)]
    return found


def _in_the_limit(activation: str, records: list[Record]) -> list[Claim]:
    """At infinite width: how near the twin with both kernels stays, and whether it is nearer than its rivals at every step."""
    if not records:
        return []
    apart = {name: {step: d.value for step, d in distances(records, name).items()} for name in TITLES}
    both, config = apart["both"], records[0].config
    farthest = max(both, key=lambda step: both[step])
    spread = f"exact, {config['train']} samples"
    within = Claim(
        id=f"L7.{activation}.infinite",
        claim=f"{activation}: trained at infinite width, {TITLES['both']} is within {_SMALL:.0%} of the DEQ at every step",
        ours=f"at most {format_number(both[farthest])}, after {_steps(farthest)}",
        spread=spread,
        verdict=holds(both[farthest] <= _SMALL),
    )
    found = [within]
    for rival in ("conjugate", "plain"):
        ratio = {step: apart[rival][step] / both[step] for step in both}
        worst = min(ratio, key=lambda step: ratio[step])
        against = f"{format_number(apart[rival][worst])} against {format_number(both[worst])}"
        claim = Claim(
            id=f"L7.{activation}.{rival}",
            claim=f"{activation}: trained at infinite width, {TITLES['both']} is nearer at every step than {TITLES[rival]}",
            ours=f"the rival is at least {ratio[worst]:.3g} times as far, after {_steps(worst)}: {against}; "
            f"{ratio[1]:.3g} times after 1 step",
            spread=spread,
            verdict=holds(ratio[worst] > 1.0),
        )
        found.append(claim)
    return found


def _among_draws(activation: str, records: list[Record]) -> list[Claim]:
    """At the width of the records: whether each twin is at every step as near to a DEQ as another draw of it."""
    if not records:
        return []
    floor, found = distances(records, "deq_again"), []
    for name, title in TITLES.items():
        apart = distances(records, name)
        worst = max(apart, key=lambda step: apart[step].value / floor[step].value)
        ratio = apart[worst].value / floor[worst].value
        near = name == "both"
        what = "is at every step as near to a DEQ as" if near else "is at some step farther from a DEQ than"
        limit = "at most" if near else "more than"
        against = f"{format_number(apart[worst].value)} against {format_number(floor[worst].value)}"
        claim = Claim(
            id=f"L7.{activation}.draws.{name}",
            claim=f"{activation}: trained at width {records[0].config['width']}, {title} {what} "
            f"another draw of it ({limit} {_AS_NEAR:g} times as far)",
            ours=f"at most {ratio:.2f} times as far, after {_steps(worst)}: {against}",
            spread=apart[worst].spelt(".2g", "seed"),
            verdict=holds((ratio <= _AS_NEAR) == near),
        )
        found.append(claim)
    return found


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def notes(every: Records) -> list[str]:
    records = comparable(every["L7"])
    left = {record.config["activation"]: record for record in records}
    shares = ", ".join(f"{name} {format_number(record.values['left'])}" for name, record in left.items())
    found = [
        "Two classes of images, y = ±1, squared loss, full-batch gradient descent on all weights at one rate, 1/λ_max of the "
        f"DEQ's tangent kernel. Left of the training error after the last step, at infinite width: {shares}.",
        "Distances are those of what training adds to the test outputs, relative to its norm in the DEQ. The networks were "
        "designed on samples that have no part in training or test.",
    ]
    if finite := where(records, kind="width"):
        width = finite[0].config["width"]
        limits = [value for record in finite for value in record.values["apart"]["limit"]]
        found.append(
            f"A DEQ of width {width} is {format_number(min(limits))} to {format_number(max(limits))} from its own limit of "
            "infinite width: a twin, which is drawn too, cannot be expected nearer to a DEQ than another draw of it."
        )
    return found


L7 = Experiment(
    name="L7",
    title="The same training",
    shows="How far the explicit twin that has both kernels of a DEQ stays from it while all weights are trained by gradient "
    "descent; beside it the twin with the conjugate kernel alone, and the plain network with its best gains.",
    units=units,
    quick=Config(width=256, seeds=3, train=100, test=200, design=500, steps=300),
    full=Config(),
    run=run,
    judge=claims,
    remark=notes,
)
