"""Errors and warnings. A message says what happened, what it means and what to change; its numbers are attributes too."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

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


def warn(message: str) -> None:
    """Issue a `NumericsWarning` at the caller's line: the nearest one outside this package and torch."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    inside = (_PACKAGE, str(Path(torch).parent)) if torch else (_PACKAGE,)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, NumericsWarning, stacklevel=level)
