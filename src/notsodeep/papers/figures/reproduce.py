"""The figures of the papers' experiments, drawn from their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from notsodeep.figures.style import style
from notsodeep.papers.figures.accuracy import accuracy_drawings
from notsodeep.papers.figures.constructions import built_drawings, sawtooth_drawings, steep_drawings, weight_drawings
from notsodeep.papers.figures.contests import contest_drawings
from notsodeep.papers.figures.cost import cost_drawings
from notsodeep.papers.figures.drawing import Drawing
from notsodeep.papers.figures.features import feature_drawings, saliency_drawings
from notsodeep.papers.figures.kernels import kernel_gap_drawings, spectra_drawings
from notsodeep.papers.records import Record

__all__ = ["Drawing", "drawings"]


def drawings(experiment: str, records: Mapping[str, Sequence[Record]]) -> list[Drawing]:
    """The figures of an experiment, from the records of all experiments by name; [] where there is nothing to draw."""
    own = list(records.get(experiment, []))
    if not own:
        return []
    with style():
        match experiment:
            case "L1":
                return kernel_gap_drawings(own)
            case "L2" | "L3" | "L4":
                return spectra_drawings(experiment, own)
            case "L5":
                return accuracy_drawings(own)
            case "L6":
                return cost_drawings(own, list(records.get("L5", [])))
            case "W1":
                return [*sawtooth_drawings(own), *contest_drawings("W1", own)]
            case "W2":
                return [*steep_drawings(own), *contest_drawings("W2", own)]
            case "W3":
                return [*built_drawings(own), *weight_drawings(own)]
            case "W4" | "W5":
                return contest_drawings(experiment, own)
            case "W6":
                return feature_drawings(own)
            case "W7":
                return saliency_drawings(own)
            case _:
                return []
