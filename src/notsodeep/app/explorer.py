"""The state of one server: uploads, the latest answers, the lengths of series, and a pool of workers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from notsodeep.app import answers
from notsodeep.app.answers import Answer
from notsodeep.app.pool import LATER, NOW, SOON, Pool
from notsodeep.app.state import NAMED, State
from notsodeep.app.study import MOST_LENGTHS, GapPoint, Lengths, Refused, samples_of
from notsodeep.app.uploads import Shelf
from notsodeep.app.worker import OverBudget, Stopped
from notsodeep.data.sources import Dataset

Result = TypeVar("Result")
Gone = Callable[[], bool]
"""Whether a visitor has left."""
_ANSWERS = 32


class Explorer:
    """One server. Every question may raise `Refused`, with a sentence to show at a control, and `Departed`."""

    def __init__(self, pool: Pool) -> None:
        self.shelf, self._pool = Shelf(), pool
        self._answers: OrderedDict[State, Answer] = OrderedDict()
        self._lengths: Lengths = {}
        self._lock = threading.Lock()
        self._ahead = Future[Lengths]()

    def answer(self, state: State, gone: Gone, moving: bool = False) -> Answer:
        """The study of a state as the page shows it, computed once for all visitors. Failures are not kept.

        While a slider is `moving` it is that of `state.moving`, unless the whole one is known.
        """
        with self._lock:
            if moving and state not in self._answers:
                state = state.moving
            known = self._answers.get(state)
            if known is not None:
                self._answers.move_to_end(state)
                return known
            lengths = dict(self._lengths)
        sent = self._sent(state)
        place = "n" if state.activation in NAMED else "activation"
        answer, news = self._run(NOW, place, state, gone, answers.answered, sent, lengths)
        with self._lock:
            if self._answers.setdefault(state, answer) is not answer:
                return self._answers[state]
            while len(self._answers) > _ANSWERS:
                self._answers.popitem(last=False)
        self._learn(news)
        if not moving:
            self._look_ahead(state, sent, answer)
        return answer

    def gaps(self, state: State, gone: Gone) -> list[GapPoint]:
        """The gap against n."""
        known, sent = self.answer(state, gone).study, self._sent(state)
        points, news = self._run(LATER, "gaps", state, gone, answers.gaps, sent, dict(self._lengths), known)
        self._learn(news)
        return points

    def file(self, state: State, kind: str, gone: Gone) -> bytes:
        """A download: "onnx", "py" or "png"."""
        known, sent = self.answer(state, gone).study, self._sent(state)
        return self._run(SOON, "download", state, gone, answers.file, sent, known, kind)

    def rows(self, token: str) -> int | None:
        """Number of samples of an upload that is still held, or None."""
        held = self.shelf.get(token)
        return None if held is None else len(held.x)

    def close(self) -> None:
        """End all computations and their processes."""
        self._pool.close()

    def _run(self, urgency: int, place: str, state: State, gone: Gone, call: Callable[..., Result], *arguments: Any) -> Result:
        kind = arguments[-1] if call is answers.file else ""
        try:
            options: Any = {"urgency": urgency, "alike": state.activation, "departed": gone}
            return self._pool.run((call.__name__, kind, state), call, state, *arguments, **options)
        except OverBudget as over:
            remedy = f"Take fewer samples than n = {state.n} or a plainer activation"
            raise Refused(place, f"{over} {remedy}, or start the explorer with a larger {over.option}.") from over
        except Stopped as stopped:
            raise Refused(place, str(stopped)) from stopped

    def _sent(self, state: State) -> Dataset | None:
        """The samples of an upload, which workers do not have; they draw or read others themselves."""
        return samples_of(state, self.shelf) if state.data == "upload" else None

    def _learn(self, news: Lengths) -> None:
        with self._lock:
            if len(self._lengths) + len(news) > MOST_LENGTHS:
                self._lengths.clear()
            self._lengths |= news

    def _look_ahead(self, state: State, sent: Dataset | None, answer: Answer) -> None:
        """Look ahead of the latest answer alone: an earlier call that has not begun is cancelled."""
        if not answer.study.design.family.startswith("hermite"):
            return

        def learn(found: Future[Lengths]) -> None:
            with suppress(Exception):  # it is asked for again when it is needed
                self._learn(found.result())

        with suppress(Stopped):
            self._ahead.cancel()
            self._ahead = self._pool.when_idle(
                ("ahead", "", state), answers.ahead, state, sent, dict(self._lengths), answer.study, alike=state.activation
            )
            self._ahead.add_done_callback(learn)  # outside the lock, which it takes
