"""The figures of the papers' experiments, drawn from their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from notsodeep.figures.style import style
from notsodeep.papers.figures.accuracy import accuracy_drawings
from notsodeep.papers.figures.constructions import built_drawings, sawtooth_drawings, steep_drawings, weight_drawings
from notsodeep.papers.figures.contests import contest_drawings
from notsodeep.papers.figures.cost import cost_drawings
from notsodeep.papers.figures.drawing import Drawing
from notsodeep.papers.figures.features import feature_drawings, saliency_drawings
from notsodeep.papers.figures.kernels import kernel_gap_drawings, spectra_drawings
from notsodeep.papers.figures.training import training_drawings
from notsodeep.papers.records import Record

__all__ = ["Drawing", "drawings"]

_DRAWN: dict[str, tuple[Callable[[Sequence[Record]], list[Drawing]], ...]] = {
    "L1": (kernel_gap_drawings,),
    **{name: (partial(spectra_drawings, name),) for name in ("L2", "L3", "L4")},
    "L5": (accuracy_drawings,),
    "L7": (training_drawings,),
    "W1": (sawtooth_drawings, partial(contest_drawings, "W1")),
    "W2": (steep_drawings, partial(contest_drawings, "W2")),
    "W3": (built_drawings, weight_drawings),
    "W4": (partial(contest_drawings, "W4"),),
    "W5": (partial(contest_drawings, "W5"),),
    "W6": (feature_drawings,),
    "W7": (saliency_drawings,),
}


def drawings(experiment: str, records: Mapping[str, Sequence[Record]]) -> list[Drawing]:
    """The figures of an experiment, from the records of all experiments by name; [] where there is nothing to draw."""
    own = list(records.get(experiment, []))
    with style():
        if own and experiment == "L6":  # its times are shown against the accuracies of L5
            return cost_drawings(own, list(records.get("L5", [])))
        return [drawing for draw in _DRAWN.get(experiment, ()) if own for drawing in draw(own)]
