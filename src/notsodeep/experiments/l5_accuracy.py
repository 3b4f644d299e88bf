"""L5: test accuracy against width, and what tells the networks apart. Ref: [ling2024] section 6, Figure 5."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from notsodeep.experiments import l5_infinite, l5_trained, l5_width
from notsodeep.experiments.experiment import Experiment, Values
from notsodeep.experiments.l5_claims import claims, notes
from notsodeep.experiments.l5_units import FiniteUnit, InfiniteUnit, Unit

_RATES = {"cifar10-vgg19": 0.1}  # of SGD; 1 elsewhere
_TRAINED_RATE = 1e-2  # of Adam


@dataclass(frozen=True)
class Config:
    """`train` and `test` are numbers of samples, 0 for all; `trained_epochs` = 0 leaves training of all weights out."""

    data: tuple[str, ...] = ("mnist", "fashion-mnist", "cifar10-vgg19")
    activations: tuple[str, ...] = ("tanh", "relu")
    widths: tuple[int, ...] = tuple(2**k for k in range(5, 14))
    seeds: int = 3
    train: int = 0
    test: int = 0
    epochs: int = 100
    batch: int = 128
    var_a: float = 0.2
    infinite_samples: int = 4000
    trained_width: int = 1024
    trained_epochs: int = 5
    trained_seeds: int = 1


def units(config: Config) -> list[Unit]:
    """Infinite width first, then the narrow ones, then those with all weights trained."""
    rows = [(data, activation) for data in config.data for activation in config.activations]
    var_a, n = config.var_a, config.infinite_samples

    def finite(kind: str, data: str, phi: str, width: int, rate: float, epochs: int, seed: int) -> FiniteUnit:
        return FiniteUnit(kind, data, phi, var_a, width, config.train, config.test, rate, config.batch, epochs, seed)

    found: list[Unit] = [InfiniteUnit("infinite", data, phi, var_a, n, n) for data, phi in rows]
    found += [
        finite("width", data, phi, width, _RATES.get(data, 1.0), config.epochs, seed)
        for width in sorted(config.widths)
        for data, phi in rows
        for seed in range(config.seeds)
    ]
    found += [
        finite("trained", data, phi, config.trained_width, _TRAINED_RATE, config.trained_epochs, seed)
        for data, phi in rows
        for seed in range(config.trained_seeds if config.trained_epochs else 0)
    ]
    return found


def run(unit: Unit, device: torch.device) -> Values:
    if isinstance(unit, InfiniteUnit):
        return l5_infinite.run(unit, device)
    return {"width": l5_width.run, "trained": l5_trained.run}[unit.kind](unit, device)


def cost(unit: Unit) -> float:
    if isinstance(unit, InfiniteUnit):
        return float(1.0 + 30.0 * (unit.train / 4000) ** 2)
    n = (unit.train or 60_000) / 10_000
    if unit.kind == "trained":
        return float(6.0 * n * unit.epochs * (unit.width / 1024) ** 1.7)
    # Readouts by SGD grow with the width, features and the closed form with its square.
    return 1.0 + n * (0.06 * unit.epochs * (1.0 + unit.width / 512) + 6.0 * (unit.width / 1024) ** 2)


L5 = Experiment(
    name="L5",
    title="Test accuracy against width, and beyond accuracy",
    shows="With random weights and a trained readout, a DEQ and the explicit network matched to it reach the same test "
    "accuracy from some hundreds of units on; what tells them apart from other networks is not accuracy.",
    quick=replace(
        Config(),
        widths=(32, 128, 512, 1024),
        seeds=2,
        train=10_000,
        test=5_000,
        epochs=20,
        infinite_samples=1000,
        trained_epochs=0,
    ),
    full=Config(),
    units=units,
    run=run,
    cost=cost,
    claims=claims,
    notes=notes,
)
