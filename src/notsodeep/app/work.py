"""What a worker is asked for. Samples and lengths come with the question where the server holds them, and a study goes back
without its samples: so any worker can go on with what another began, and none is missed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from notsodeep.app import answers, answers as files, study as studies
from notsodeep.app.state import State
from notsodeep.app.study import GapPoint, Lengths, Study, gaps_against_n, samples_of, study
from notsodeep.app.uploads import Shelf
from notsodeep.data.sources import Dataset

_NOTHING = Shelf()


@dataclass(frozen=True, eq=False)
class Answer:
    """A study, without its samples, and the parts of the page that show it."""

    study: Study
    figures: tuple[Any, Any, Any]
    table: Any
    summary: str


def answered(state: State, sent: Dataset | None, lengths: Lengths) -> tuple[Answer, Lengths]:
    """The answer to a state, and the lengths that were found on the way; `sent` are the samples of an upload."""
    studies.LENGTHS.update(lengths)
    found = study(state, _samples(state, sent))
    figures = (answers.spectra(found), answers.activations(found), answers.admissible(found))
    answer = Answer(_sendable(found), figures, answers.table(found), answers.summary(found))
    return answer, _news(lengths)


def gaps(state: State, sent: Dataset | None, lengths: Lengths, known: Study) -> tuple[list[GapPoint], Lengths]:
    """The gap against n of an answer's study, and the lengths that were found on the way."""
    studies.LENGTHS.update(lengths)
    points = gaps_against_n(replace(known, data=_samples(state, sent)))
    return points, _news(lengths)


def file(state: State, sent: Dataset | None, known: Study, kind: str) -> bytes:
    """What a visitor takes home of an answer's study: "onnx", "py" or "png"."""
    whole = replace(known, data=_samples(state, sent))
    return files.figure_file(whole) if kind == "png" else files.network_file(whole, kind)


def ahead(state: State, sent: Dataset | None, lengths: Lengths, known: Study) -> Lengths:
    """The lengths that the next moves of a slider will ask for."""
    studies.LENGTHS.update(lengths)
    studies.look_ahead(replace(known, data=_samples(state, sent)))
    return _news(lengths)


def _samples(state: State, sent: Dataset | None) -> Dataset:
    return samples_of(state, _NOTHING) if sent is None else sent


def _sendable(found: Study) -> Study:
    nothing = found.data.x.new_empty((0, found.data.x.shape[1]))  # no slice, which would be sent with all that it is of
    return replace(found, data=replace(found.data, x=nothing, y=None))


def _news(lengths: Lengths) -> Lengths:
    return {key: length for key, length in studies.LENGTHS.items() if key not in lengths}
