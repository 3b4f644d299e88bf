"""One call of a door, and what is wrong with how it went."""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from notsodeep.errors import NotSoDeepError

LONGEST, LONGEST_HEAVY = 10.0, 60.0  # seconds, of a machine that may be busy
_DEEP = 4


@dataclass(frozen=True)
class Door:
    """A public callable: its name, how to get it, and good arguments, each a way to make one."""

    name: str
    get: Callable[[], Callable[..., Any]]
    good: dict[str, Callable[[], Any]]
    replaceable: tuple[str, ...] = ()
    """the parameters that may get a bad value, those without which it can do among them"""
    like_torch: bool = False
    """whether numbers pass through it as through a torch module: an overflow is an infinity there"""
    heavy: bool = False
    """whether a call that is not refused takes seconds"""


@dataclass(frozen=True)
class Defect:
    call: str
    kind: str
    where: str
    text: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.call.partition("(")[0], self.kind, self.where

    def __str__(self) -> str:
        return f"{self.call}: {self.kind} at {self.where}: {self.text}"


class Hang(BaseException):
    """A call that took too long."""


def defect_of(door: Door, replaced: dict[str, Callable[[], Any]], shown: dict[str, str]) -> Defect | None:
    """What is wrong with the outcome of the call with these arguments replaced, if anything; files are looked for in the
    current folder."""
    call = f"{door.name}({', '.join(f'{name}={value}' for name, value in shown.items())})"
    arguments = {name: make() for name, make in (door.good | replaced).items()}
    odd = any(_odd(value) for value in arguments.values())
    function, before, limit = door.get(), _files(), LONGEST_HEAVY if door.heavy else LONGEST
    started = time.monotonic()
    try:
        with _at_most(limit), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(**arguments)
            if isinstance(result, Iterator):
                result = next(result, None)
    except NotSoDeepError as error:
        if not str(error).strip():
            return Defect(call, "empty message", "", repr(error))
        left = sorted(_files() - before)
        return Defect(call, "file left behind", "", str(left)) if left else _slow(call, started, limit)
    except Hang:
        return Defect(call, "hang", "", f"over {limit:g} s")
    except BaseException as error:
        if _raised_by_sklearn(error) or _callers_own(error):
            return None
        return Defect(call, type(error).__name__, _where(error), str(error).split("\n")[0][:200])
    if not odd and not door.like_torch and _odd(result):
        return Defect(call, "NaN or infinity", "", repr(result)[:200])
    return _slow(call, started, limit)


def _slow(call: str, started: float, limit: float) -> Defect | None:
    seconds = time.monotonic() - started
    return Defect(call, "hang", "", f"{seconds:.1f} s") if seconds > limit else None


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang

    was = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, was)


def _odd(value: Any, depth: int = 0) -> bool:
    """Whether a NaN or an infinity is in a number, an array or a collection of them."""
    if isinstance(value, float | complex | np.floating):
        return not math.isfinite(abs(value))
    if isinstance(value, torch.Tensor):
        if value.is_nested or value.is_meta or value.is_quantized or value.layout != torch.strided:
            return False
        inexact = value.is_floating_point() or value.is_complex()
        return inexact and not bool(torch.isfinite(value.detach().to(torch.complex128)).all())
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fc" and not bool(np.isfinite(np.ma.getdata(value)).all())
    if depth < _DEEP and isinstance(value, list | tuple | set):
        return any(_odd(part, depth + 1) for part in value)
    return depth < _DEEP and isinstance(value, dict) and any(_odd(part, depth + 1) for part in value.values())


def _files() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


def _frames(error: BaseException) -> list[str]:
    return [frame.filename.replace(os.sep, "/") for frame in traceback.extract_tb(error.__traceback__)]


def _raised_by_sklearn(error: BaseException) -> bool:
    """scikit-learn's own checks of X and y, which its conventions ask an estimator to make first."""
    files = _frames(error)
    inside = [k for k, name in enumerate(files) if "/notsodeep/" in name]
    return any("/sklearn/" in name for name in files[(inside[-1] if inside else 0) :])


def _callers_own(error: BaseException) -> bool:
    """What the caller's own function raises is the caller's to see; so is Python's word on a wrong number of arguments."""
    return any(name.endswith("/bad_calls/values.py") for name in _frames(error)[1:]) or (
        isinstance(error, TypeError)
        and "argument" in str(error)
        and ("positional" in str(error) or "keyword" in str(error))
        and len(_frames(error)) <= 2
    )


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/notsodeep/" in frame.filename]
    if not frames:
        return "outside"
    return f"{frames[-1].filename.partition('/notsodeep/')[2].rpartition('notsodeep/')[2]}:{frames[-1].lineno}"
