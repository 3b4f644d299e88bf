"""W7: breadth of the Grad-CAM maps of a multiscale DEQ and of a ResNet. Ref: [wu2024], saliency maps."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from notsodeep.models.training.fit import fit
from notsodeep.models.training.objective import Batches
from notsodeep.papers.claims import Claim, holds
from notsodeep.papers.experiment import Experiment, Records, Values, from_config
from notsodeep.papers.records import Record, in_one_run, where
from notsodeep.papers.statistics import Interval, mean, signed
from notsodeep.papers.wu2024.w7_images import CLASSES, Augmented, Images, captum_attr, grad_cam, load_images, map_entropy
from notsodeep.papers.wu2024.w7_networks import MultiscaleDEQ, ResidualNetwork

NETWORKS = ("deq", "resnet")
SHOWN = 8
_BATCH = 250
_LIKE = 0.05  # of accuracy: "about as accurate" is taken to mean within this

Network = MultiscaleDEQ | ResidualNetwork


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings that a config and its units share: `batches` of CIFAR-10, and of how many test images are `maps`."""

    data: str = "cifar10"
    batches: tuple[int, ...] = (1, 2)
    train: int = 20_000
    test: int = 10_000
    maps: int = 1000
    channels: tuple[int, ...] = (64, 128)
    epochs: int = 20
    batch: int = 128
    rate: float = 2e-3
    decay: float = 0.05
    tol: float = 1e-2
    max_steps: int = 20


@dataclass(frozen=True, kw_only=True)
class Config(Setup):
    """Settings."""

    seeds: int = 5


@dataclass(frozen=True, kw_only=True)
class Unit(Setup):
    """One network of one seed."""

    network: str
    seed: int

    @property
    def cost(self) -> float:
        """With 16 channels and two cores, a DEQ takes some 3.5 ms per image and epoch, a ResNet a sixth of that."""
        passes = self.train * self.epochs + 0.4 * self.test + 2.0 * self.maps
        return float(2.0 + passes * (3.5e-3 if self.network == "deq" else 6e-4) * (self.channels[0] / 16) ** 1.5)


def units(config: Config) -> list[Unit]:
    """Both networks of a seed one after the other: a run that is stopped has pairs."""
    return [from_config(Unit, config, network=name, seed=s) for s in range(config.seeds) for name in NETWORKS]


def build(unit: Unit) -> Network:
    draw = torch.Generator().manual_seed(unit.seed)
    if unit.network == "deq":
        return MultiscaleDEQ(CLASSES, unit.channels, tol=unit.tol, max_steps=unit.max_steps, generator=draw)
    return ResidualNetwork(CLASSES, unit.channels, generator=draw)


def run(unit: Unit, device: torch.device) -> Values:
    """Accuracy, steps of the solver, and the entropies of the network's maps before and after training."""
    captum_attr()  # raises before the work where captum is missing
    images = load_images(unit.data, unit.batches, unit.train, unit.test, device)
    module = build(unit).to(device)
    values: Values = {"parameters": sum(weight.numel() for weight in module.parameters())}
    values["untrained"], _ = _breadth(module, images, unit.maps)
    values["seconds"] = {"epoch": round(_train(module, images, unit) / unit.epochs, 3)}
    values |= _tested(module, images)
    values["trained"], maps = _breadth(module, images, unit.maps)
    if unit.seed == 0:
        values["shown"] = _shown(module, images, maps[:SHOWN])
    return values


def _train(module: Network, images: Images, unit: Unit) -> float:
    """Train by AdamW with a rate that falls like a cosine; returns the seconds."""
    draw = torch.Generator().manual_seed(unit.seed)
    loader = Augmented(Batches(images.x, images.y, unit.batch, draw), draw)
    optimiser = torch.optim.AdamW(module.parameters(), lr=unit.rate, weight_decay=unit.decay)
    began = time.perf_counter()
    fit(module, loader, unit.epochs, optimiser=optimiser, progress=False)
    return time.perf_counter() - began


