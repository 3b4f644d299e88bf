"""Errors and warnings. A message says what happened, what it means and what to change; its numbers are attributes too."""

from __future__ import annotations

import functools
import sys
import warnings
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

_PACKAGE = str(Path(__file__).parent)


class NotSoDeepError(Exception):
    """The base of every error that this package raises on purpose.

    Args:
        message: What happened, what it means, and what to change.
        data: The numbers of the message, kept in ``.data`` and as attributes.
    """

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.data = data

    def __getattr__(self, name: str) -> Any:
        # Called if ordinary lookup fails: error.residual is error.data["residual"].
        if name != "data" and name in self.__dict__.get("data", {}):
            return self.data[name]
        raise AttributeError(f"{type(self).__name__} carries no {name!r}")


class BadInput(NotSoDeepError, ValueError):
    """An argument, an array or a file that cannot be used as given."""


class NotContractive(NotSoDeepError, ArithmeticError):
    """There is no equilibrium: carries ``left``, ``right`` (the violated inequality) and ``largest_var_a``."""


class NotConverged(NotSoDeepError, ArithmeticError):
    """An iteration stopped short of its tolerance: carries ``residual`` and ``steps``."""


class NoMatch(NotSoDeepError):
    """A family that cannot reproduce the target: carries ``residual``, ``target``, ``reached``, ``suggestion`` and the nearest
    member of the family, ``explicit``."""


class NumericsWarning(UserWarning):
    """The result is valid, but a condition of a theorem or a guarantee of its accuracy does not hold."""


def first_line(error: BaseException) -> str:
    """The first line of an error without its full stop, or the name of its class."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


class Place(NamedTuple):
    """A line of a caller's code, and what has been warned of there."""

    filename: str
    line: int
    module: str
    registry: dict[Any, Any]


CALLER: ContextVar[Place | None] = ContextVar("notsodeep caller", default=None)
"""In a thread of this package, the line that its work was started for: the thread's own stack does not reach it."""


def caller() -> Place:
    """The nearest line outside this package, torch and functools, as its cached properties stand between functions of ours."""
    known = CALLER.get()
    if known is not None:
        return known
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    inside = (_PACKAGE, functools.__file__, *([str(Path(torch).parent)] if torch else []))
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    around = frame.f_globals
    warned = around.setdefault("__warningregistry__", {})
    return Place(frame.f_code.co_filename, frame.f_lineno, around.get("__name__", "<unknown>"), warned)


def warn(message: str) -> None:
    """Issue a `NumericsWarning` at the caller's line."""
    at = caller()
    warnings.warn_explicit(message, NumericsWarning, at.filename, at.line, at.module, at.registry)
