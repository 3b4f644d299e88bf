"""A run that nobody computed: experiments of both papers, whose claims and figures repeat words of their records."""

from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from notsodeep.papers.claims import Claim, Verdict
from notsodeep.papers.experiment import Experiment, settings
from notsodeep.papers.figures.reproduce import Drawing
from notsodeep.papers.records import Record

HOSTILE = "<script>alert(1)</script> \"'> | `x` [y](javascript:z) ![i](http://evil.example/i.png)\n# \x1b[31m\u202e"


@dataclass(frozen=True)
class Unit:
    data: str
    n: int
    seed: int


def units(sizes):
    return [Unit("gmm", n, seed) for n in sizes for seed in range(2)]


def claims(name, records):
    word = records[name][0].config["data"]
    return [
        Claim(
            id=f"{name}.{number}",
            claim=f"{word}: the gap is small",
            paper="≤ 0.5",
            ours="0.1",
            spread="± 0.02",
            verdict=verdict,
        )
        for number, verdict in enumerate(Verdict, start=1)
    ]


def notes(name, records):
    return [f"The data are {records[name][0].config['data']}: {len(records[name])} of them."]


def experiment(name):
    return Experiment(
        name=name,
        title=f"Gap of {name} against n",
        shows="The gap ‖G* − Ḡ‖ falls.",
        quick=(200, 400),
        full=(200, 400, 800, 1600, 3200),
        units=units,
        run=lambda unit, device: {"gap": 1.0 / unit.n},  # noqa: ARG005 (an experiment's interface)
        judge=partial(claims, name),
        remark=partial(notes, name),
        command="separate" if name.startswith("W") else "reproduce",
    )


EXPERIMENTS = {name: experiment(name) for name in ("L1", "L5", "W2")}


def drawings(name, records):
    figure = Figure(figsize=(6, 3))
    figure.subplots().plot([record.values["gap"] for record in records[name]])
    word = records[name][0].config["data"]
    return [Drawing(f"{name}-gap-{word}", f"The gap of {word}; it falls.", figure)]


def record(name, unit, **changes):
    parts = {
        "experiment": name,
        "config": settings(unit),
        "values": {"gap": 1.0 / unit.n},
        "seconds": 30.0,
        "provenance": {
            "versions": {"python": "3.11.2", "torch": "2.6.0"},
            "machine": "NVIDIA H200" if unit.seed else "x86_64, 2 cores",
            "time": f"2025-05-0{1 + unit.seed}T10:00:00+00:00",
        },
    }
    return Record(**(parts | changes))


def whole_run(size="full", names=("L1", "L5")):
    return [record(name, unit) for name in names for unit in units(getattr(EXPERIMENTS[name], size))]