@torch.no_grad()
def _tested(module: Network, images: Images) -> Values:
    """Accuracy on the test images; for a DEQ also the mean steps and the share of equilibria that were found."""
    right = 0
    steps, found = [], []
    for x, y in zip(images.test_x.split(_BATCH), images.test_y.split(_BATCH), strict=True):
        if isinstance(module, MultiscaleDEQ):
            solution = module.solve(x)
            steps.append(solution.steps.double())
            found.append(solution.converged.double())
            out = module.head(*solution.value)
        else:
            out = module(x)
        right += int((out.argmax(1) == y).sum())
    values: Values = {"accuracy": right / len(images.test_y)}
    if steps:
        average, share = (round(float(torch.cat(parts).mean()), 4) for parts in (steps, found))
        values["solver"] = {"steps": average, "converged": share}
    return values


def _breadth(module: Network, images: Images, count: int) -> tuple[Values, Tensor]:
    """Entropies of the maps of the first `count` test images, each for the class that the network gives it, and the maps.

    The entropies: their mean, that of images classified rightly, and each one; maps without a positive pixel count as empty.
    """
    maps, right = [], []
    for x, y in zip(images.test_x[:count].split(_BATCH), images.test_y[:count].split(_BATCH), strict=True):
        predicted = _predicted(module, x)
        maps.append(grad_cam(module, module.head.features, x, predicted).cpu())
        right.append((predicted == y).cpu())
    every = torch.cat(maps)
    entropy, whole = map_entropy(every), torch.cat(right)
    there = entropy.isfinite()
    values = {
        "entropy": _mean(entropy[there]),
        "entropy_correct": _mean(entropy[there & whole]),
        "empty": int((~there).sum()),
        "entropies": [round(value, 4) for value in entropy[there].tolist()],
    }
    return values, every


def _mean(values: Tensor) -> float | None:
    return round(float(values.mean()), 6) if len(values) else None


@torch.no_grad()
def _predicted(module: Network, x: Tensor) -> Tensor:
    classes: Tensor = module(x).argmax(1)
    return classes


