"""Tables and imports that every worker needs, computed on import in the process that workers are forked from.

Workers then start warm, share its memory, and are replaced in a moment.
"""

from __future__ import annotations

import gc
import warnings
from contextlib import suppress
from dataclasses import replace

import torch

from notsodeep.app import answers
from notsodeep.app.state import State


def warm() -> None:
    """Compute a few answers, on one thread: a process whose threads compute cannot be forked."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for chosen in (State(), State(activation="tanh"), State(activation="elu", kernel="tangent")):
            state = replace(chosen, n=100, p=50)
            with suppress(Exception):  # a worker reports it to whoever asks
                answer, _ = answers.answered(state, None, {})
                answers.gaps(state, None, {}, answer.study)
    torch.set_num_threads(threads)
    gc.collect()
    gc.freeze()  # a garbage collection would copy these pages into every worker


warm()
