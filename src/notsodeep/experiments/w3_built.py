"""W3's networks without training: a DEQ and a feed-forward network that resolve the steep part at every d."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from notsodeep.experiments.contest import constructed, draw, layers
from notsodeep.experiments.experiment import Values
from notsodeep.experiments.record import Record
from notsodeep.experiments.selection import of_one_run
from notsodeep.experiments.statistics import mean
from notsodeep.separation.bounds import min_weight_steep_fnn
from notsodeep.separation.steep_deq import steep_deq
from notsodeep.separation.steep_fnn import steep_fnn
from notsodeep.separation.targets import Steep

_MARGIN = 0.95  # of the level: what the loss of finitely many samples may lie above the mean's


@dataclass(frozen=True)
class Construction:
    """A DEQ of `width` = 4N + 2 units, or a feed-forward network of the rival's shape, made for a loss of `level` at most; the
    loss is measured on the test samples of the trained networks."""

    network: str
    dimension: int
    width: int
    rival: str
    level: float
    seeds: int
    kind: str = "constructed"

    def __post_init__(self) -> None:
        layers(self.rival)  # a name that is none is told before anything is built


def run_built(unit: Construction) -> Values:
    """In double precision: the loss on each seed's test samples, the largest weight, the least one that any feed-forward
    network of this shape has at the level, and the units of a layer."""
    network: nn.Module
    weights: nn.Module
    least: float | None = None
    if unit.network == "deq":
        deq = steep_deq(unit.dimension, max(1, (unit.width - 2) // 4))
        network, weights, width = deq, deq.as_relu_deq(), deq.width
    else:
        widths = layers(unit.rival)
        network = weights = steep_fnn(unit.dimension, widths, _MARGIN * unit.level)
        width, least = widths[0], min_weight_steep_fnn(unit.dimension, widths, unit.level)
    return {
        "loss": [float(f"{loss:.5g}") for loss in _losses(network, unit)],
        "largest_weight": round(max(float(weight.detach().abs().max()) for weight in weights.parameters()), 6),
        "least_weight": None if least is None else round(least, 6),
        "width": width,
    }


@torch.no_grad()
def _losses(network: nn.Module, unit: Construction) -> list[float]:
    """On the test samples, which are single precision numbers."""
    x_test = draw("steep", unit.dimension, 1, unit.seeds).x_test.double()
    target = Steep(unit.dimension)
    return [float((network(x) - target(x)).square().mean()) for x in x_test]


def built(records: Sequence[Record]) -> list[Record]:
    """Those of one run: all settings but the network and the dimension as the latest record has them."""
    return of_one_run(constructed(records), ("kind",), ("width", "rival", "level", "seeds"))


def built_weights(records: Sequence[Record], network: str, of: str = "largest_weight") -> dict[int, float]:
    """By dimension."""
    found = {int(r.config["dimension"]): r.values[of] for r in records if r.config["network"] == network}
    return {d: float(weight) for d, weight in sorted(found.items()) if weight is not None}


def reach_level(records: Sequence[Record]) -> bool:
    """All of them, by the mean over the seeds' samples."""
    return all(mean(record.values["loss"]).value <= record.config["level"] for record in records)
