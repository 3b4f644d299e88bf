"""What every worker needs, computed when this is imported, by the process that workers are forked from: so they begin warm,
share its memory, and one that was ended is replaced in a moment."""

from __future__ import annotations

import gc
import warnings
from contextlib import suppress
from dataclasses import replace

import torch

from notsodeep.app import work
from notsodeep.app.state import State


def warm() -> None:
    """Once through everything. On one thread: a process whose threads compute cannot be forked."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for chosen in (State(), State(activation="tanh"), State(activation="elu", kernel="tangent")):
            state = replace(chosen, n=100, p=50)
            with suppress(Exception):  # a worker says what is wrong, to who asks
                answer, _ = work.answered(state, None, {})
                work.gaps(state, None, {}, answer.study)
    torch.set_num_threads(threads)
    gc.collect()
    gc.freeze()  # what is here stays here: a collection that looked at it would copy it into every worker


warm()
