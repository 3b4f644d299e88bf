"""W7: where a multiscale DEQ and a ResNet look, by Grad-CAM. Ref: [wu2024], saliency maps."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from notsodeep.models.training.fit import fit
from notsodeep.models.training.objective import Batches
from notsodeep.papers.experiment import Experiment, Values
from notsodeep.papers.wu2024.images.data import CLASSES, Augmented, Images, load_images
from notsodeep.papers.wu2024.images.multiscale import MultiscaleDEQ
from notsodeep.papers.wu2024.images.residual import ResidualNetwork
from notsodeep.papers.wu2024.images.saliency import captum_attr, grad_cam, map_entropy
from notsodeep.papers.wu2024.w7_claims import NETWORKS, claims, notes

SHOWN = 8
_BATCH = 250

Network = MultiscaleDEQ | ResidualNetwork


@dataclass(frozen=True)
class Config:
    """`batches` are those of CIFAR-10's training set, 10,000 images each; `maps` of the test images are mapped."""

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
    seeds: int = 5


@dataclass(frozen=True)
class Unit:
    network: str
    data: str
    batches: tuple[int, ...]
    train: int
    test: int
    maps: int
    channels: tuple[int, ...]
    epochs: int
    batch: int
    rate: float
    decay: float
    tol: float
    max_steps: int
    seed: int


def units(config: Config) -> list[Unit]:
    """Both networks of a seed one after the other, so that a run that is stopped has pairs."""
    shared = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "seeds"}
    return [Unit(network=name, seed=seed, **shared) for seed in range(config.seeds) for name in NETWORKS]


def build(unit: Unit) -> Network:
    draw = torch.Generator().manual_seed(unit.seed)
    if unit.network == "deq":
        return MultiscaleDEQ(CLASSES, unit.channels, tol=unit.tol, max_steps=unit.max_steps, generator=draw)
    return ResidualNetwork(CLASSES, unit.channels, generator=draw)


def run(unit: Unit, device: torch.device) -> Values:
    """Accuracy, what the solver needed, and the entropies of the maps of the network before and after training."""
    captum_attr()  # that it is missing is told before the work
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
    """AdamW with a rate that falls like a cosine; the seconds."""
    draw = torch.Generator().manual_seed(unit.seed)
    loader = Augmented(Batches(images.x, images.y, unit.batch, draw), draw)
    optimiser = torch.optim.AdamW(module.parameters(), lr=unit.rate, weight_decay=unit.decay)
    began = time.perf_counter()
    fit(module, loader, unit.epochs, optimiser=optimiser, progress=False)
    return time.perf_counter() - began


@torch.no_grad()
def _tested(module: Network, images: Images) -> Values:
    """The accuracy on the test images, and the mean steps and the share of those whose equilibrium was found."""
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
    """The maps of the first `count` test images, each for the class that the network gives it, and their entropies: the mean,
    the mean of those classified rightly, how many maps have no positive pixel (which are left out), and each one."""
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
    """A few images with their maps, which a figure is drawn from: bytes of (n, 32, 32, 3), maps from 0 to 1."""
    count = len(maps)
    largest = maps.amax((1, 2), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
    pixels = images.test_bytes[:count].movedim(1, -1).contiguous().cpu().numpy()
    return {
        "images": base64.b64encode(pixels.tobytes()).decode(),
        "labels": images.test_y[:count].tolist(),
        "predicted": _predicted(module, images.test_x[:count]).tolist(),
        "maps": [[[round(value, 3) for value in row] for row in each] for each in (maps / largest).tolist()],
    }


def cost(unit: Unit) -> float:
    """A DEQ takes some 3.5 ms for an image of an epoch, with 16 channels and two cores, a ResNet a sixth of that."""
    passes = unit.train * unit.epochs + 0.4 * unit.test + 2.0 * unit.maps
    return float(2.0 + passes * (3.5e-3 if unit.network == "deq" else 6e-4) * (unit.channels[0] / 16) ** 1.5)


W7 = Experiment(
    name="W7",
    title="Where a multiscale DEQ and a ResNet look",
    shows="Grad-CAM maps of a multiscale DEQ cover more of an image than those of a ResNet of like size, on CIFAR-10.",
    quick=replace(
        Config(),
        batches=(1,),
        train=2000,
        test=1000,
        maps=200,
        channels=(16, 32),
        epochs=4,
        batch=32,
        rate=5e-3,
        seeds=2,
    ),
    full=Config(),
    units=units,
    run=run,
    cost=cost,
    claims=claims,
    notes=notes,
    command="separate",
)
