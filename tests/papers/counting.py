"""An experiment whose units are numbers, and which counts how often each is computed."""

from collections import Counter
from dataclasses import dataclass

from notsodeep.errors import BadInput
from notsodeep.papers.experiment import Experiment


@dataclass(frozen=True)
class Config:
    numbers: tuple[int, ...] = (1, 2, 3)
    pause: int = 0
    factor: float = 2.0
    word: str = "a"


@dataclass(frozen=True)
class Unit:
    number: int
    factor: float
    seed: int = 0

    @property
    def cost(self):
        return float(self.number)


class Counting:
    """`fails_at` names a unit that raises; `missing` one whose data are not there."""

    def __init__(self, name="L1", fails_at=None, missing=None):
        self.runs, self.fails_at, self.missing = Counter(), fails_at, missing
        self.experiment = Experiment(
            name=name,
            title="Counting",
            shows="That it counts.",
            quick=Config(),
            full=Config(numbers=(1, 2, 3, 4, 5)),
            units=lambda config: [Unit(number, config.factor) for number in config.numbers],
            run=self.run,
            judge=lambda _records: [],
            remark=lambda _records: [],
        )

    def run(self, unit, _device):
        self.runs[unit.number] += 1
        if unit.number == self.fails_at:
            raise RuntimeError("killed")
        if unit.number == self.missing:
            raise BadInput("the data are not there", missing=["a file"])
        return {"twice": unit.factor * unit.number}