def _shown(module: Network, images: Images, maps: Tensor) -> Values:
    """A few images with their maps, for a figure: bytes of (n, 32, 32, 3), and maps from 0 to 1."""
    count = len(maps)
    largest = maps.amax((1, 2), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
    pixels = images.test_bytes[:count].movedim(1, -1).contiguous().cpu().numpy()
    return {
        "images": base64.b64encode(pixels.tobytes()).decode(),
        "labels": images.test_y[:count].tolist(),
        "predicted": _predicted(module, images.test_x[:count]).tolist(),
        "maps": [[[round(value, 3) for value in row] for row in each] for each in (maps / largest).tolist()],
    }


def comparable(records: Sequence[Record]) -> list[Record]:
    """The records of one run: they agree in all settings but the network and the seed."""
    return in_one_run(records, ("network", "seed"))


def entropies(records: Sequence[Record], network: str, when: str, of: str = "entropy") -> Interval | None:
    """Mean over seeds of the mean entropy of "trained" or "untrained" networks, `of` all maps, or "entropy_correct"."""
    own = (record.values[when][of] for record in where(records, network=network))
    found = [value for value in own if value is not None]
    return mean(found) if found else None


def claims(every: Records) -> list[Claim]:
    records = comparable(every["W7"])
    return [*_broader(records), *_as_accurate(records)]


def _broader(records: Sequence[Record]) -> list[Claim]:
    deq, resnet = (entropies(records, name, "trained") for name in NETWORKS)
    if deq is None or resnet is None:
        return []
    before = (entropies(records, name, "untrained") for name in NETWORKS)
    spelt = " against ".join("no map" if found is None else f"{found.value:.3f}" for found in before)
    claim = "Grad-CAM maps of a multiscale DEQ are broader than a ResNet's of like size (entropy over log of pixels)"
    ours = f"{deq.value:.3f} against {resnet.value:.3f}; before training {spelt}"
    spread, verdict = _spreads(deq, resnet, ".3f"), holds(deq.above(resnet))
    return [Claim(id="W7.breadth", claim=claim, paper="broader", ours=ours, spread=spread, verdict=verdict)]


def _as_accurate(records: Sequence[Record]) -> list[Claim]:
    scores = {name: [r.values["accuracy"] for r in where(records, network=name)] for name in NETWORKS}
    if not all(scores.values()):
        return []
    deq, resnet = (mean(found) for found in scores.values())
    claim = f"The two networks are about as accurate (within {100 * _LIKE:g} points), so that maps of like networks meet"
    ours, spread = f"{deq.value:.1%} against {resnet.value:.1%}", _spreads(deq, resnet, ".1%")
    verdict = holds(abs(deq.value - resnet.value) <= _LIKE)
    return [Claim(id="W7.accuracy", claim=claim, ours=ours, spread=spread, verdict=verdict)]


def _spreads(deq: Interval, resnet: Interval, digits: str) -> str:
    """ "± 0.002 and ± 0.003, 5 seeds"."""
    many = resnet.spelt(digits, "seed")
    return f"± {deq.spread:{digits}} and {many}" if min(deq.count, resnet.count) > 1 else many


def notes(every: Records) -> list[str]:
    records = comparable(every["W7"])
    found = [
        "The paper maps ImageNet networks; here both are small and trained on CIFAR-10, and their maps have 8 × 8 pixels.",
        "Breadth is the entropy of a map over its largest value, the logarithm of its pixels: 0 for one pixel, 1 for all "
        "alike. It depends on the accuracy and on the resolution too, so both networks have one stem, one head and one size "
        "of maps; each map is for the class that its network gives the image.",
    ]
    return found + _control(records) + _correct(records) + _solver(records)


def _control(records: Sequence[Record]) -> list[str]:
    """The difference before and after training, seed by seed, since both networks are drawn from the same seed."""
    gaps = {when: _gaps(records, when) for when in ("trained", "untrained")}
    seeds = sorted(set(gaps["trained"]) & set(gaps["untrained"]))
    if not seeds:
        return []
    after, before = (mean([gaps[when][seed] for seed in seeds]) for when in ("trained", "untrained"))
    change = mean([gaps["trained"][seed] - gaps["untrained"][seed] for seed in seeds])
    return [
        f"A control: the DEQ's maps differ in entropy from the ResNet's by {signed(before.value, 3)} before any training and "
        f"by {signed(after.value, 3)} after it, so that training accounts for {signed(change.value, 3)} "
        f"({change.spelt('.3f', 'seed')}) and the architecture for the rest."
    ]


def _gaps(records: Sequence[Record], when: str) -> dict[int, float]:
    """The DEQ's entropy minus the ResNet's, by seed."""
    known = [record for record in records if record.values[when]["entropy"] is not None]
    deq, resnet = ({r.config["seed"]: r.values[when]["entropy"] for r in where(known, network=name)} for name in NETWORKS)
    return {seed: deq[seed] - resnet[seed] for seed in deq if seed in resnet}


def _correct(records: Sequence[Record]) -> list[str]:
    deq, resnet = (entropies(records, name, "trained", "entropy_correct") for name in NETWORKS)
    if deq is None or resnet is None:
        return []
    return [
        f"Of images that a network classifies rightly, the entropy is {deq.value:.3f} ({deq.spelt('.3f', 'seed')}) for the "
        f"DEQ and {resnet.value:.3f} ({resnet.spelt('.3f', 'seed')}) for the ResNet."
    ]


def _solver(records: Sequence[Record]) -> list[str]:
    solvers = [record.values["solver"] for record in records if "solver" in record.values]
    if not solvers:
        return []
    steps, share = (mean([solver[name] for solver in solvers]).value for name in ("steps", "converged"))
    config = records[-1].config
    return [
        f"The DEQ's equilibrium is found to a relative residual of {config['tol']:g} for {share:.1%} of the test images, after "
        f"{steps:.1f} evaluations of its map on average ({config['max_steps']} at most)."
    ]


W7 = Experiment(
    name="W7",
    title="Where a multiscale DEQ and a ResNet look",
    shows="Grad-CAM maps of a multiscale DEQ cover more of an image than those of a ResNet of like size, on CIFAR-10.",
    units=units,
    quick=Config(batches=(1,), train=2000, test=1000, maps=200, channels=(16, 32), epochs=4, batch=32, rate=5e-3, seeds=2),
    full=Config(),
    run=run,
    judge=claims,
    remark=notes,
    command="separate",
)
