"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package whose imports stand under ``if TYPE_CHECKING:``.

    Type checkers, editors and the documentation read those imports. At run time each is made when its name is first used.

    Args:
        package: The `__name__` of the package.

    Returns:
        Both functions and the list, to be assigned in this order.
    """
    homes = {
        each.asname or each.name: (statement.module or "", each.name)
        for block in ast.parse(getsource(sys.modules[package])).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for each in statement.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = homes[name]
        found = None if home == package else getattr(import_module(home), original, None)
        if found is None:  # a module itself
            found = import_module(f"{home}.{original}")
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted(homes), sorted(homes)
