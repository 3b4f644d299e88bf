"""Code that a compiled graph leaves to Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def eager(function: F) -> F:
    """`function` as a break in a graph compiled around it: a loop that runs until it has converged is no graph."""
    return cast(F, torch.compiler.disable(function))
