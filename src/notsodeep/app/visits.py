"""Whether a visitor still waits for an answer."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

_PAGES = 1000


class Visits:
    """The latest question of each page: who asks again does not wait for the answer to what was asked before."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def gone(self, environ: Mapping[str, Any], page: str = "", question: str = "") -> Callable[[], bool]:
        """Tells whether the connection of a request was closed, or its page, if it has a name, has asked this question again.

        The server puts into a request's environment what knows of its connection (waitress does so, and looks at a connection
        whose request is at work if its `channel_request_lookahead` is positive)."""
        closed: Callable[[], bool] = environ.get("waitress.client_disconnected", lambda: False)
        if not page:
            return closed
        key, number = (page[:64], question), next(self._numbers)
        with self._lock:
            self._latest[key] = number
            self._latest.move_to_end(key)
            while len(self._latest) > _PAGES:
                self._latest.popitem(last=False)
        return lambda: closed() or self._latest.get(key, number) != number
